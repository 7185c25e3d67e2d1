"""Published models with recurrent layers, whole, by gatestream and by ONNX Runtime: right answers first, then times.

Called by benches/references/run published, which installs and builds what it needs.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import judge  # noqa: E402
import onnxruntime  # noqa: E402
import packages  # noqa: E402
import shares  # noqa: E402
from answers import in_order, read_outputs, reference_of, write_input  # noqa: E402
from peers import OURS, Peer, cores  # noqa: E402
from report import records  # noqa: E402
from rounds import BARE, PATIENCE, Ended, Refused, Timing, Window, Worker, race  # noqa: E402

THEIRS = "onnxruntime"


@dataclass
class Result:
    """One file: the judgement, or why it does not run; the times of all workers."""

    file: packages.File
    share: float
    verdict: judge.Verdict | None = None
    refused: str = ""
    facts: dict = field(default_factory=dict)
    times: dict[str, Timing] = field(default_factory=dict)

    def best(self, library: str) -> float | None:
        """The median of the library's fastest number of threads, in seconds."""
        found = [timing.median for name, timing in self.times.items() if name.split(" ")[0] == library]
        return min(found, default=None)

    @property
    def ratio(self) -> float | None:
        """ONNX Runtime's time over ours, each at its best."""
        ours, theirs = self.best(OURS), self.best(THEIRS)
        return theirs / ours if ours and theirs else None


def arguments() -> argparse.Namespace:
    root = HERE.parents[2]
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    parser = argparse.ArgumentParser(prog="benches/references/run published", description=__doc__)
    parser.add_argument("--rows", metavar="REGEX", help="only files with this in their name")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="both are timed with 1 and with N (2)")
    parser.add_argument("--rounds", type=int, default=7, metavar="R", help="turns of each library on a file (7)")
    parser.add_argument("--window", type=float, default=0.15, metavar="S", help="seconds timed per turn (0.15)")
    parser.add_argument("--tune-seconds", type=float, default=10.0, metavar="S",
                        help="ours: for each file; 0: plans are estimated (10)")  # fmt: skip
    parser.add_argument("--check", action="store_true", help="judge the answers, take no times")
    parser.add_argument("--list", action="store_true", help="print the files and stop")
    parser.add_argument("--record", action="store_true", help="a CSV into benches/record, by machine and day")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--cache", type=Path, default=target / "published", metavar="FOLDER",
                        help="where packages are kept")  # fmt: skip
    parser.add_argument("--rust", type=Path, default=target / "references" / "release", metavar="FOLDER",
                        help="where rust-peers' programs are")  # fmt: skip
    parser.add_argument("--no-rust-peers", action="store_true", help="no other Rust library takes part here anyway")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    files = [file for file in packages.FILES if not given.rows or re.search(given.rows, file.name)]
    if given.list:
        print(*(f"{file.name:<24} {file.package}" for file in files), sep="\n")
        return 0
    path = records.folder() / "published.csv" if given.record else given.csv
    onnxruntime.set_default_logger_severity(4)
    pinned = cores(given.threads)
    workers = [
        Worker(peer, pinned)
        for threads in sorted({1, given.threads})
        for peer in (
            Peer(f"{THEIRS} {threads}", (sys.executable, str(HERE.parent / "workers" / "with_onnxruntime_file.py"))),
            # The bare loop beside the rounds runs in the worker that has the plain name.
            Peer(OURS if threads == given.threads else f"{OURS} {threads}", (str(given.rust / "ours_file"),)),
        )
    ]
    results, order = [], random.Random(1)
    print(f"{'file':<22} {'recurrent':>9} {'differs':>9} {'ORT ms':>9} {'ours ms':>9} {'ORT/ours':>8}", flush=True)
    try:
        for file in files:
            results.append(compare(file, workers, given, order))
            print(line(results[-1]), flush=True)
    finally:
        for worker in workers:
            worker.end()
    ran = [result for result in results if result.verdict]
    wrong = [result.file.name for result in ran if not result.verdict.right]
    print(f"\n{len(ran)} of {len(results)} run whole; wrong: {', '.join(wrong) or 'none'}")
    if path:
        write(path, results)
    return 1 if wrong else 0


