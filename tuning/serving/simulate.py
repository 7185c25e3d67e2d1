#!/usr/bin/env python3
"""What order and batch size give by themselves: one worker; batches take the times in cells.csv, and nothing else costs.

    tuning/serving/simulate.py [--machine KIND] [--precision int8] [--steps-at-once 8] [--lengths FILE:COLUMN] [--within TIMES | RATE...]

Chains come at Poisson times, with the lengths of the paper or of a column of a CSV file, the same for all. `merge`
collects the waiting requests and runs them to the end; `arrival` and `shortest` are cellular batching in its two orders. All take
several steps of few rows in one batch, as the engine does, but `level`: merge step by step, as TensorFlow Fold and DyNet
go. `alone` is a request that shares the machine with no other: no policy answers it sooner. RATE: half and four fifths of
what full batches bear, unless said. Printed are p50, p90 and p99 in ms, and p90 beside that of `merge` and of `level`, each
with its best batch; with --within instead how many requests a second each bears with a p99 of a multiple of what the mean
request takes alone.
"""

import argparse
import csv
import math
import random
from functools import partial

from load import records

LOADS = (0.5, 0.8)
FULL = 64
# As the engine has it: all steps of a batch together.
STEP_ROWS = 16
REQUESTS, WARM_UP = 20000, 1000


def measured(machine, cell, precision="f32"):
    """µs by rows, by how many steps are taken at once: the newest cells.csv of a machine kind that has the cell."""
    of = {}
    for row in records.newest("cells", machine, lambda row: row["cell"] == cell).rows:
        if (row["cell"], row["precision"]) == (cell, precision):
            of.setdefault(int(row["steps_at_once"]), {})[int(row["rows"])] = float(row["us"])
    return of


def between(points, rows):
    """Straight lines between what was measured; beyond the last, as many µs a row."""
    known = sorted(points)
    for lower, upper in zip(known, known[1:]):
        if rows <= upper:
            part = (rows - lower) / (upper - lower)
            return points[lower] + part * (points[upper] - points[lower])
    return points[known[-1]] * rows / known[-1]


def seconds(points):
    """Of each number of rows, from points in µs."""
    return [0] + [between(points, rows) * 1e-6 for rows in range(1, 129)]


