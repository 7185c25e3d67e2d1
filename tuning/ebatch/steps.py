#!/usr/bin/env python3
"""Times batches of several steps of MNMT on this machine, and predicts the bytes that they move.

    cargo build --release -p cellstream-cli
    tuning/ebatch/steps.py [--program FILE]

Writes `<record>/<machine>/<today>/ebatch-steps.csv`: for each depth, rows and steps the measured rate and what bounds
it, and megabytes for each row and step, from the shared cache or memory into the private caches. The prediction is
that of `cellstream explain`, which the library's tests compare with simulated caches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches" / "report"))
import records  # noqa: E402


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


def row(program: str, layers: int, rows: int, steps: int) -> dict[str, object]:
    """A line of the record."""
    timed = asked(program, "bench", layers, rows, steps)
    moved = megabytes(asked(program, "explain", layers, rows, steps), rows, steps)
    print(layers, rows, steps, timed["median_ms"], flush=True)
    return {"layers": layers, "rows": rows, "steps": steps, "ms_per_step": f"{timed['median_ms'] / steps:.4g}",
            "gflops": f"{timed['gflops']:.4g}", "bound_by": timed["bound_by"],
            "bound_gflops": f"{timed['gflops'] / timed['fraction_of_bound']:.4g}", "mb_per_row_step": f"{moved:.4g}"}  # fmt: skip


def main() -> int:
    """Writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(records.ROOT / "target" / "release" / "cellstream"))
    program = parser.parse_args().program
    rows = [row(program, layers, batch, steps) for layers in (1, 2, 4, 8) for batch in (16, 64) for steps in (1, 4, 16)]
    records.write(records.folder() / "ebatch-steps.csv", records.stamp("tuning/ebatch/steps.py"), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
