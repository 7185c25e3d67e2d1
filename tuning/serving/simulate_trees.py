#!/usr/bin/env python3
"""As simulate.py, for trees: what order and batch size give by themselves, where batches take the measured times.

    tuning/serving/simulate_trees.py --trees FILE [--machine KIND] [--precision int8] [RATE...]

A tree is a batch of leaves and then its internal nodes, height after height; all of a height are ready when all below
are done. `merge` collects the waiting requests and runs them height by height; `arrival` and `shortest` are cellular batching in its
two orders: full batches first, of nodes before those of leaves; else both in turn. `alone` is a tree that shares the
machine with no other. RATE: half and four fifths of what full batches bear, unless said. Printed are p50, p90 and p99 in
ms, and p90 beside that of `merge` with its best batch.
"""

import argparse
import json
import random
from functools import partial

from simulate import FULL, LOADS, REQUESTS, between, grouped, measured, report

MOST_ROWS = 128


class Times:
    """Seconds of a batch by rows: of leaves at `[0]`, of internal nodes at `[1]`."""

    def __init__(self, machine, precision):
        rows = range(1, MOST_ROWS + 1)
        cells = [measured(machine, cell, precision)[1] for cell in ("leaf", "node")]
        self.of = [[0] + [between(cell, n) * 1e-6 for n in rows] for cell in cells]

    def all_of(self, cell, rows, at_most):
        """Of a number of rows in full batches and a rest."""
        full, rest = divmod(rows, at_most)
        return full * self.of[cell][at_most] + self.of[cell][rest]


def heights(heads):
    """How many leaves, and internal nodes of each height, the binary tree of a sentence has: heads are joined with those
    that depend on them to the right, the nearest first, and then with those to the left."""
    children = [[] for _ in heads]
    for word, head in enumerate(heads):
        if head > 0:
            children[head - 1].append(word)
    counts = [len(heads)]

    def height(word):
        own = 0
        right = [child for child in children[word] if child > word]
        left = [child for child in reversed(children[word]) if child < word]
        for child in right + left:
            own = max(own, height(child)) + 1
            counts.extend([0] * (own + 1 - len(counts)))
            counts[own] += 1
        return own

    height(heads.index(0))
    return counts


def cellular(times, trees, at_most, shortest, arrivals):
    """When each ends."""
    now, came, ends = 0.0, 0, [0.0] * len(trees)
    had = set()  # cells that had their turn
    left = [list(tree) for tree in trees]  # of each height
    at = [0] * len(trees)  # the height that is ready
    ready = ([], [])  # trees with ready leaves, and with ready nodes
    while came < len(arrivals) or ready[0] or ready[1]:
        while came < len(arrivals) and arrivals[came] <= now:
            ready[0].append(came)
            came += 1
        rows = [sum(left[tree][at[tree]] for tree in trees_ready) for trees_ready in ready]
        if not any(rows):
            now = arrivals[came]
            continue
        cell = next((cell for cell in (1, 0) if rows[cell] >= at_most), None)
        if cell is None:
            cell = next((cell for cell in (1, 0) if rows[cell] and cell not in had), None)
        if cell is None:
            had.clear()
            cell = 1 if rows[1] else 0
        had.add(cell)
        order = list(ready[cell])
        if shortest:
            # Leaves got ready when nothing of their tree had been taken.
            order.sort(key=lambda tree: sum((left if cell else trees)[tree]))
        room = at_most
        batch = []
        for tree in order:
            taken = min(room, left[tree][at[tree]])
            if taken == 0:
                break
            room -= taken
            batch.append((tree, taken))
        now += times.of[cell][at_most - room]
        for tree, taken in batch:
            left[tree][at[tree]] -= taken
            if left[tree][at[tree]] == 0:
                ready[cell].remove(tree)
                at[tree] += 1
                if at[tree] == len(left[tree]):
                    ends[tree] = now
                else:
                    ready[1].append(tree)
                    # In order of arrival.
                    ready[1].sort()
    return ends


def merge(times, trees, at_most, arrivals):
    """When each ends: a group runs until its highest is done."""

    def run(group):
        seconds = 0.0
        for height in range(max(len(trees[one]) for one in group)):
            rows = sum(trees[one][height] for one in group if height < len(trees[one]))
            seconds += times.all_of(min(height, 1), rows, at_most)
        return seconds

    return grouped(at_most, arrivals, run)


def alone(times, trees, arrivals):
    return [
        came + sum(times.all_of(min(height, 1), rows, MOST_ROWS) for height, rows in enumerate(tree))
        for came, tree in zip(arrivals, trees)
    ]


def policies(times, trees):
    """From when all came to when each ended."""
    ended = {f"merge {rows}": partial(merge, times, trees, rows) for rows in (16, 32, 64, 128)}
    for rows in (4, 8, 16, 64):
        for name, shortest in (("arrival", False), ("shortest", True)):
            ended[f"{name} {rows}"] = partial(cellular, times, trees, rows, shortest)
    return ended | {"alone": partial(alone, times, trees)}


def simulate(times, rate, trees):
    words = sum(tree[0] for tree in trees) / len(trees)
    print(f"{rate:.0f} a second, {words:.1f} words, {sum(map(len, trees)) / len(trees):.1f} heights on average")
    report(policies(times, trees), rate, ("merge",))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", metavar="FILE", required=True, help="heads of words, a sentence a line")
    parser.add_argument("--machine", default="zen-4", help="the machine kind of the times of cells")
    parser.add_argument("--precision", choices=("f32", "int8"), default="f32")
    parser.add_argument("rates", metavar="RATE", type=float, nargs="*", help="requests a second")
    given = parser.parse_args()
    with open(given.trees, encoding="utf-8") as file:
        of_file = [heights(json.loads(line)) for line in file]
    source, times = random.Random(1), Times(given.machine, given.precision)
    trees = [source.choice(of_file) for _ in range(REQUESTS)]
    full = [cell[FULL] / FULL for cell in times.of]
    peak = REQUESTS / sum(tree[0] * full[0] + sum(tree[1:]) * full[1] for tree in trees)
    for rate in given.rates or [load * peak for load in LOADS]:
        simulate(times, rate, trees)


if __name__ == "__main__":
    main()
