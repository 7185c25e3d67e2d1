"""What all Python workers share: they read requests from stdin and answer on stdout, a JSON object a line.

    {"do": "load", "row": {…}, "folder": F, "threads": N, "precision": P}
                                                           -> {"ok": {facts}} or {"error": why}
    {"do": "run", "runs": N, "warm_runs": n, "warm_seconds": s}  -> {"times": [seconds, …]}
    {"do": "bare", "runs": N, "seconds": s}                    -> {"times": [seconds, …]}, asked of ours alone
    {"do": "output", "path": P}                                -> {"ok": {}}, f32 values in P

A worker of whole files is asked to load one, `{"do": "load", "model": M, "inputs": [tensor, …], "threads": N}`; its
facts hold `outputs`, a list of tensors whose values P has one after the other. A tensor is `{"name", "type", "shape"}`,
of an input also `file`, where its values lie.

Times are taken here, around the call alone: no pipe, no JSON is in them.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
from models import FILES  # noqa: E402


class Loaded(Protocol):
    """A network ready to run on one input. It may have `facts`, which are reported as they are."""

    call: Callable[[], object]  # what is timed

    def output(self) -> np.ndarray | list[np.ndarray]:
        """The results of the last call, [T, B, directions x H]; a list of all outputs of a whole file."""


class File:
    """A whole ONNX file and its inputs."""

    def __init__(self, message: dict) -> None:
        self.model: str = message["model"]
        self.threads: int = message["threads"]
        self.inputs: dict[str, np.ndarray] = {
            tensor["name"]: np.fromfile(tensor["file"], tensor["type"]).reshape(tensor["shape"])
            for tensor in message["inputs"]
        }


class Request:
    """A network as its library shall load it."""

    def __init__(self, message: dict) -> None:
        self.row: dict = message["row"]
        self.folder = Path(message["folder"])
        self.threads: int = message["threads"]
        self.precision: str = message["precision"]
        shape = (self.row["steps"], self.row["batch"], self.row["input"])
        self.values = np.fromfile(self.folder / "input.f32", np.float32).reshape(shape)
        self.lengths: list[int] | None = self.row["lengths"]

    def file(self, kind: str) -> str:
        """Where the network lies as such a kind of models.FILES."""
        return str(self.folder / FILES[kind])


def serve(version: str, load: Callable, read: Callable[[dict], object] = Request) -> None:
    """Answers requests until stdin ends. `load` makes a `Loaded` of the message that `read` has read."""
    # Libraries print where they like; our answers get a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")

    answer({"ok": {"version": version}})
    loaded: Loaded | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "load":
                loaded = None  # frees the last one first: two need not fit into memory
                gc.collect()
                loaded = load(read(request))
                loaded.call()
                answer({"ok": getattr(loaded, "facts", {})})
            elif request["do"] == "run":
                assert loaded is not None
                answer({"times": run(loaded.call, request)})
            elif request["do"] == "output":
                assert loaded is not None
                results = loaded.output()
                arrays = results if isinstance(results, list) else [np.asarray(results, np.float32)]
                Path(request["path"]).write_bytes(b"".join(array.tobytes() for array in arrays))
                answer({"ok": {}})
        except Exception as error:  # noqa: BLE001  whatever a library throws is its answer to this row
            answer({"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]})


def run(call: Callable[[], object], request: dict) -> list[float]:
    """Warm-up calls first: after a pause the caches hold another library's weights."""
    clock = time.perf_counter
    begin, warm = clock(), 0
    while warm < request["warm_runs"] or clock() - begin < request["warm_seconds"]:
        call()
        warm += 1
    times = []
    gc.disable()  # a collection would be Python's time, not the library's
    for _ in range(request["runs"]):
        start = clock()
        call()
        times.append(clock() - start)
    gc.enable()
    return times


def quick_median(call: Callable[[], object]) -> float:
    """Of calls for a tenth of a second, five at least: by which a library gets the faster of two ways."""
    clock, times = time.perf_counter, []
    call()
    begin = clock()
    while len(times) < 5 or clock() - begin < 0.1:
        start = clock()
        call()
        times.append(clock() - start)
    return statistics.median(times)
