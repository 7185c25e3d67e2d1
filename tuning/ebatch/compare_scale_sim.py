#!/usr/bin/env python3
"""Compares the cycles of the simulated systolic array with those of the package scalesim, on random shapes.

    python3 -m venv target/scalesim-venv
    target/scalesim-venv/bin/pip install --requirement tuning/ebatch/requirements.txt
    cargo build --release -p gatestream-accelerator-sim --example systolic_cycles
    target/scalesim-venv/bin/python tuning/ebatch/compare_scale_sim.py [--shapes N] [--seed N]

Exits with 1 if any shape differs. SCALE-Sim (Samajdar et al., ISPASS 2020) is the simulator that E-BATCH's
authors used. Only its compute cycles are compared: no memory stalls.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = """[general]
run_name = run
[architecture_presets]
ArrayHeight: {rows}
ArrayWidth: {columns}
IfmapSramSzkB: 65536
FilterSramSzkB: 65536
OfmapSramSzkB: 65536
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Bandwidth: 10
Dataflow: os
MemoryBanks: 1
ReadRequestBuffer: 32
WriteRequestBuffer: 32
[layout]
IfmapCustomLayout: False
FilterCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""
LAYOUT = """Layer name, IFMAP Height Intraline Factor, IFMAP Width Intraline Factor, Filter Height Intraline Factor, \
Filter Width Intraline Factor, Channel Intraline Factor, Num Filter Intraline Factor, IFMAP Height Intraline Order, \
IFMAP Width Intraline Order, Channel Intraline Order, IFMAP Height Interline Order, IFMAP Width Interline Order, \
Channel Interline Order, Num Filter Intraline Order, Channel Intraline Order, Filter Height Intraline Order, \
Filter Width Intraline Order, Num Filter Interline Order, Channel Interline Order, Filter Height Interline Order, \
Filter Width Interline Order,
{lines}
"""


def scale_sim(rows: int, columns: int, products: list[tuple[int, int, int]]) -> list[int]:
    """Compute cycles by the package, for products M, N, K on one array."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "array.cfg").write_text(CONFIGURATION.format(rows=rows, columns=columns))
        layers = "".join(f"L{index},{m},{n},{k},\n" for index, (m, n, k) in enumerate(products))
        (folder / "products.csv").write_text(f"Layer,M,N,K,\n{layers}")
        ones = ",".join(["1"] * 20)
        lines = "\n".join(f"L{index},{ones}," for index in range(len(products)))
        (folder / "layout.csv").write_text(LAYOUT.format(lines=lines))
        command = [sys.executable, "-m", "scalesim.scale", "-c", "array.cfg", "-t", "products.csv", "-l", "layout.csv",
                   "-i", "gemm", "-p", "out"]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        reports = list(folder.glob("out/**/COMPUTE_REPORT.csv"))
        if done.returncode or not reports:
            raise SystemExit(f"scalesim failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        report = csv.DictReader(reports[0].read_text().splitlines(), skipinitialspace=True)
        column = "Total Cycles" if "Total Cycles" in (report.fieldnames or []) else "Compute Cycles"
        return [int(float(row[column])) for row in report]


def ours(shapes: list[tuple[int, ...]]) -> list[int]:
    """Cycles by this repository."""
    program = ROOT / "target" / "release" / "examples" / "systolic_cycles"
    text = "".join(" ".join(map(str, shape)) + "\n" for shape in shapes)
    done = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def main() -> int:
    """Compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    numbers = random.Random(arguments.seed)
    differing = compared = 0
    while compared < arguments.shapes:
        rows, columns = (numbers.choice((4, 8, 12, 16, 32)) for _ in range(2))
        products = [tuple(numbers.randint(1, 96) for _ in range(3)) for _ in range(min(10, arguments.shapes - compared))]
        theirs = scale_sim(rows, columns, products)
        here = ours([(rows, columns, *product) for product in products])
        for product, a, b in zip(products, theirs, here, strict=True):
            compared += 1
            if a != b:
                differing += 1
                print(f"array {rows} x {columns}, M N K {product}: scalesim {a}, here {b}")
    print(f"{compared} shapes, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
