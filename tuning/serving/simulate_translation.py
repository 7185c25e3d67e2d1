#!/usr/bin/env python3
"""As simulate.py, of encoders and decoders: what batching gives by itself, where nothing costs but the cells.

    tuning/serving/simulate_translation.py --lengths FILE:SOURCE,TARGET [--machine KIND] RATE...

Requests come at Poisson times, with the lengths of two columns of a CSV file. `merge` collects the waiting requests, encodes them
all and then decodes them all; `level` does so a step at a time, `merge` with several steps of few rows in an encoder's batch.
`worth` is cellular batching that runs encoders or decoders by the value of their rows (as `crates/scheduler/src/policy` does); `turns`
alternates. `alone` is a request that shares the machine with no other. Printed are p50, p90 and p99 in ms, and p90 beside that of
`merge` and of `level`, each with its best batch. `--source` and `--target` multiply the lengths.
"""

import argparse
import csv
import random
from functools import partial

from simulate import REQUESTS, Worker, grouped, measured, report, seconds, to_the_end

AT_ONCE = 4
MOST = 128
# As the engine has them.
WEIGHT, PATIENCE, LATE = 0.25, 8, 4096


class Turns:
    """Whose turn it is, of encoders (0) and decoders (1)."""

    def __init__(self):
        self.steps, self.rows, self.passed = [None, None], [0, 0], [0, 0]

    def next(self, ready):
        if not all(ready):
            chosen = 0 if ready[0] else 1
        elif None in self.steps:
            chosen = self.steps.index(None)
        else:
            worth = [(passed // PATIENCE, n * n / (step * rows))
                     for n, step, rows, passed in zip(ready, self.steps, self.rows, self.passed)]
            chosen = 0 if worth[0] > worth[1] else 1
        other = 1 - chosen
        self.passed[chosen], self.passed[other] = 0, self.passed[other] + 1 if ready[other] else 0
        return chosen

    def measured(self, cell, steps, rows, took):
        step = took / steps
        before = self.steps[cell]
        self.steps[cell] = step if before is None else before + (step - before) * (1 - (1 - WEIGHT) ** steps)
        self.rows[cell] += rows
        if self.rows[cell] > LATE:
            self.rows = [rows / 2 for rows in self.rows]


def cellular(encoder, decoding, lengths, by_worth, arrivals):
    """When each ends."""
    now, came, ends = 0.0, 0, [0.0] * len(lengths)
    sources, targets = [source for source, _ in lengths], [target for _, target in lengths]
    encoders, decoders, turns, last = [], [], Turns(), 0
    while came < len(arrivals) or encoders or decoders:
        if not encoders and not decoders:
            now = max(now, arrivals[came])
        while came < len(arrivals) and arrivals[came] <= now:
            encoders.append(came)
            came += 1
        ready = [min(len(encoders), MOST), min(len(decoders), MOST)]
        if by_worth or not all(ready):
            chosen = turns.next(ready)
        else:
            chosen = 1 - last
        last = chosen
        begin = now
        if chosen == 0:
            batch = encoders[:MOST]
            before, longest = sum(sources[one] for one in batch), max(sources[one] for one in batch)
            now += encoder.run(batch, sources)
            rows, steps = before - sum(sources[one] for one in batch), longest - max(sources[one] for one in batch)
            decoders += [one for one in batch if sources[one] == 0]
            encoders = [one for one in encoders if sources[one] > 0]
        else:
            batch = decoders[:MOST]
            now += decoding[len(batch)]
            rows, steps = len(batch), 1
            for one in batch:
                targets[one] -= 1
                ends[one] = now
            decoders = [one for one in decoders if targets[one] > 0]
        turns.measured(chosen, steps, rows, now - begin)
    return ends


def merge(encoder, decoding, lengths, most, arrivals):
    """When each ends: a group of a limited size, until its longest is done."""

    def run(group):
        took = to_the_end(encoder, group, {one: lengths[one][0] for one in group})
        for step in range(max(lengths[one][1] for one in group)):
            took += decoding[sum(lengths[one][1] > step for one in group)]
        return took

    return grouped(most, arrivals, run)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", metavar="FILE:SOURCE,TARGET", required=True)
    parser.add_argument("--machine", default="emerald-rapids", help="the machine kind of the times of cells")
    parser.add_argument("--source", type=float, default=1, help="times that sources are longer")
    parser.add_argument("--target", type=float, default=1, help="times that targets are longer")
    parser.add_argument("rates", metavar="RATE", type=float, nargs="+", help="requests a second")
    given = parser.parse_args()
    path, _, columns = given.lengths.partition(":")
    source, target = columns.split(",")
    with open(path, newline="", encoding="utf-8") as file:
        words = [(int(row[source]) * given.source, int(row[target]) * given.target) for row in csv.DictReader(file)]
    pairs = [(max(1, round(source)), max(1, round(target))) for source, target in words]
    chosen = random.Random(1)
    lengths = [chosen.choice(pairs) for _ in range(REQUESTS)]
    encoder, decoding = measured(given.machine, "encoder"), seconds(measured(given.machine, "decoder")[1])
    several, step_by_step = Worker(encoder[1], encoder[AT_ONCE], AT_ONCE), Worker(encoder[1], encoder[1])
    ended = {
        f"{name} {rows}": partial(merge, encoder, decoding, lengths, rows)
        for name, encoder in (("merge", several), ("level", step_by_step))
        for rows in (16, 32, 64, MOST)
    }
    ended |= {
        "turns": partial(cellular, several, decoding, lengths, False),
        "worth": partial(cellular, several, decoding, lengths, True),
        "alone": lambda arrivals: [
            came + source * several.joined[1] + target * decoding[1] for came, (source, target) in zip(arrivals, lengths)
        ],
    }
    for rate in given.rates:
        print(f"{rate:.0f} a second")
        report(ended, rate, ("merge", "level"))


if __name__ == "__main__":
    main()
