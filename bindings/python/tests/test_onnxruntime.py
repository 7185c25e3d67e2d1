"""The execution provider against ONNX Runtime's own kernels, on the same files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cellstream.onnxruntime as ep  # noqa: E402

CASES = sorted((Path(__file__).parents[3] / "crates" / "network" / "tests" / "cases").glob("*.onnx"))
RECURRENT = {"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}


def plain(model: bytes | str, **settings: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ours(model: bytes | str, **settings: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return ort.InferenceSession(model, ep.session_options(options))


def same(one: list, other: list, tolerance: float = 2e-6) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=1e-4)


def node(operator: str, seed: int = 0, *, features: int = 6, hidden: int = 9, lengths: bool = False,
         states: bool = False, outputs: str = "Y Y_h Y_c", constant: bool = True, **attributes: object) -> bytes:  # fmt: skip
    """A file of one recurrent node, of any numbers of steps and sequences."""
    rng = np.random.default_rng(seed)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    first = attributes.get("layout") == 1
    shapes = {"W": (gates * hidden, features), "R": (gates * hidden, hidden), "B": (2 * gates * hidden,)}
    tensors = {name: rng.uniform(-0.5, 0.5, (directions, *shape)).astype(np.float32) for name, shape in shapes.items()}
    state = ["batch", directions, hidden] if first else [directions, "batch", hidden]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT,
                                            ["batch", "steps", features] if first else ["steps", "batch", features])]  # fmt: skip
    slots = ["X", "W", "R", "B", "", "", ""]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]))
        slots[4] = "lengths"
    if states:
        for at, name in ((5, "h"), (6, "c")):
            if at == 5 or operator == "LSTM":
                inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, state))
                slots[at] = name
    if not constant:
        inputs.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, tensors["W"].shape))
    names = [name if name in outputs.split() else "" for name in ("Y", "Y_h", "Y_c")]
    names = names if operator == "LSTM" else names[:2]
    while not slots[-1]:
        slots.pop()
    made = helper.make_node(operator, slots, names, hidden_size=hidden, **attributes)
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name]
    held = [numpy_helper.from_array(value, name) for name, value in tensors.items() if constant or name != "W"]
    graph = helper.make_graph([made], "one", inputs, results, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return model.SerializeToString()


def arrays(session: ort.InferenceSession, steps: int, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a node. Lengths are 1 or more: after none, older versions of ONNX Runtime return what was in memory."""
    rng = np.random.default_rng(seed)
    sizes = {"steps": steps, "batch": batch}
    made = {}
    for port in session.get_inputs():
        shape = [sizes.get(length, length) for length in port.shape]
        made[port.name] = (rng.integers(1, steps + 1, shape).astype(np.int32) if port.name == "lengths"
                           else rng.normal(size=shape).astype(np.float32))  # fmt: skip
    return made


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_exported_graphs(path: Path) -> None:
    theirs = plain(str(path))
    names = {port.name for port in theirs.get_inputs()}
    recorded = np.load(path.with_suffix(".npz")).items()
    given = {name[3:]: value for name, value in recorded if name.startswith("in:")}
    assert names == set(given)
    mine = ours(str(path))
    is_int8 = b"DynamicQuantizeLSTM" in path.read_bytes()
    same(mine.run(None, given), theirs.run(None, given), 5e-2 if is_int8 else 1e-5)


def test_nodes_inside_branches_are_claimed() -> None:
    session = ours(str(next(path for path in CASES if path.stem == "45_control_flow_If")))
    assert ep.claimed_nodes(session)


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("threads", [0, 1])
def test_every_kind_of_node(operator: str, direction: str, threads: int) -> None:
    for seed, (lengths, states) in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        model = node(operator, seed, direction=direction, lengths=lengths, states=states)
        mine = ours(model, intra_op_num_threads=threads)
        assert len(ep.claimed_nodes(mine)) == 1
        theirs = plain(model)
        for steps, batch in ((7, 3), (1, 1), (40, 1), (5, 20), (7, 3)):
            given = arrays(theirs, steps, batch, seed)
            same(mine.run(None, given), theirs.run(None, given), 1e-5)


@pytest.mark.parametrize("outputs", ["Y", "Y_h", "Y_c", "Y Y_c", "Y_h Y_c"])
def test_outputs_that_are_left_out(outputs: str) -> None:
    model = node("LSTM", direction="bidirectional", outputs=outputs, states=True)
    given = arrays(plain(model), 6, 2)
    same(ours(model).run(None, given), plain(model).run(None, given), 1e-5)


