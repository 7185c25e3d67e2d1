"""What N simulated machines bear, and the engine of this one at the same loads: how well the simulation tells.

    python benches/server/machines.py [--record]

Needs `cargo build --release --bin gatestream`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benches")]

from report import records  # noqa: E402

PROGRAM = ROOT / "target" / "release" / "gatestream"
SHAPE = ["--hidden", "512", "--input", "512", "--lengths", "paper", "--workers", "2", "--batch", "32"]
LOADS = (0.25, 0.5, 0.8, 0.9)
MACHINES = "1,2,4,8"


def load(*options: str) -> list[dict]:
    """The rows of `gatestream load`."""
    command = [str(PROGRAM), "load", "lstm", *SHAPE, "--policies", "cellular", *options, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = map(json.loads, ended.stdout.strip().splitlines())
    return [row for row in rows if row["kind"] == "run"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    loads = ",".join(map(str, LOADS))
    simulated = load("--machines", MACHINES, "--load", loads, "--seconds", "60", "--warm-up", "5")
    one = [f"{row['rate']:.1f}" for row in simulated if row["machines"] == 1]
    measured = load("--rates", ",".join(one), "--seconds", "8", "--warm-up", "2", "--rounds", "2")
    found = []
    for kind, rows in (("measured", measured), ("simulated", simulated)):
        for share, row in zip(itertools.cycle(LOADS), rows):
            latency = row["latency_ms"]
            found.append({
                "kind": kind, "machines": row.get("machines", 1), "load": share, "rate": f"{row['rate']:.0f}",
                "p50_ms": f"{latency['p50']:.2f}", "p90_ms": f"{latency['p90']:.2f}", "p99_ms": f"{latency['p99']:.2f}",
            })  # fmt: skip
            print(*found[-1].values(), sep="  ", flush=True)
    if given.record:
        stamp = records.stamp("benches/server/machines.py (LSTM 512, lengths: paper, 2 workers, batch 32)")
        records.write(records.folder() / "machines.csv", stamp, found)


if __name__ == "__main__":
    main()
