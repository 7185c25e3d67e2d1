#!/usr/bin/env python3
"""How long requests wait for their first cell, beside the steps that a worker is given at once.

    DATA=FOLDER tuning/serving/queueing.py

Below the peak a request waits for the tasks that the worker already has: MaxTasksToSubmit steps (BatchMaker, section 7.3).
The worker gets 4 steps of few rows together as the engine has it, 1, or 5 one after the other as in the paper. Medians of three
runs of 4 seconds; five minutes, on an idle machine. Writes queueing.csv into the record: the 99th percentile of queueing (from
submission on), and of a step the mean, the median and the 99th percentile, in ms. DATA is as in `run`.
"""

import os
import statistics
import sys

from load import build, records, run

# Requests a second, below the peak in all but the slowest hours; beyond it a line says so.
LENGTHS = {"paper": (100, 200, 300), "wmt22_lengths.csv:source_words": (200, 300, 450)}
# Steps at once, MaxTasksToSubmit.
AT_ONCE = ((4, 1), (1, 1), (1, 5))
COLUMNS = ("queueing_p99_ms", "step_mean_ms", "step_p50_ms", "step_p99_ms")


def queueing(lengths, rate, steps, tasks, seed):
    """The values of COLUMNS in one run."""
    served = lengths if lengths == "paper" else f"{os.environ['DATA']}/{lengths}"
    of = run(*f"lstm --policies cellular --batch 64 --rates {rate} --steps-at-once {steps} --tasks-at-once {tasks}".split(),
             *f"--warm-up 1 --seconds 4 --seed {seed}".split(), "--lengths", served)  # fmt: skip
    if of["throughput"] < 0.93 * rate:
        print(f"answered {of['throughput']:.0f} of {rate} a second: beyond the peak", file=sys.stderr)
    return [of["submitted_queueing_ms"]["p99"], *(of["step_ms"]["chain"][what] for what in ("mean", "p50", "p99"))]


def main():
    if "DATA" not in os.environ:
        sys.exit("DATA is not set")
    path = records.folder() / "queueing.csv"
    build()
    rows = []
    for lengths, rates in LENGTHS.items():
        for steps, tasks in AT_ONCE:
            for rate in rates:
                runs = [queueing(lengths, rate, steps, tasks, seed) for seed in (1, 2, 3)]
                medians = [f"{statistics.median(column):.2f}" for column in zip(*runs)]
                row = {"lengths": lengths.partition(".")[0], "asked": rate, "steps_at_once": steps, "tasks_at_once": tasks}
                rows.append(row | dict(zip(COLUMNS, medians)))
                print(*rows[-1].values(), flush=True)
    records.write(path, records.stamp("tuning/serving/queueing.py"), rows)


main()
