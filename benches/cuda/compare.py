"""Runs of this library and of PyTorch's cuDNN on one GPU, and of this library on the CPU's cores.

The sizes are those of DeepCPU's Table 1, and LSTM and GRU of 1024 units by batch (its figure 5c).

    python benches/cuda/compare.py [--record]

Needs PyTorch with CUDA, and `cargo build --release -p gatestream-cuda --features cuda --example step_times`.
Both copy the input to the device and the output back. Programs take turns: a third of the runs each time.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benches")]

from report import records  # noqa: E402

PROGRAM = ROOT / "target" / "release" / "examples" / "step_times"
ROUNDS = 3
RUNS = 30
SIZES = [
    (64, 64, 1, 100), (256, 64, 1, 100), (1024, 64, 1, 100), (64, 256, 1, 100), (64, 1024, 1, 100),
    (1024, 1024, 1, 100), (256, 256, 1, 1), (256, 256, 1, 10), (256, 256, 1, 100), (64, 64, 10, 100),
    (64, 64, 20, 100), (256, 256, 10, 100), (256, 256, 20, 100), (1024, 1024, 10, 100), (1024, 1024, 20, 100),
    (1024, 1024, 1, 1000), (1024, 1024, 16, 1000), (1024, 1024, 64, 1000),
    (1024, 1024, 4, 100), (1024, 1024, 64, 100), (1024, 1024, 256, 100), (1024, 1024, 512, 100),
]  # fmt: skip


def ours(shapes: list[tuple], *device: str) -> dict[tuple, float]:
    lines = "\n".join(",".join(map(str, shape)) for shape in shapes) + "\n"
    done = subprocess.run([PROGRAM, *device], input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    rows = csv.DictReader(done.stdout.splitlines())
    return {(r["cell"], *(int(r[k]) for k in ("input", "hidden", "batch", "steps"))): float(r["median_ms"]) for r in rows}


def cudnn(shape: tuple) -> float:
    cell, features, hidden, batch, steps = shape
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](features, hidden).cuda().eval()
    x = torch.full((steps, batch, features), 0.5)
    times = []
    with torch.inference_mode():
        for _ in range(RUNS + 3):
            start = time.perf_counter()
            layer(x.cuda())[0].cpu()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    shapes = [(cell, *size) for cell in ("lstm", "gru") for size in SIZES]
    mine: dict[tuple, list[float]] = {shape: [] for shape in shapes}
    theirs: dict[tuple, list[float]] = {shape: [] for shape in shapes}
    cpu = ours(shapes, "cpu")
    for _ in range(ROUNDS):
        for shape, median in ours(shapes).items():
            mine[shape].append(median)
        for shape in shapes:
            theirs[shape].append(cudnn(shape))
    found = []
    for shape in shapes:
        here, there = statistics.median(mine[shape]), statistics.median(theirs[shape])
        names = ("cell", "input", "hidden", "batch", "steps")
        found.append({
            **dict(zip(names, shape)), "gatestream_ms": f"{here:.4f}", "cudnn_ms": f"{there:.4f}",
            "cpu_ms": f"{cpu[shape]:.4f}", "us_per_step": f"{1e3 * here / shape[-1]:.2f}",
            "ratio": f"{there / here:.2f}",
        })  # fmt: skip
        print(*found[-1].values(), sep="  ", flush=True)
    if given.record:
        stamp = records.stamp(f"benches/cuda/compare.py ({torch.cuda.get_device_name()}, PyTorch {torch.__version__})")
        records.write(records.folder() / "cuda.csv", stamp, found)


if __name__ == "__main__":
    main()