def compare(file: packages.File, workers: list[Worker], given: argparse.Namespace, order: random.Random) -> Result:
    """Fetches, runs, judges and times one file."""
    model = packages.place(file, given.cache)
    arrays = file.inputs(model)
    result = Result(file, shares.recurrent(model, arrays))
    with tempfile.TemporaryDirectory(prefix="gatestream-published-") as name:
        folder, answers, ready = Path(name), {}, []
        tensors = [write_input(folder / f"input-{at}", *item) for at, item in enumerate(arrays.items())]
        for worker in workers:
            threads = int(worker.peer.name.partition(" ")[2] or given.threads)
            request = {"do": "load", "model": str(model), "inputs": tensors, "threads": threads}
            if worker.peer.name.startswith(OURS) and not given.check:
                request["tune_seconds"] = given.tune_seconds
            try:
                facts = worker.ask(request, PATIENCE)["ok"]
                worker.ask({"do": "output", "path": str(folder / "output")}, PATIENCE)
            except (Refused, Ended) as error:
                if not worker.peer.name.startswith(OURS):
                    raise SystemExit(f"{file.name}: {worker.peer.name}: {error}") from None
                result.refused = str(error).replace(str(model), model.name)
                continue
            if worker.peer.name == OURS:
                result.facts = facts
            answers[worker.peer.name] = read_outputs(folder / "output", facts["outputs"])
            ready.append(worker)
        if OURS in answers:
            theirs = answers[f"{THEIRS} 1"]
            reference = reference_of(file, model, arrays, theirs, given.cache, folder)
            verdicts = [judge.judge(in_order(answers[name], theirs), list(theirs.values()), reference, file.int8)
                        for name in answers if name.startswith(OURS)]  # fmt: skip
            result.verdict = max(verdicts, key=lambda verdict: (not verdict.right, verdict.difference))
        if not given.check and not result.refused:
            result.times, failed = race(ready, Window(given.rounds, given.window), order)
            result.times.pop(BARE, None)
            result.refused = "; ".join(failed.values())
    return result


def line(result: Result) -> str:
    """A line of the table on the screen."""
    start = f"{result.file.name:<22} {100 * result.share:>7.0f} %"
    if result.verdict is None:
        return f"{start}   {result.refused}"
    mark = "" if result.verdict.right else "  WRONG"
    if not result.times:
        return f"{start} {result.verdict.difference:>9.1e}{mark}"
    ours, theirs = 1e3 * (result.best(OURS) or 0), 1e3 * (result.best(THEIRS) or 0)
    return f"{start} {result.verdict.difference:>9.1e} {theirs:>9.3f} {ours:>9.3f} {result.ratio or 0:>8.2f}{mark}"


def write(path: Path, results: list[Result]) -> None:
    """The record."""
    names = list(dict.fromkeys(name for result in results for name in result.times))
    notes = records.stamp("benches/references/run published")
    records.write(path, notes, (csv_row(result, names) for result in results))


def csv_row(result: Result, names: list[str]) -> dict[str, str]:
    """A row of the record."""
    verdict, ratio = result.verdict, result.ratio
    judged = (verdict.difference, verdict.ours, verdict.theirs) if verdict else (None, None, None)
    errors = ["" if value is None else f"{value:.2e}" for value in judged]
    medians = {
        f"{name.replace(' ', '_')}_median_ms": f"{1e3 * result.times[name].median:.4f}" if name in result.times else ""
        for name in names
    }
    return {
        "file": result.file.name,
        "package": result.file.package,
        "recurrent_share": f"{result.share:.3f}",
        "difference": errors[0],
        "error": errors[1],
        "onnxruntime_error": errors[2],
        "right": "" if verdict is None else "yes" if verdict.right else "no",
        "ratio": f"{ratio:.3f}" if ratio else "",
        **medians,
        "refused": result.refused,
    }


if __name__ == "__main__":
    sys.exit(main())
