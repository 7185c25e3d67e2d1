#!/usr/bin/env python3
"""As simulate.py, of encoders and decoders: what batching gives by itself, where nothing costs but the cells.

    tuning/serving/simulate_translation.py --lengths FILE:SOURCE,TARGET [--times quick] RATE...

Requests come at Poisson times, with the lengths of two columns of a CSV file. `merge` collects who waits, encodes them all and
then decodes them all; `level` does so a step at a time, `merge` with several steps of few rows in an encoder's batch. `arrival`
is cellular batching: a batch of decoders and one of encoders in turn, of whoever is there. `waiting` is the same, but while
anything is decoded, encoders wait for three others, for up to 20 ms after the first of them came, which no policy of ours does.
`alone` is a request that shares the machine with nobody. Printed are p50, p90 and p99 in ms, and p90 beside that of `merge` and
of `level`, each with its best batch.
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
}
AT_ONCE = 4
MOST = 128
ENOUGH, PATIENCE = 4, 0.02


def cellular(encoder, decoding, lengths, waits, arrivals):
    """When each ends."""
    now, came, ends = 0.0, 0, [0.0] * len(lengths)
    sources, targets = [source for source, _ in lengths], [target for _, target in lengths]
    encoders, decoders = [], []
    while came < len(arrivals) or encoders or decoders:
        if not encoders and not decoders:
            now = max(now, arrivals[came])
        if decoders:
            batch = decoders[:MOST]
            now += decoding[len(batch)]
            for one in batch:
                targets[one] -= 1
                ends[one] = now
            decoders = [one for one in decoders if targets[one] > 0]
        while came < len(arrivals) and arrivals[came] <= now:
            encoders.append(came)
            came += 1
        wait = waits and decoders and len(encoders) < ENOUGH and encoders and now - arrivals[encoders[0]] < PATIENCE
        if encoders and not wait:
            batch = encoders[:MOST]
            now += encoder.run(batch, sources)
            decoders += [one for one in batch if sources[one] == 0]
            encoders = [one for one in encoders if sources[one] > 0]
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
    parser.add_argument("rates", metavar="RATE", type=float, nargs="+", help="requests a second")
    given = parser.parse_args()
    path, _, columns = given.lengths.partition(":")
    source, target = columns.split(",")
    with open(path, newline="", encoding="utf-8") as file:
        pairs = [(max(1, int(row[source])), max(1, int(row[target]))) for row in csv.DictReader(file)]
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
        "arrival": partial(cellular, several, decoding, lengths, False),
        "waiting": partial(cellular, several, decoding, lengths, True),
        "alone": lambda arrivals: [
            came + source * several.joined[1] + target * decoding[1] for came, (source, target) in zip(arrivals, lengths)
        ],
    }
    for rate in given.rates:
        print(f"{rate:.0f} a second")
        report(ended, rate, ("merge", "level"))


if __name__ == "__main__":
    main()
