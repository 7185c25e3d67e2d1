"""Serving on one GPU, as BatchMaker's section 7 measures it: steps by batch, policies by load.

    python benches/cuda/serving.py [--record]

Needs `cargo build --release -p gatestream-cli --features cuda`. LSTM of 1024 units, batches of up to 512 requests.
Its figure 3: batches of identical requests, so that nothing is wasted. Its figures 7 to 9: lengths as in the paper, by
policy, at shares of the peak of padding.
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

PROGRAM = ROOT / "target" / "release" / "gatestream"
STEPS = 24


def load(*options: str) -> list[dict]:
    """The runs of `gatestream load lstm`."""
    command = [str(PROGRAM), "load", "lstm", "--cuda", "--workers", "1", "--tasks-at-once", "5", *options, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def row(batch: int, kind: str, run: dict) -> dict:
    latency = run["latency_ms"]
    steps = next(iter(run["step_ms"].values()), {"p50": 0.0})
    return {
        "kind": kind, "policy": run["policy"], "batch": batch, "rate": f"{run.get('rate') or 0:.0f}",
        "answered_per_s": f"{run['throughput']:.0f}", "step_ms": f"{steps['p50']:.4f}",
        "p50_ms": f"{latency['p50']:.3f}", "p90_ms": f"{latency['p90']:.3f}", "p99_ms": f"{latency['p99']:.3f}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    found = []
    for batch in (1, 4, 16, 64, 256, 512):
        closed = ("--closed", str(4 * batch), "--seconds", "2", "--warm-up", "0.5")
        runs = load("--policies", "ideal", "--lengths", str(STEPS), "--batch", str(batch), *closed)
        found += [row(batch, "identical", run) for run in runs if run["kind"] == "run"]
    runs = load("--policies", "cellular,padding", "--batch", "512", "--load", "0.2,0.5,0.8", "--seconds", "4")
    found += [row(512, run["kind"], run) for run in runs if run["kind"] in ("peak", "run")]
    for one in found:
        print(*one.values(), sep="  ")
    if given.record:
        stamp = records.stamp("benches/cuda/serving.py (LSTM 1024, MaxTasksToSubmit 5)")
        records.write(records.folder() / "cuda-serving.csv", stamp, found)


if __name__ == "__main__":
    main()
