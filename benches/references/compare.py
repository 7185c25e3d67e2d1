#!/usr/bin/env python3
"""gatestream beside the libraries a user would pick instead, on the same weights, in turn.

Called by ./run, which installs and builds what it needs; or by itself where that is done.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import exact
import models
import reduced
import report
from peers import HERE, OURS, OURS_F32, Peer, cores, known
from precisions import PRECISIONS, Precision
from report import records
from rounds import BARE, Ended, Refused, Window, Worker, load, race
from suites import SUITES, Row, rows_of


def arguments() -> argparse.Namespace:
    root = HERE.parent.parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    parser = argparse.ArgumentParser(prog="benches/references/run", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=SUITES, help="which rows")
    parser.add_argument("--self-check", action="store_true", help="a few tiny rows: does the harness run here?")
    parser.add_argument("--precision", choices=PRECISIONS, help="of all libraries (f32); reduced: our f32 beside")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="cores, and threads of each library (2)")
    parser.add_argument("--rows", metavar="REGEX", help="only rows with this in their name")
    parser.add_argument("--peers", metavar="A,B", help="only these libraries (ours always)")
    parser.add_argument("--plan", choices=("tuned", "estimate"), default="tuned", help="ours: tune first, or estimate")
    parser.add_argument("--tune-seconds", type=float, default=10.0, metavar="S", help="at most, for each row (10)")
    parser.add_argument("--rounds", type=int, default=7, metavar="R", help="turns of each library on a row (7)")
    parser.add_argument("--window", type=float, default=0.15, metavar="S", help="seconds timed per turn (0.15)")
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="sweep: CSV of lengths for its ragged rows")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--record", action="store_true", help="the CSV goes into benches/record, by machine and day")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    parser.add_argument("--tensorflow-python", metavar="PATH", help="a Python that has TensorFlow")
    parser.add_argument("--no-rust-peers", action="store_true", help="without tract, rten and candle")
    parser.add_argument("--gatestream", type=Path, default=target / "release" / "gatestream", metavar="PROGRAM")
    parser.add_argument("--rust", type=Path, default=target / "references" / "release", metavar="FOLDER",
                        help="where rust-peers' programs are")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the order of turns")
    given = parser.parse_args()
    if bool(given.suite) == given.self_check:
        parser.error("give a suite or --self-check")
    if given.record and (given.csv or given.self_check):
        parser.error("--record: with a suite, and without --csv")
    return given


def main() -> int:
    given = arguments()
    if given.self_check:
        given.rounds, given.window, given.tune_seconds = 2, 0.01, 0.5
    rows = rows_of("self-check" if given.self_check else given.suite, given.lengths)
    rows = [row for row in rows if not given.rows or re.search(given.rows, row.name)]
    if not rows:
        raise SystemExit(f"--rows {given.rows}: no row has that in its name; --list prints the names")
    if given.list:
        print(*(f"{row.name:<36} {row.group:<24} {row.note}" for row in rows), sep="\n")
        return 0
    failed = run(given, PRECISIONS[given.precision or "f32"], rows)
    if given.self_check and not given.precision:
        # What reduced runs have of their own is the same in every row and precision.
        given.json = given.csv = None
        print()
        failed = max(failed, run(given, PRECISIONS["int8"], rows[:1]))
    return failed


def run(given: argparse.Namespace, precision: Precision, rows: list[Row]) -> int:
    """All of a table in one precision; 1 where our own answer is wrong or missing."""
    pinned = cores(given.threads)
    # Before anything is measured: it fails where the machine's kind is unknown.
    path = record_path(given, precision) if given.record else given.csv
    workers, skipped = start(chosen(given, precision), pinned)
    names = [worker.peer.name for worker in workers]
    stamp = stamp_of(given, precision, pinned, workers)
    for key, value in stamp.items():
        print(f"{key}: {', '.join(f'{k} {v}' for k, v in value.items()) if isinstance(value, dict) else value}")
    for name, why in skipped.items():
        print(f"skipped {name}: {why}")
    stamp["skipped"] = skipped
    table, results, order = report.Table(names), [], random.Random(given.seed)
    print("\n" + table.heading(), flush=True)
    try:
        for row in rows:
            result = compare(row, workers, given, pinned, order)
            results.append(result)
            print(table.line(result), flush=True)
    except KeyboardInterrupt:
        print("interrupted; what there is so far:")
    finally:
        for worker in workers:
            worker.end()
    peers = [name for name in names if name not in (OURS, OURS_F32)]
    more = report.means(results, peers) + report.ragged(results) + report.growth(results) + report.evenness(results)
    if precision.reduced:
        more = reduced.errors(results, names) + more + reduced.gains(results) + reduced.accuracy(results)
    print(*table.notes(), *more, sep="\n")
    if given.json:
        report.write_json(given.json, stamp, results)
    if path:
        report.write_csv(path, stamp, results, names)
    wrong = {(why, name) for result in results for name, why in result.wrong.items()}
    for kind in sorted({why for why, _ in wrong}):
        print(f"{kind} in at least one row: {', '.join(sorted(name for why, name in wrong if why == kind))}")
    ours = {name for name in names if name in (OURS, OURS_F32)}
    return 1 if ours & {name for _, name in wrong} or not all(ours <= set(result.times) for result in results) else 0


def record_path(given: argparse.Namespace, precision: Precision) -> Path:
    """The file of this run in benches/record."""
    threads = f"{given.threads}-thread{'s' if given.threads > 1 else ''}"
    parts = [given.suite, precision.name if precision.reduced else "", threads]
    return records.folder() / f"{'-'.join(filter(None, parts))}.csv"


def chosen(given: argparse.Namespace, precision: Precision) -> list[Peer]:
    """Those asked for; a name that there is no worker for is refused."""
    rust_peers = not given.no_rust_peers
    all_of_them = known(given.threads, given.rust, given.tensorflow_python, rust_peers, precision)
    if given.peers is None:
        return all_of_them
    wanted = [name.strip() for name in given.peers.split(",") if name.strip()]
    if unknown := set(wanted) - {peer.name for peer in all_of_them}:
        names = ", ".join(peer.name for peer in all_of_them)
        raise SystemExit(f"--peers: {', '.join(sorted(unknown))}: not known here; there are {names}")
    return [peer for peer in all_of_them if peer.name in wanted or peer.ours]


def start(peers: list[Peer], pinned: set[int]) -> tuple[list[Worker], dict[str, str]]:
    """A worker for each that is installed; the others by name, with the reason."""
    workers, skipped = [], {}
    for peer in peers:
        worker, why = Worker(peer, pinned), peer.missing()
        if why is None:
            try:
                worker.start()
            except Ended as error:
                why = str(error)
        if why is None:
            workers.append(worker)
        elif peer.name == OURS:
            raise SystemExit(f"{OURS}: {why}")
        else:
            skipped[peer.name] = without_folders(why)
    return workers, skipped


def compare(
    row: Row, workers: list[Worker], given: argparse.Namespace, pinned: set[int], order: random.Random
) -> report.Result:
    """One row: write, tune, load, check, race."""
    result = report.Result(row)
    with tempfile.TemporaryDirectory(prefix="gatestream-references-") as name:
        folder = Path(name)
        made = models.write(row, folder, {worker.peer.reads for worker in workers})
        expected = exact.exact(row, made.weights, made.values)
        lacking = made.lacking
        del made
        ready = []
        for worker in workers:
            peer = worker.peer
            why = peer.lacks(row.cell) or lacking.get(our_file(row) if peer.ours else peer.reads)
            if why:
                result.absent[peer.name] = why
                continue
            plan = None
            if peer.ours and given.plan == "tuned":
                plan = tuned(row, folder, given, peer, pinned)
            try:
                facts = load(worker, row.as_message(), folder, given.threads, plan)
                worker.ask({"do": "output", "path": str(folder / "output.f32")}, 60.0)
            except (Refused, Ended) as error:
                result.absent[peer.name] = without_folders(str(error))
                continue
            result.facts[peer.name] = facts
            result.was_to_be_tuned |= plan is not None
            error = exact.error(row, expected, np.fromfile(folder / "output.f32", np.float32))
            result.errors[peer.name] = error
            if wrong := PRECISIONS[peer.precision].judge(row, error):
                result.wrong[peer.name] = wrong
            ready.append(worker)
        window = Window(given.rounds, given.window)
        result.times, failed = race(ready, window, order)
        result.bare = result.times.pop(BARE, None)
        result.absent.update({name: without_folders(why) for name, why in failed.items()})
    return result


def our_file(row: Row) -> str:
    """Stacks that differ have no form in one state dict of PyTorch's."""
    return "safetensors" if len(row.stacks) == 1 else "onnx"


