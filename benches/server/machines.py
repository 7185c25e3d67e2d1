"""What N simulated machines bear, and the engine of this one at the same loads: how well the simulation tells.

    python benches/server/machines.py [--record]

Needs `cargo build --release --bin cellstream`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benches")]

from report import records  # noqa: E402

PROGRAM = ROOT / "target" / "release" / "cellstream"
SHAPE = ["--hidden", "512", "--input", "512", "--lengths", "paper", "--workers", "2", "--batch", "32"]
LOADS = (0.25, 0.5, 0.8, 0.9)
MACHINES = (2, 4, 8)


def load(*options: str) -> list[dict]:
    """The rows of `cellstream load`."""
    command = [str(PROGRAM), "load", "lstm", *SHAPE, "--policies", "cellular", *options, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = map(json.loads, ended.stdout.strip().splitlines())
    return [row for row in rows if row["kind"] == "run"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    simulated = ["--seconds", "60", "--warm-up", "5"]
    (peak,) = load("--machines", "1", "--closed", "256", *simulated)
    rates = [share * peak["throughput"] for share in LOADS]
    found = []

    def add(kind: str, machines: int, routing: str, *options: str) -> None:
        asked = ",".join(f"{machines * rate:.1f}" for rate in rates)
        for share, row in zip(LOADS, load("--rates", asked, *options)):
            latency = row["latency_ms"]
            found.append({
                "kind": kind, "machines": machines, "routing": routing, "load": share, "rate": f"{row['rate']:.0f}",
                "p50_ms": f"{latency['p50']:.2f}", "p90_ms": f"{latency['p90']:.2f}", "p99_ms": f"{latency['p99']:.2f}",
            })  # fmt: skip
            print(*found[-1].values(), sep="  ", flush=True)

    add("measured", 1, "", "--seconds", "8", "--warm-up", "2", "--rounds", "2")
    add("simulated", 1, "", "--machines", "1", *simulated)
    for machines in MACHINES:
        add("simulated", machines, "shorter-of-two", "--machines", str(machines), *simulated)
    if given.record:
        stamp = records.stamp("benches/server/machines.py (LSTM 512, lengths: paper, 2 workers, batch 32)")
        records.write(records.folder() / "machines.csv", stamp, found)


if __name__ == "__main__":
    main()
