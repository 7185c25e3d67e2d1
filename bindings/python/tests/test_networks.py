"""Options of whole ONNX graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import lstm
from onnx import TensorProto, helper, numpy_helper

import gatestream


def saved(path: Path, node: onnx.NodeProto, shape: list[object], constants: dict[str, np.ndarray]) -> Path:
    """A file of one node, from ``x`` to ``y``."""
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "graph", [value("x", shape)], [value("y", None)], held)
    # Not checked by ONNX, which does not have all operators.
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path


@pytest.fixture
def recurrent(tensors: dict[str, np.ndarray], tmp_path: Path) -> Path:
    order = np.r_[0:24, 72:96, 24:72]  # PyTorch has i f g o, ONNX i o f g
    w, u, b, c = (tensors[f"{name}_l0"][order] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    constants = {"w": w[None], "r": u[None], "b": np.concatenate([b, c])[None]}
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], name="lstm", hidden_size=24)
    return saved(tmp_path / "lstm.onnx", node, ["steps", "batch", 12], constants)


def test_plans_are_kept_within_the_bytes_asked_for(tensors: dict[str, np.ndarray], recurrent: Path, x: np.ndarray) -> None:
    expected = lstm(tensors, x)
    free = gatestream.Network.open(recurrent, threads=1)
    bound = gatestream.Network.open(recurrent, threads=1, plan_bytes=0)
    assert free.plan_stats() == {"kept": 0, "bytes": 0, "made": 0, "evicted": 0}
    for network, kept, made in ((free, 3, 3), (bound, 1, 6)):
        for steps in (5, 6, 7, 5, 6, 7):
            y = network.run({"x": x[:steps]})["y"]
            np.testing.assert_allclose(y[:, 0], expected[:steps], atol=1e-5)
        stats = network.plan_stats()
        assert (stats["kept"], stats["made"], stats["evicted"]) == (kept, made, made - kept)
        assert stats["bytes"] > 0
    with pytest.raises(gatestream.InputError, match="^plan_bytes is -1"):
        gatestream.Network.open(recurrent, plan_bytes=-1)


def test_unchecked_operators_run_on_request_alone(tmp_path: Path) -> None:
    # tract has it; ONNX does not.
    path = saved(tmp_path / "rsqrt.onnx", helper.make_node("Rsqrt", ["x"], ["y"], name="root"), [1], {})
    with pytest.raises(gatestream.ModelError, match=r"\"root\".*Rsqrt.*unchecked=True"):
        gatestream.Network.open(path)
    y = gatestream.Network.open(path, unchecked=True).run({"x": np.array([4], np.float32)})["y"]
    np.testing.assert_array_equal(y, [0.5])
