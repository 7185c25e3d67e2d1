"""Published models in ONNX Runtime at its default settings, without and with gatestream's execution provider.

    python3 benches/references/published/provider.py --library target/release/libgatestream_onnxruntime.so

Right answers first, then times. Both processes have ONNX Runtime's defaults; while one is timed, the other is stopped.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import judge  # noqa: E402
import onnxruntime  # noqa: E402
import packages  # noqa: E402
import shares  # noqa: E402
from answers import in_order, read_outputs, reference_of, write_input  # noqa: E402
from peers import Peer, cores  # noqa: E402
from report import records  # noqa: E402
from rounds import BARE, PATIENCE, Window, Worker, race  # noqa: E402

PLAIN, PROVIDER = "onnxruntime", "provider"


def arguments() -> argparse.Namespace:
    target = HERE.parents[2] / "target"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True, metavar="FILE", help="the provider's shared library")
    parser.add_argument("--rows", metavar="REGEX", help="only files with this in their name")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="cores; 1: ONNX Runtime with one thread (2)")
    parser.add_argument("--rounds", type=int, default=7, metavar="R", help="turns of each on a file (7)")
    parser.add_argument("--window", type=float, default=0.15, metavar="S", help="seconds timed per turn (0.15)")
    parser.add_argument("--check", action="store_true", help="judge the answers, take no times")
    parser.add_argument("--record", action="store_true", help="a CSV into benches/record, by machine and day")
    parser.add_argument("--cache", type=Path, default=target / "published", metavar="FOLDER")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    onnxruntime.set_default_logger_severity(4)
    program = (sys.executable, str(HERE.parent / "workers" / "with_onnxruntime_provider.py"))
    library = {"GATESTREAM_PROVIDER": str(given.library.resolve())}
    peers = [Peer(PLAIN, program), Peer(PROVIDER, program, environment=library)]
    workers = [Worker(peer, cores(given.threads)) for peer in peers]
    rows, order = [], random.Random(1)
    print(f"{'file':<22} {'recurrent':>9} {'nodes':>5} {'differs':>9} {'plain ms':>9} {'with ms':>9} {'ratio':>6}")
    try:
        for file in packages.FILES:
            if not given.rows or re.search(given.rows, file.name):
                rows.append(compare(file, workers, given, order))
    finally:
        for worker in workers:
            worker.end()
    wrong = [row["file"] for row in rows if row["right"] != "yes"]
    print(f"\n{len(rows)} files; wrong: {', '.join(wrong) or 'none'}")
    if given.record:
        records.write(records.folder() / "provider.csv", records.stamp("benches/references/published/provider.py"), rows)
    return 1 if wrong else 0


def compare(file: packages.File, workers: list[Worker], given: argparse.Namespace, order: random.Random) -> dict[str, str]:
    """Runs, judges and times one file; a row of the record."""
    model = packages.place(file, given.cache)
    arrays = file.inputs(model)
    share = shares.recurrent(model, arrays)
    with tempfile.TemporaryDirectory(prefix="gatestream-provider-") as name:
        folder, answers, claimed = Path(name), {}, 0
        tensors = [write_input(folder / f"input-{at}", *item) for at, item in enumerate(arrays.items())]
        for worker in workers:
            request = {"do": "load", "model": str(model), "inputs": tensors, "threads": given.threads}
            facts = worker.ask(request, PATIENCE)["ok"]
            worker.ask({"do": "output", "path": str(folder / "output")}, PATIENCE)
            answers[worker.peer.name] = read_outputs(folder / "output", facts["outputs"])
            claimed = facts["claimed"]
        theirs = answers[PLAIN]
        reference = reference_of(file, model, arrays, theirs, given.cache, folder)
        verdict = judge.judge(in_order(answers[PROVIDER], theirs), list(theirs.values()), reference, file.int8)
        times = {}
        if not given.check:
            times, _ = race(workers, Window(given.rounds, given.window), order)
            times.pop(BARE, None)
    medians = {name: 1e3 * times[name].median if name in times else None for name in (PLAIN, PROVIDER)}
    ratio = medians[PLAIN] / medians[PROVIDER] if times else None
    shown = " ".join(f"{medians[name] or 0:>9.3f}" for name in (PLAIN, PROVIDER))
    mark = "" if verdict.right else "  WRONG"
    print(f"{file.name:<22} {100 * share:>7.0f} % {claimed:>5} {verdict.difference:>9.1e} {shown} {ratio or 0:>6.2f}{mark}", flush=True)
    return {
        "file": file.name,
        "package": file.package,
        "recurrent_share": f"{share:.3f}",
        "claimed": str(claimed),
        "difference": f"{verdict.difference:.2e}",
        "right": "yes" if verdict.right else "no",
        "onnxruntime_median_ms": f"{medians[PLAIN]:.4f}" if times else "",
        "provider_median_ms": f"{medians[PROVIDER]:.4f}" if times else "",
        "ratio": f"{ratio:.3f}" if ratio else "",
    }


if __name__ == "__main__":
    sys.exit(main())
