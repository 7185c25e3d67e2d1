#!/usr/bin/env python3
"""Predicts the bytes that a batch moves into the private caches on this machine, by depth, rows and steps.

    tuning/ebatch/traffic.py [--program FILE]

The prediction is that of `cellstream explain`, which the library's tests compare with simulated caches.
Writes `<record>/<machine>/<today>/ebatch-traffic.csv`: megabytes for each row and step, from the shared cache or memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches" / "report"))
import records  # noqa: E402


def megabytes(program: str, layers: int, rows: int, steps: int) -> float:
    """Of a row and step, into the second level of all cores."""
    command = [program, "explain", "--cell", "lstm", "--input", "1024", "--hidden", "1024", "--layers", str(layers),
               "--batch", str(rows), "--steps", str(steps), "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cores = json.loads(done.stdout)["moved"]["cores"]
    private = [level for core in cores for level in core if level["level"] == 2]
    total = sum(level["steps"]["total"] + level["ahead_per_step"] * steps for level in private)
    return total / 1e6 / rows / steps


def main() -> int:
    """Writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(records.ROOT / "target" / "release" / "cellstream"))
    program = parser.parse_args().program
    rows = [
        {"layers": layers, "rows": batch}
        | {f"steps_{steps}_mb": f"{megabytes(program, layers, batch, steps):.4g}" for steps in (1, 4, 8, 16)}
        for layers in (1, 2, 4, 8)
        for batch in (16, 64)
    ]
    records.write(records.folder() / "ebatch-traffic.csv", records.stamp("tuning/ebatch/traffic.py"), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