def tuned(row: Row, folder: Path, given: argparse.Namespace, ours: Peer, pinned: set[int]) -> Path:
    """What a user does once per model: `gatestream tune`, on the same cores. All workers are stopped."""
    plan, model = folder / f"{ours.precision}.plan", folder / models.FILES[our_file(row)]
    command = [str(given.gatestream), "tune", str(model), "--batch", str(row.batch), "--steps", str(row.steps),
               "--threads", str(given.threads), "--precision", ours.precision,
               "--seconds", str(given.tune_seconds), "-o", str(plan)]  # fmt: skip
    if row.lengths:
        command += ["--lengths", ",".join(map(str, row.lengths))]
    if not given.gatestream.exists():
        raise SystemExit(f"{given.gatestream} is not built (cargo build --release), or use --plan estimate")
    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, pinned)
    )
    if done.returncode != 0:
        raise SystemExit(f"{row.name}: gatestream tune: {done.stderr.strip()}")
    return plan


def without_folders(text: str) -> str:
    """Of absolute paths the last part only: where a folder lies on this machine says nothing to a reader,
    and temporary ones would make a footnote of their own for every row."""
    return re.sub(r"""(?<![\w./])(?:file://)?/(?:[^\s/'"]+/)+""", "", text)


def command() -> str:
    """What was called, of paths the last part only: all of ./run's arguments, or ours without it."""
    whole = os.environ.get("REFERENCES_COMMAND")
    program, given = ("compare.py", sys.argv[1:]) if whole is None else ("run", whole.splitlines())

    def name_only(argument: str) -> str:
        # No row has a slash in its name, so what has one is a path, perhaps behind `--option=`.
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        return option + equals + (Path(value).name if "/" in value else value)

    return shlex.join([f"benches/references/{program}", *map(name_only, given)])


def stamp_of(
    given: argparse.Namespace, precision: Precision, pinned: set[int], workers: list[Worker]
) -> dict:
    """What was run where: a result without it cannot be compared with another."""
    processor = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    return {
        **records.stamp(command()),
        "machine": f"{processor}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f} at the start",
        "cores": f"{sorted(pinned)}, {given.threads} threads, {given.plan} plan",
        "rounds": f"{given.rounds} of {given.window} s each, random order; {precision.name}; "
        f"tolerance {precision.tolerance} to f64",
        "versions": {worker.peer.name: worker.version for worker in workers},
    }


if __name__ == "__main__":
    sys.exit(main())
