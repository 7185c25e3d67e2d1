"""Single recurrent nodes in ONNX Runtime at its default settings, without and with gatestream's execution provider.

    python3 benches/references/published/provider_nodes.py --library target/release/libgatestream_onnxruntime.so

One session exists at a time: the threads of another would spin beside it. The claims of the provider
(crates/onnxruntime/src/claim.rs) follow such times; nodes that it leaves have a ratio of about 1 here.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from report import records  # noqa: E402

PROVIDER = "GatestreamExecutionProvider"
# Operator, features and units, sequences, steps, directions, linear_before_reset.
NODES = [
    ("LSTM", 16, 1, 1, 1, 0), ("GRU", 16, 1, 1, 1, 0), ("LSTM", 64, 1, 1, 1, 0), ("RNN", 128, 1, 50, 1, 0),
    ("GRU", 32, 1, 100, 2, 0), ("LSTM", 256, 1, 50, 2, 0), ("LSTM", 384, 1, 50, 2, 0), ("LSTM", 512, 1, 50, 1, 0),
    ("LSTM", 512, 1, 50, 2, 0), ("LSTM", 1024, 1, 20, 1, 0), ("LSTM", 1024, 1, 20, 2, 0), ("GRU", 512, 1, 50, 1, 0),
    ("GRU", 512, 1, 50, 1, 1), ("GRU", 512, 1, 50, 2, 1), ("LSTM", 64, 64, 10, 1, 0), ("LSTM", 256, 16, 20, 1, 0),
    ("LSTM", 256, 64, 20, 2, 0), ("LSTM", 1024, 8, 20, 1, 0), ("GRU", 256, 32, 20, 2, 1), ("GRU", 1024, 16, 5, 1, 1),
    ("RNN", 512, 32, 20, 1, 0),
]  # fmt: skip


def file(operator: str, hidden: int, directions: int, before_reset: int) -> bytes:
    """A model of this node."""
    rng = np.random.default_rng(1)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    shapes = {"W": (gates * hidden, hidden), "R": (gates * hidden, hidden), "B": (2 * gates * hidden,)}
    scale = 1 / hidden**0.5
    held = [numpy_helper.from_array(rng.uniform(-scale, scale, (directions, *shape)).astype(np.float32), name)
            for name, shape in shapes.items()]  # fmt: skip
    attributes = {"linear_before_reset": before_reset} if operator == "GRU" else {}
    node = helper.make_node(operator, ["X", "W", "R", "B"], ["Y"], hidden_size=hidden,
                            direction="bidirectional" if directions == 2 else "forward", **attributes)  # fmt: skip
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["steps", "batch", hidden])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "node", [x], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return model.SerializeToString()


def session(model: bytes, with_provider: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if with_provider:
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
        options.add_provider_for_devices(devices, {})
    return onnxruntime.InferenceSession(model, options)


def median(model: bytes, x: np.ndarray, with_provider: bool, seconds: float) -> float:
    """Of one run, in milliseconds."""
    one = session(model, with_provider)
    for _ in range(5):
        one.run(None, {"X": x})
    times, end = [], time.perf_counter() + seconds
    while len(times) < 8 or time.perf_counter() < end:
        begun = time.perf_counter()
        one.run(None, {"X": x})
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5, metavar="R")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    onnxruntime.register_execution_provider_library("gatestream", str(given.library.resolve()))
    rows = []
    for operator, hidden, batch, steps, directions, before_reset in NODES:
        model = file(operator, hidden, directions, before_reset)
        x = np.random.default_rng(2).normal(size=(steps, batch, hidden)).astype(np.float32)
        rounds = [[median(model, x, with_provider, 0.1) for with_provider in (False, True)] for _ in range(given.rounds)]
        plain, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
        rows.append({
            "operator": operator, "hidden": hidden, "batch": batch, "steps": steps, "directions": directions,
            "linear_before_reset": before_reset, "onnxruntime_median_ms": f"{plain:.4f}",
            "provider_median_ms": f"{ours:.4f}", "ratio": f"{plain / ours:.3f}",
        })  # fmt: skip
        print(*rows[-1].values(), flush=True)
    if given.record:
        notes = records.stamp("benches/references/published/provider_nodes.py")
        records.write(records.folder() / "provider-nodes.csv", notes, rows)


if __name__ == "__main__":
    main()