def test_attributes() -> None:
    for operator, attributes in [
        ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4]}),
        ("LSTM", {"clip": 0.7, "input_forget": 1}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {"activations": ["Relu"]}),
    ]:  # fmt: skip
        model = node(operator, **attributes)
        given = arrays(plain(model), 6, 2)
        mine = ours(model)
        assert ep.claimed_nodes(mine), attributes
        same(mine.run(None, given), plain(model).run(None, given), 1e-5)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batch_first_layout(direction: str) -> None:
    """ONNX Runtime has no kernel for layout 1: compared with layout 0 and other axes."""
    settings = {"direction": direction, "lengths": True, "states": True}
    first, second = ours(node("LSTM", layout=1, **settings)), plain(node("LSTM", **settings))
    assert ep.claimed_nodes(first)
    for steps, batch in ((6, 3), (4, 1)):
        given = arrays(second, steps, batch)
        swapped = {name: value if name == "lengths" else value.swapaxes(0, 1) for name, value in given.items()}
        swapped = {name: np.ascontiguousarray(value) for name, value in swapped.items()}
        y, hn, cn = first.run(None, swapped)
        expected = second.run(None, given)
        same([y.transpose(1, 2, 0, 3), hn.swapaxes(0, 1), cn.swapaxes(0, 1)], expected, 1e-5)


def test_lengths_and_states_that_are_constants() -> None:
    model = onnx.load_from_string(node("LSTM", lengths=True, states=True))
    rng = np.random.default_rng(3)
    held = {"lengths": np.array([4, 0, 2], np.int32), "h": rng.normal(size=(1, 3, 9)), "c": rng.normal(size=(1, 3, 9))}
    for name, value in held.items():
        value = value if name == "lengths" else value.astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    del model.graph.input[1:]
    data = model.SerializeToString()
    given = {"X": rng.normal(size=(4, 3, 6)).astype(np.float32)}
    mine = ours(data)
    assert ep.claimed_nodes(mine)
    same(mine.run(None, given), plain(data).run(None, given), 1e-5)


def test_nodes_that_would_be_slower_are_left() -> None:
    sizes = {"features": 8, "hidden": 1100}
    assert not ep.claimed_nodes(ours(node("GRU", **sizes)))
    assert ep.claimed_nodes(ours(node("GRU", linear_before_reset=1, **sizes)))


def test_what_is_not_supported_is_left_to_onnxruntime() -> None:
    model = node("LSTM", constant=False)
    session = ours(model)
    assert not ep.claimed_nodes(session)
    given = arrays(session, 5, 2)
    same(session.run(None, given), plain(model).run(None, given))


def test_wrong_inputs_are_errors_and_the_session_goes_on() -> None:
    session = ours(node("GRU", lengths=True))
    given = arrays(session, 5, 2)
    right = session.run(None, given)
    for lengths in ([6, 1], [-1, 1], [1]):
        with pytest.raises(Exception, match="length"):
            session.run(None, {**given, "lengths": np.array(lengths, np.int32)})
    same(session.run(None, given), right)


@pytest.mark.parametrize("settings", [{}, {"intra_op_num_threads": 1}, {"intra_op_num_threads": 4}])
def test_runs_at_once(settings: dict) -> None:
    model = node("LSTM", hidden=64, direction="bidirectional")
    sessions = [ours(model, **settings), ours(model, **settings)]
    inputs = [arrays(sessions[0], steps, batch, steps) for steps, batch in ((30, 1), (12, 3), (5, 8))]
    expected = [plain(model).run(None, given) for given in inputs]
    start = threading.Barrier(8)

    def work(at: int) -> None:
        start.wait()
        for turn in range(40):
            one = (at + turn) % 3
            same(sessions[turn % 2].run(None, inputs[one]), expected[one], 1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_unregistering_leaves_nothing() -> None:
    model = node("LSTM", hidden=64)
    given = arrays(plain(model), 30, 1)
    before = threads()
    session = ours(model)
    expected = session.run(None, given)
    del session
    assert threads() <= before, "a thread is left"
    ep.unregister()
    assert ep.PROVIDER not in {device.ep_name for device in ort.get_ep_devices()}
    same(ours(model).run(None, given), expected)


def test_a_session_may_outlive_the_registration() -> None:
    program = """
import sys
import numpy as np, onnxruntime, cellstream.onnxruntime
session = onnxruntime.InferenceSession(sys.stdin.buffer.read(), cellstream.onnxruntime.session_options())
x = {"X": np.zeros((4, 1, 6), np.float32)}
before = session.run(None, x)
cellstream.onnxruntime.unregister()
assert (session.run(None, x)[0] == before[0]).all()
"""
    ended = subprocess.run([sys.executable, "-c", program], input=node("LSTM"), capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