class Worker:
    """The time of a batch, where a number of steps run together at most; of points in µs, a step at a time and together."""

    def __init__(self, single, joined, steps_at_once=1):
        self.steps_at_once = steps_at_once
        self.single, self.joined = seconds(single), seconds(joined)

    def run(self, batch, left):
        """Runs the next steps of all in `batch`, and says how long that takes."""
        together = max(1, min(self.steps_at_once, STEP_ROWS // len(batch), max(left[one] for one in batch)))
        times, took = self.joined if together > 1 else self.single, 0.0
        for _ in range(together):
            running = [one for one in batch if left[one] > 0]
            took += times[len(running)]
            for one in running:
                left[one] -= 1
        return took


def cellular(worker, lengths, rows_at_most, shortest, arrivals):
    """When each ends: before every batch, the requests that have arrived are ordered, and the first run."""
    now, came, left, ends, here = 0.0, 0, list(lengths), [0.0] * len(lengths), []
    while came < len(arrivals) or here:
        while came < len(arrivals) and arrivals[came] <= now:
            here.append(came)
            came += 1
        if not here:
            now = arrivals[came]
            continue
        order = sorted(here, key=lambda one: left[one]) if shortest else here
        batch = order[:rows_at_most]
        now += worker.run(batch, left)
        for one in batch:
            if left[one] == 0:
                ends[one] = now
        here = [one for one in here if left[one] > 0]
    return ends


def grouped(most, arrivals, run):
    """When each ends: waiting requests are one group, of a limited size, and all wait for as long as `run` says of it."""
    now, came, ends = 0.0, 0, [0.0] * len(arrivals)
    while came < len(arrivals):
        now = max(now, arrivals[came])
        group = []
        while came < len(arrivals) and arrivals[came] <= now and len(group) < most:
            group.append(came)
            came += 1
        now += run(group)
        for one in group:
            ends[one] = now
    return ends


def to_the_end(worker, group, left):
    """What a group takes, level by level."""
    took = 0.0
    while running := [one for one in group if left[one] > 0]:
        took += worker.run(running, left)
    return took


def merge(worker, lengths, rows_at_most, arrivals):
    """When each ends: a group runs until its longest is done."""
    return grouped(rows_at_most, arrivals, lambda group: to_the_end(worker, group, {one: lengths[one] for one in group}))


def paper(source):
    """A log-normal with a mean of 24 and 99 % below 100, none above 330."""
    while True:
        length = math.ceil(math.exp(source.gauss(2.888, 0.734)))
        if length <= 330:
            return length


def column(named):
    path, _, name = named.partition(":")
    with open(path, newline="", encoding="utf-8") as file:
        return [int(row[name]) for row in csv.DictReader(file)]


def percentile(latencies, of):
    return 1e3 * sorted(latencies)[min(len(latencies) - 1, int(of * len(latencies)))]


def policies(worker, step_by_step, lengths):
    """From when all came to when each ended."""
    ended = {f"merge {rows}": partial(merge, worker, lengths, rows) for rows in (16, 32, 64, 128)}
    ended |= {f"level {rows}": partial(merge, step_by_step, lengths, rows) for rows in (16, 32, 64, 128)}
    for rows in (4, 8, 16, 64):
        for name, shortest in (("arrival", False), ("shortest", True)):
            ended[f"{name} {rows}"] = partial(cellular, worker, lengths, rows, shortest)
    ended["alone"] = lambda arrivals: [came + steps * worker.joined[1] for came, steps in zip(arrivals, lengths)]
    return ended


def latencies(ended, rate):
    source = random.Random(2)
    arrivals, now = [], 0.0
    for _ in range(REQUESTS):
        now += source.expovariate(rate)
        arrivals.append(now)
    return [end - came for end, came in zip(ended(arrivals), arrivals)][WARM_UP:]


def report(ended, rate, baselines):
    """Prints the latencies of each policy, and its p90 beside that of each baseline with its best batch."""
    of = {name: latencies(of_policy, rate) for name, of_policy in ended.items()}
    best = {
        policy: min(percentile(those, 0.9) for name, those in of.items() if name.startswith(policy))
        for policy in baselines
    }
    for name, those in of.items():
        p50, p90, p99 = (percentile(those, part) for part in (0.5, 0.9, 0.99))
        beside = "".join(f"  {100 * (p90 / those - 1):+5.0f} % of {policy}" for policy, those in best.items())
        print(f"  {name:12} p50 {p50:7.1f}  p90 {p90:7.1f}  p99 {p99:7.1f}{beside}")


def simulate(workers, rate, lengths):
    print(f"{rate:.0f} a second, {sum(lengths) / len(lengths):.1f} steps on average")
    report(policies(*workers, lengths), rate, ("merge", "level"))


def keeps(ended, rate, limit):
    return percentile(latencies(ended, rate), 0.99) <= limit


def within(workers, times, lengths, peak):
    """The rates that leave p99 within a multiple of the mean request alone."""
    worker, _ = workers
    limit = 1e3 * times * worker.joined[1] * sum(lengths) / len(lengths)
    print(f"p99 of {limit:.1f} ms")
    for name, ended in policies(*workers, lengths).items():
        low, high = 1.0, peak
        if not keeps(ended, low, limit):
            print(f"  {name:12} at no rate")
            continue
        if keeps(ended, high, limit):
            print(f"  {name:12} {high:.0f} a second, all that full batches bear, or more")
            continue
        while high - low > 3:
            rate = (low + high) / 2
            low, high = (rate, high) if keeps(ended, rate, limit) else (low, rate)
        print(f"  {name:12} {low:.0f} a second")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="zen-4", help="the machine kind of the times of cells")
    parser.add_argument("--precision", choices=("f32", "int8"), default="f32")
    parser.add_argument("--steps-at-once", type=int, choices=(4, 8), default=4)
    parser.add_argument("--lengths", metavar="FILE:COLUMN")
    parser.add_argument("--within", metavar="TIMES", type=float, help="bound p99 by this multiple of the mean request alone")
    parser.add_argument("rates", metavar="RATE", type=float, nargs="*", help="requests a second")
    given = parser.parse_args()
    of_file = column(given.lengths) if given.lengths else None
    source, times = random.Random(1), measured(given.machine, "lstm", given.precision)
    if not {1, given.steps_at_once} <= times.keys():
        parser.error(f"{given.machine} has no times of {given.steps_at_once} steps at once in {given.precision}")
    worker = Worker(times[1], times[given.steps_at_once], given.steps_at_once)
    workers = worker, Worker(times[1], times[4])
    lengths = [source.choice(of_file) if of_file else paper(source) for _ in range(REQUESTS)]
    peak = FULL / worker.joined[FULL] * REQUESTS / sum(lengths)
    if given.within is not None:
        if given.rates or given.within <= 0:
            parser.error("--within takes a number above 0, and finds the rates by itself")
        within(workers, given.within, lengths, peak)
        return
    for rate in given.rates or [load * peak for load in LOADS]:
        simulate(workers, rate, lengths)


if __name__ == "__main__":
    main()
