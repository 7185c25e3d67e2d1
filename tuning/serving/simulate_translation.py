#!/usr/bin/env python3
"""As simulate.py, of encoders and decoders: what batching gives by itself, where nothing costs but the cells.

    tuning/serving/simulate_translation.py --lengths FILE:SOURCE,TARGET [--times quick] RATE...

Requests come at Poisson times, with the lengths of two columns of a CSV file. `merge` collects who waits, encodes them all and
then decodes them all; `level` does so a step at a time, `merge` with several steps of few rows in an encoder's batch. `worth` is
cellular batching: of encoders and decoders, of whoever is there, those whose rows are worth more (`src/serve/policy/turns.rs`);
`turns` is the same with each of them in turn. `alone` is a request that shares the machine with nobody. Printed are p50, p90
and p99 in ms, and p90 beside that of `merge` and of `level`, each with its best batch. `--source` and `--target` make all
sources and targets so many times as long.
"""

import argparse
import csv
import random
from functools import partial

from simulate import REQUESTS, Worker, grouped, report, seconds, to_the_end

# µs by rows: an encoder's step, one at a time and four at once, and a decoder's; LSTM 1024 from 1024 inputs and 30,000 words in
# f32, Emerald Rapids in its two states, `load seq2seq --calibrate --batch 128` (12:06 and 15:36 UTC, the mean of two runs) and
# `bench` (four at once).
TIMES = {
    "slow": (
        {1: 604, 2: 652, 4: 742, 8: 980, 16: 1356, 32: 2542, 64: 4938, 128: 9852},
        {1: 372, 2: 423, 4: 511, 8: 788},
        {1: 1263, 2: 1358, 4: 1619, 8: 2273, 16: 3339, 32: 6282, 64: 12295, 128: 23886},
    ),
    "quick": (
        {1: 542, 2: 623, 4: 635, 8: 820, 16: 1044, 32: 2049, 64: 3504, 128: 6870},
        {1: 354, 2: 416, 4: 443, 8: 682},
        {1: 1271, 2: 1326, 4: 1441, 8: 1887, 16: 2493, 32: 4488, 64: 8502, 128: 16540},
    ),
    # Few rows in one pass (24 November): the encoder's steps as `bench` had them, the decoder's less by as much.
    "passes": (
        {1: 530, 2: 560, 4: 565, 8: 587, 12: 637, 14: 722, 16: 941, 32: 1900, 64: 3400, 128: 6800},
        {1: 354, 2: 416, 4: 443, 8: 587},
        {1: 1271, 2: 1326, 4: 1441, 8: 1660, 14: 2150, 16: 2420, 32: 4400, 64: 8400, 128: 16400},
    ),
    # What that machine allows at all: bytes at 62 GB/s from the third level, or arithmetic at its peak (f32 338 GFLOP/s, int8 1378
    # GOP/s on two cores), whichever takes longer.
    "bound": (
        {1: 541, 10: 541, 16: 794, 128: 6349},
        {1: 338, 6: 338, 8: 397},
        {1: 1048, 11: 1048, 16: 1507, 128: 12058},
    ),
}
AT_ONCE = 4
MOST = 128
# As `policy/turns.rs` has them.
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
    """When each ends: a group of so many at most, until its longest is done."""

    def run(group):
        took = to_the_end(encoder, group, {one: lengths[one][0] for one in group})
        for step in range(max(lengths[one][1] for one in group)):
            took += decoding[sum(lengths[one][1] > step for one in group)]
        return took

    return grouped(most, arrivals, run)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", metavar="FILE:SOURCE,TARGET", required=True)
    parser.add_argument("--times", choices=TIMES, default="slow", help="of which state of the machine")
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
    single, joined, decoder = TIMES[given.times]
    several, step_by_step, decoding = Worker(single, single | joined, AT_ONCE), Worker(single, single), seconds(decoder)
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
