"""Three applications with recurrent layers, on gatestream's layers and by other libraries: right answers first, then
times in turn, whole and layer by layer.

Called by tuning/applications/run, which installs and builds what it needs.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REFERENCES = HERE.parents[1] / "benches" / "references"
sys.path[:0] = [str(HERE), str(REFERENCES)]

import numpy as np  # noqa: E402
from modules import Application, applications  # noqa: E402
from peers import OURS, Peer, cores  # noqa: E402
from report import records  # noqa: E402
from rounds import BARE, PATIENCE, Timing, Window, Worker, race  # noqa: E402

NETWORK = "gatestream network"
# The difference of two float32 runs of the same formulas, in probabilities and similarities.
TOLERANCE = 1e-6


@dataclass
class Result:
    """One application: the differences from PyTorch's answers, and the times of all workers."""

    application: Application
    differences: dict[str, float] = field(default_factory=dict)
    times: dict[str, Timing] = field(default_factory=dict)
    layers: list[tuple[str, list[float]]] = field(default_factory=list)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tuning/applications/run", description=__doc__)
    parser.add_argument("--rows", metavar="REGEX", help="only applications with this in their name")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="all are timed with 1 and with N (2)")
    parser.add_argument("--rounds", type=int, default=9, metavar="R", help="turns of each library (9)")
    parser.add_argument("--window", type=float, default=0.2, metavar="S", help="seconds timed per turn (0.2)")
    parser.add_argument("--tune", type=float, default=4.0, metavar="S", help="seconds to tune each stack (4)")
    parser.add_argument("--record", action="store_true", help="CSV files into benches/record, by machine and day")
    parser.add_argument("--files", type=Path, required=True, metavar="FOLDER", help="what modules.py wrote")
    parser.add_argument("--worker", type=Path, required=True, metavar="FILE", help="the program applications_worker")
    parser.add_argument("--network", type=Path, metavar="FILE", help="the program ours_file; without it no `Network`")
    return parser.parse_args()


def workers(given: argparse.Namespace) -> list[Worker]:
    """All libraries, with one thread and with several."""
    python = sys.executable
    found = []
    for threads in sorted({1, given.threads}):
        openmp = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        onnxruntime = str(REFERENCES / "workers" / "with_onnxruntime_file.py")
        found += [
            Peer(f"pytorch {threads}", (python, str(HERE / "with_pytorch.py")), environment=openmp),
            Peer(f"onnxruntime {threads}", (python, onnxruntime)),
            Peer(f"openvino {threads}", (python, str(HERE / "with_openvino.py"))),
        ]
        if given.network:
            found.append(Peer(f"{NETWORK} {threads}", (str(given.network),)))
    found.append(Peer(OURS, (str(given.worker),)))
    return [Worker(peer, cores(given.threads)) for peer in found]


def compare(
    application: Application, everyone: list[Worker], given: argparse.Namespace, order: random.Random
) -> Result:
    """Loads, checks and times one application."""
    result = Result(application)
    expected = np.concatenate([answer.numpy().ravel() for answer in application.answers().values()])
    with tempfile.TemporaryDirectory(prefix="gatestream-applications-") as name:
        folder, inputs = Path(name), []
        for at, (input_name, tensor) in enumerate(application.inputs.items()):
            path, array = folder / f"input-{at}", tensor.numpy()
            path.write_bytes(array.tobytes())
            inputs.append(
                {"name": input_name, "type": str(array.dtype), "shape": list(array.shape), "file": str(path)}
            )
        for worker in everyone:
            ours = worker.peer.name == OURS
            model = given.files / f"{application.name}.{'safetensors' if ours else 'onnx'}"
            threads = given.threads if ours else int(worker.peer.name.rpartition(" ")[2])
            request = {"do": "load", "model": str(model), "inputs": inputs, "threads": threads}
            worker.ask(request | {"tune_seconds": given.tune}, PATIENCE)
            worker.ask({"do": "output", "path": str(folder / "output")}, PATIENCE)
            answer = np.frombuffer((folder / "output").read_bytes(), np.float32)
            difference = float(np.abs(answer - expected).max())
            if not difference <= TOLERANCE:
                raise SystemExit(f"{application.name}: {worker.peer.name} differs from PyTorch by {difference:.1e}")
            result.differences[worker.peer.name] = difference
        result.times, failed = race(everyone, Window(given.rounds, given.window), order)
        if failed:
            raise SystemExit(f"{application.name}: {failed}")
        result.times.pop(BARE, None)
        result.layers = everyone[-1].ask({"do": "layers", "runs": 501}, PATIENCE)["layers"]
    return result


def show(result: Result) -> None:
    """A table on the screen."""
    ours = result.times[OURS].median
    print(f"\n{result.application.name}")
    for name, timing in sorted(result.times.items(), key=lambda item: item[1].median):
        print(f"  {1e3 * timing.median:9.3f} ms  {timing.median / ours:6.2f}  {name}")
    for name, seconds in result.layers:
        print(f"  {1e3 * statistics.median(seconds):9.3f} ms  {name}")
    sys.stdout.flush()


def main() -> None:
    given = arguments()
    chosen = [a for a in applications(small=False) if not given.rows or re.search(given.rows, a.name)]
    everyone, results, order = workers(given), [], random.Random(1)
    try:
        for application in chosen:
            results.append(compare(application, everyone, given, order))
            show(results[-1])
    finally:
        versions = {worker.peer.name.partition(" ")[0]: worker.version for worker in everyone}
        for worker in everyone:
            worker.end()
    if not given.record:
        return
    notes = {**records.stamp("tuning/applications/run"), **{n: v for n, v in versions.items() if n != OURS}}
    records.write(records.folder() / "applications.csv", notes, (
        {
            "application": result.application.name,
            "library": name if name == OURS else name.rpartition(" ")[0],
            "threads": given.threads if name == OURS else name.rpartition(" ")[2],
            "difference": f"{result.differences[name]:.1e}",
            "p25_ms": f"{1e3 * timing.at(0.25):.4f}",
            "median_ms": f"{1e3 * timing.median:.4f}",
            "p75_ms": f"{1e3 * timing.at(0.75):.4f}",
        }
        for result in results for name, timing in result.times.items()
    ))  # fmt: skip
    records.write(records.folder() / "applications-layers.csv", notes, (
        {
            "application": result.application.name,
            "layer": name,
            "median_ms": f"{1e3 * statistics.median(seconds):.4f}",
        }
        for result in results for name, seconds in result.layers
    ))  # fmt: skip


if __name__ == "__main__":
    main()
