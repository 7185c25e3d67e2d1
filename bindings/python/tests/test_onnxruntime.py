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

import gatestream.onnxruntime as ep  # noqa: E402

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
import numpy as np, onnxruntime, gatestream.onnxruntime
session = onnxruntime.InferenceSession(sys.stdin.buffer.read(), gatestream.onnxruntime.session_options())
x = {"X": np.zeros((4, 1, 6), np.float32)}
before = session.run(None, x)
gatestream.onnxruntime.unregister()
assert (session.run(None, x)[0] == before[0]).all()
"""
    ended = subprocess.run([sys.executable, "-c", program], input=node("LSTM"), capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("how", ["add_initializer", "add_external_initializers"])
@pytest.mark.parametrize("names", [["W"], ["R", "B"], ["W", "R", "B"]])
def test_weights_of_the_options_replace_those_of_the_file(how: str, names: list[str]) -> None:
    rng = np.random.default_rng(11)
    shapes = {"W": (1, 36, 6), "R": (1, 36, 9), "B": (1, 72)}
    # Of a size from which ONNX Runtime takes external data.
    values = {name: rng.uniform(-1, 1, shapes[name]).astype(np.float32) for name in names}
    held = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in values.items()}
    model = onnx.load_from_string(node("LSTM"))
    if how == "add_external_initializers":
        for tensor in model.graph.initializer:
            if tensor.name in names:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                entry = tensor.external_data.add()
                entry.key, entry.value = "location", "absent.bin"
    data = model.SerializeToString()

    def options() -> ort.SessionOptions:
        made = ort.SessionOptions()
        made.log_severity_level = 4
        if how == "add_initializer":
            for name, value in held.items():
                made.add_initializer(name, value)
        else:
            made.add_external_initializers(list(held), list(held.values()))
        return made

    theirs = ort.InferenceSession(data, options(), providers=["CPUExecutionProvider"])
    mine = ort.InferenceSession(data, ep.session_options(options()))
    assert ep.claimed_nodes(mine)
    # The weights of the options in a file of their own: what both must give.
    for tensor in model.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
    of_file = plain(model.SerializeToString())
    for steps, batch in ((7, 2), (60, 1), (3, 40)):
        given = arrays(of_file, steps, batch)
        expected = of_file.run(None, given)
        same(theirs.run(None, given), expected, 1e-5)
        same(mine.run(None, given), expected, 1e-5)


def test_states_of_the_options_replace_those_of_the_file() -> None:
    model = onnx.load_from_string(node("LSTM", states=True))
    for name in ("h", "c"):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 2, 9), np.float32), name))
    del model.graph.input[1:]
    data = model.SerializeToString()
    h = np.random.default_rng(4).normal(size=(1, 2, 9)).astype(np.float32)
    held = ort.OrtValue.ortvalue_from_numpy(h)
    options = ort.SessionOptions()
    options.add_initializer("h", held)
    mine = ort.InferenceSession(data, ep.session_options(options))
    assert ep.claimed_nodes(mine)
    x = np.random.default_rng(5).normal(size=(4, 2, 6)).astype(np.float32)
    given = {"X": x, "h": h, "c": np.zeros_like(h)}
    same(mine.run(None, {"X": x}), plain(node("LSTM", states=True)).run(None, given), 1e-5)


def test_weights_of_another_shape_are_an_error() -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    held = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 36, 4), np.float32))
    options.add_initializer("W", held)
    with pytest.raises(Exception, match="shape"):
        session = ort.InferenceSession(node("LSTM"), ep.session_options(options))
        session.run(None, {"X": np.zeros((3, 1, 6), np.float32)})


def branches() -> bytes:
    """An LSTM in each branch of an If, with weights of its own."""
    made = []
    for at, name in enumerate(("then", "else")):
        graph = onnx.load_from_string(node("LSTM", seed=at + 1, outputs="Y")).graph
        for tensor in graph.initializer:
            tensor.name += name
        lstm = graph.node[0]
        lstm.input[:] = [lstm.input[0], *(value + name for value in lstm.input[1:])]
        lstm.name, lstm.output[0], graph.output[0].name, graph.name = name, f"y_{name}", f"y_{name}", name
        del graph.input[:]
        made.append(graph)
    chosen = helper.make_node("If", ["which"], ["y"], then_branch=made[0], else_branch=made[1])
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["steps", "batch", 6])
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([chosen], "branches", [x, which], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10).SerializeToString()


def test_nodes_in_both_branches() -> None:
    model = branches()
    mine, theirs = ours(model), plain(model)
    version = tuple(int(part) for part in ort.__version__.split(".")[:3])
    # Before 1.24.4 the names of claimed nodes of two graphs are the same.
    assert len(ep.claimed_nodes(mine)) == (2 if version >= (1, 24, 4) else 1)
    x = np.random.default_rng(0).normal(size=(9, 2, 6)).astype(np.float32)
    for which in (True, False):
        given = {"X": x, "which": np.array(which)}
        same(mine.run(None, given), theirs.run(None, given), 1e-5)


def test_options_that_have_the_provider_keep_it() -> None:
    options = ep.session_options()
    assert ep.session_options(options) is options
    session = ort.InferenceSession(node("LSTM"), options)
    assert len(ep.claimed_nodes(session)) == 1


def program(text: str, *lines: bytes) -> subprocess.CompletedProcess[bytes]:
    """Runs a program in a process of its own, with a model on its standard input."""
    return subprocess.run([sys.executable, "-c", text], input=b"".join(lines), capture_output=True, timeout=120)


def test_options_older_than_the_registration_are_an_error() -> None:
    ended = program(
        """
