"""Does an error grow over 1000 steps? Random stable models, against PyTorch's dynamic int8, f64 as truth."""

from __future__ import annotations

import numpy as np
import torch

from contenders import Task, random_task, rms

CELLS, SIZES, SEEDS = ("LSTM", "GRU", "RNN"), (64, 128, 256, 512, 1024), (1, 2, 3)
STEPS, BATCH = 1000, 4
# "Stable": an error of this size in the first state is gone, but for rounding in f64, at the last step.
INJECTED, GONE = 1e-3, 1e-12
OURS, PEER, BEST = "gatestream int8", "PyTorch int8", "PyTorch int8, at its best"


def contenders(task: Task, binary) -> dict[str, np.ndarray]:
    return {
        OURS: task.ours(binary, "int8"),
        PEER: task.pytorch_int8(),
        BEST: task.pytorch_int8(per_channel=True, rows_alone=True),
        "gatestream bf16": task.ours(binary, "bf16"),
        "PyTorch bf16": task.pytorch(torch.bfloat16),
        "gatestream f32": task.ours(binary, "f32"),
    }


def plan(args):
    quick = args.quick
    steps, sizes, seeds = (100, SIZES[:2], SEEDS[:1]) if quick else (STEPS, SIZES, SEEDS)
    return [(cell, hidden, seed, steps) for cell in CELLS for hidden in sizes for seed in seeds]


def one(args, cell: str, hidden: int, seed: int, steps: int) -> list[dict]:
    task = random_task(cell, hidden, seed, steps, BATCH)
    truth = task.pytorch(torch.float64)
    left = rms((task.pytorch(torch.float64, INJECTED) - truth)[-1])
    if left > GONE:
        raise SystemExit(f"{task.name}, seed {seed}: not stable, {left:.1e} of {INJECTED} are left after {steps} steps")
    rows = []
    for library, y in contenders(task, args.binary).items():
        error = y - truth
        rows.append(
            {
                "cell": cell,
                "hidden": hidden,
                "seed": seed,
                "steps": steps,
                "library": library,
                "rms": rms(error),
                "rms_steps_1_10": rms(error[:10]),
                "rms_last_10_steps": rms(error[-10:]),
                "max": float(np.abs(error).max()),
                "output_rms": rms(truth),
                "injected_left": left,
            }
        )
    return rows


def measure(args) -> list[dict]:
    rows = []
    for task in plan(args):
        rows += one(args, *task)
        print(f"drift: {task[0]} {task[1]}, seed {task[2]}", flush=True)
    return rows
