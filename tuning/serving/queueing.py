#!/usr/bin/env python3
"""How long requests wait for their first cell, beside what a worker is given at once.

    DATA=FOLDER tuning/serving/queueing.py

Below its peak, who comes waits for the tasks that the worker has: MaxTasksToSubmit steps (BatchMaker, section 7.3). Here
steps take from 0.2 to 5 ms with their rows, so the 99th percentile of queueing (from submission on, the server's own) is set
beside the mean step, the median and the 99th percentile, times the steps that a worker gets at once: 4 of few rows together
as the engine has it (over 16 rows in all it takes fewer, but 4 is what is divided by), 1, and 5 one after the other as in
the paper. Medians of three runs of 4 seconds; five minutes, on a machine that does nothing else. Writes
`results/queueing.txt`. DATA is as in `run`.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release" / "cellstream"
RESULTS = Path(os.environ.get("RESULTS", Path(__file__).resolve().parent / "results"))
# What comes, and requests a second: below the peak, but in the slowest hours (280 to 450 and 420 to 690); then it says so.
LENGTHS = {"paper": (100, 200, 300), "wmt22_lengths.csv:source_words": (200, 300, 450)}
# Steps at once, MaxTasksToSubmit.
AT_ONCE = ((4, 1), (1, 1), (1, 5))
STEP = ("mean", "p50", "p99")


def run(lengths, rate, steps, tasks, seed):
    """The 99th percentile of queueing, and what of steps."""
    served = lengths if lengths == "paper" else f"{os.environ['DATA']}/{lengths}"
    command = [PROGRAM, "load", "lstm", "--lengths", served, "--policies", "cellular", "--batch", "64"]
    command += ["--rates", str(rate), "--steps-at-once", str(steps), "--tasks-at-once", str(tasks)]
    command += ["--warm-up", "1", "--seconds", "4", "--seed", str(seed), "--json"]
    printed = subprocess.run(command, capture_output=True, text=True)
    if printed.returncode != 0:
        sys.exit(printed.stderr)
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    of = next(line for line in lines if line["kind"] == "run")
    if of["throughput"] < 0.93 * rate:
        print(f"answered {of['throughput']:.0f} of {rate} a second: beyond the peak", file=sys.stderr)
    return [of["submitted_queueing_ms"]["p99"], *(of["step_ms"]["chain"][what] for what in STEP)]


def main():
    if "DATA" not in os.environ:
        sys.exit("DATA is not set")
    subprocess.run(["cargo", "build", "--release", "--quiet", "--manifest-path", ROOT / "Cargo.toml"], check=True)
    lines = ["p99 of queueing in ms; a step's mean, p50 and p99 in ms; the first over the steps at once times each"]
    for lengths, rates in LENGTHS.items():
        for steps, tasks in AT_ONCE:
            for rate in rates:
                runs = [run(lengths, rate, steps, tasks, seed) for seed in (1, 2, 3)]
                queueing, *step = (statistics.median(column) for column in zip(*runs))
                over = "  ".join(f"{queueing / (steps * tasks * one):5.2f}" for one in step)
                step = "  ".join(f"{one:5.2f}" for one in step)
                name = lengths.partition(".")[0]
                lines.append(f"{name:13} {rate:4} a second  {steps * tasks} at once  {queueing:6.2f}   {step}   {over}")
                print(lines[-1], flush=True)
    (RESULTS / "queueing.txt").write_text("\n".join(lines) + "\n")


main()
