#!/usr/bin/env python3
"""Times batches of several steps of MNMT on this machine, and predicts the bytes that they move.

    cargo build --release -p gatestream-cli
    tuning/ebatch/steps.py [--program FILE]

Writes `<record>/<machine>/<today>/ebatch-steps.csv`: for each depth, rows and steps the measured rate, medians with the least
and the greatest, the bound by the machine's ceilings, and megabytes for each row and step, from the shared cache or memory into the private caches. The prediction is
that of `gatestream explain`, which the library's tests compare with simulated caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches" / "report"))
import records  # noqa: E402
from markdown import number  # noqa: E402

ROUNDS = 3
STEPS = (1, 4, 16)


def asked(program: str, command: str, layers: int, rows: int, steps: int) -> dict:
    """The JSON object of a command for such a batch."""
    words = [program, command, "--cell", "lstm", "--input", "1024", "--hidden", "1024", "--layers", str(layers),
             "--batch", str(rows), "--steps", str(steps), "--json"]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[0])


def megabytes(explained: dict, rows: int, steps: int) -> float:
    """Of a row and step, into the second level of all cores."""
    private = [level for core in explained["moved"]["cores"] for level in core if level["level"] == 2]
    total = sum(level["steps"]["total"] + level["ahead_per_step"] * steps for level in private)
    return total / 1e6 / rows / steps


def lines(program: str, layers: int, rows: int) -> list[dict[str, object]]:
    """A line of the record for each number of steps, which are timed in turn."""
    timed: dict[int, list[dict]] = {steps: [] for steps in STEPS}
    for _ in range(ROUNDS):
        for steps, found in timed.items():
            found.append(asked(program, "bench", layers, rows, steps))
    # The ceilings are measured each time; another guest of the machine only lowers them.
    bound = max(one["gflops"] / one["fraction_of_bound"] for found in timed.values() for one in found)
    made = []
    for steps, found in timed.items():
        rates = sorted(one["gflops"] for one in found)
        moved = megabytes(asked(program, "explain", layers, rows, steps), rows, steps)
        spread = f"{number(statistics.median(rates))} ({number(rates[0])}–{number(rates[-1])})"
        print(layers, rows, steps, spread, flush=True)
        made.append({"layers": layers, "rows": rows, "steps": steps, "gflops": spread, "bound_gflops": number(bound),
                     "mb_per_row_step": number(moved)})  # fmt: skip
    return made


def main() -> int:
    """Writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(records.ROOT / "target" / "release" / "gatestream"))
    program = parser.parse_args().program
    rows = [line for layers in (1, 8) for batch in (16, 64) for line in lines(program, layers, batch)]
    records.write(records.folder() / "ebatch-steps.csv", records.stamp("tuning/ebatch/steps.py"), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
