"""Does an error grow over 1000 steps? Random stable models, against PyTorch's dynamic int8, f64 as truth."""

from __future__ import annotations

import math

import numpy as np
import torch

from contenders import Task, random_task, rms

CELLS, SIZES, SEEDS = ("LSTM", "GRU", "RNN"), (64, 128, 256, 512, 1024), (1, 2, 3)
STEPS, BATCH = 1000, 4
# "Stable": an error of this size in the first state is gone, but for rounding in f64, at the last step.
INJECTED, GONE = 1e-3, 1e-12
OURS, PEER, BEST = "cellstream int8", "PyTorch int8", "PyTorch int8, at its best"


def contenders(task: Task, binary) -> dict[str, np.ndarray]:
    return {
        OURS: task.ours(binary, "int8"),
        PEER: task.pytorch_int8(),
        BEST: task.pytorch_int8(per_channel=True, rows_alone=True),
        "cellstream bf16": task.ours(binary, "bf16"),
        "PyTorch bf16": task.pytorch(torch.bfloat16),
        "cellstream f32": task.ours(binary, "f32"),
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
    for who, y in contenders(task, args.binary).items():
        error = y - truth
        rows.append(
            {
                "cell": cell,
                "hidden": hidden,
                "seed": seed,
                "steps": steps,
                "who": who,
                "rms": rms(error),
                "rms_steps_1_10": rms(error[:10]),
                "rms_last_10_steps": rms(error[-10:]),
                "max": float(np.abs(error).max()),
                "output_rms": rms(truth),
                "injected_left": left,
            }
        )
    return rows


def pooled(rows: list[dict], cell: str, hidden: int, who: str) -> dict:
    """Over the seeds: root of the mean square, and the greatest."""
    mine = [r for r in rows if (r["cell"], r["hidden"], r["who"]) == (cell, hidden, who)]
    mean = lambda key: math.sqrt(sum(r[key] ** 2 for r in mine) / len(mine))
    keys = ("rms", "rms_steps_1_10", "rms_last_10_steps", "output_rms")
    return {**{key: mean(key) for key in keys}, "max": max(r["max"] for r in mine)}


def measure(args) -> list[dict]:
    rows = []
    for task in plan(args):
        rows += one(args, *task)
        print(f"drift: {task[0]} {task[1]}, seed {task[2]}", flush=True)
    return rows


def table(rows: list[dict]) -> list[str]:
    models = list(dict.fromkeys((row["cell"], row["hidden"]) for row in rows))
    steps, seeds = rows[0]["steps"], len({row["seed"] for row in rows})

    def one_of(title, names, cell):
        lines = ["", title, "", "| model | output RMS |" + "".join(f" {n} |" for n in names), "|---|---|" + "---|" * len(names)]
        for model in models:
            cells = [cell(pooled(rows, *model, name)) for name in names]
            signal = pooled(rows, *model, OURS)["output_rms"]
            lines.append(f"| {model[0]} {model[1]} | {signal:.3f} |" + "".join(f" {c} |" for c in cells))
        return lines

    text = ["## Drift", "", f"{steps} steps, input 64, batch {BATCH}, {seeds} seeds; errors to f64."]
    names = list(dict.fromkeys(row["who"] for row in rows))
    text += one_of("RMS error over the whole sequence:", names, lambda p: f"{p['rms']:.2e}")
    early_late = lambda p: f"{p['rms_steps_1_10']:.1e} → {p['rms_last_10_steps']:.1e}"
    text += one_of("RMS error over steps 1–10 → over the last 10:", names[:-1], early_late)
    text += one_of("Greatest error:", names, lambda p: f"{p['max']:.1e}")
    text += ["", *verdict(rows)]
    worst = max(row["injected_left"] for row in rows)
    text += [f"All are stable: of an error of {INJECTED} in the first state at most {worst:.0e} are left after {steps} steps."]
    return text


def verdict(rows: list[dict]) -> list[str]:
    lines = []
    of = {(r["cell"], r["hidden"], r["seed"], r["who"]): r["rms"] for r in rows}
    runs = [key[:3] for key in of if key[3] == OURS]
    for peer in (PEER, BEST):
        ratios = {run: of[*run, peer] / of[*run, OURS] for run in runs}
        worse = [f"{cell} {hidden} (seed {seed}): {r:.2f}" for (cell, hidden, seed), r in ratios.items() if r < 1]
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        lines.append(
            f"{peer} / {OURS}: geometric mean {mean:.2f}, least {min(ratios.values()):.2f}, most {max(ratios.values()):.2f}; "
            f"ours is worse in {len(worse)} of {len(ratios)} runs{': ' + ', '.join(worse) if worse else ''}."
        )
        lines.append("")
    return lines