import sys
import numpy as np, onnxruntime, gatestream, gatestream.onnxruntime as ep
model = sys.stdin.buffer.read()
old = ep.session_options()
ep.unregister()
for again in range(2):
    try:
        onnxruntime.InferenceSession(model, old, enable_fallback=0)
        raise SystemExit("made")
    except Exception as why:
        assert "make new options" in str(why), why
    ep.register()
try:
    ep.session_options(old)
    raise SystemExit("accepted")
except gatestream.GatestreamError as why:
    assert "make new ones" in str(why), why
session = onnxruntime.InferenceSession(model, ep.session_options())
assert ep.claimed_nodes(session)
session.run(None, {"X": np.zeros((4, 1, 6), np.float32)})
print("done")
""",
        node("LSTM"),
    )
    assert ended.stdout == b"done\n", ended.stderr


@pytest.mark.parametrize("first_run", ["parent", "child"])
@pytest.mark.parametrize("threads", [0, 1])
def test_a_child_goes_on_with_the_session(threads: int, first_run: str) -> None:
    ended = program(
        f"""
import os, signal, sys
import numpy as np, onnxruntime, gatestream.onnxruntime as ep
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
session = onnxruntime.InferenceSession(sys.stdin.buffer.read(), ep.session_options(options))
assert ep.claimed_nodes(session)
inputs = [{{"X": np.full((steps, batch, 6), 0.25, np.float32)}} for steps, batch in ((50, 1), (50, 8))]
if {first_run == "parent"}:
    session.run(None, inputs[0])

def sums():
    return [float(session.run(None, one)[0].astype(np.float64).sum()) for one in inputs * 3]

read, write = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os.write(write, repr(sums()).encode())
    grandchild = os.fork()
    if grandchild == 0:
        signal.alarm(60)
        sums()
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert os.read(read, 10_000).decode() == repr(sums())
print("done")
""",
        node("LSTM", hidden=64, direction="bidirectional"),
    )
    assert ended.stdout == b"done\n", ended.stderr


def test_compiled_models_are_refused_in_words(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "compiled.onnx"))
    with pytest.raises(Exception, match="EPContext"):
        ort.InferenceSession(node("LSTM"), ep.session_options(options), enable_fallback=0)
    with pytest.raises(Exception, match="EPContext"):
        ort.ModelCompiler(ep.session_options(), node("LSTM")).compile_to_bytes()
