#!/usr/bin/env python3
"""Writes layers as exporters write them out, and the outputs of ONNX Runtime.

    pip install numpy onnx onnxruntime onnxscript torch
    python3 make.py

`scan_*` and `loop_*` are written here; `unrolled_*` and `step_*` are PyTorch's exports of cells.
`other_*` are close to a layer, but none.
"""

import pathlib

import numpy
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FOLDER = pathlib.Path(__file__).parent
STEPS, BATCH, INPUT, HIDDEN = 7, 3, 4, 5
random = numpy.random.default_rng(3)


def array(*shape):
    return (random.standard_normal(shape) / 2).astype(numpy.float32)


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, of):
    return numpy_helper.from_array(numpy.asarray(of), name)


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def save(name, model, arrays):
    """Writes a model with its inputs and the outputs of ONNX Runtime."""
    # PyTorch's export notes the folders of the machine.
    for part in [model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output]:
        part.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    results = session.run(None, arrays)
    stored = {f"in:{key}": of for key, of in arrays.items()}
    stored |= {f"out:{output.name}": of for output, of in zip(session.get_outputs(), results)}
    onnx.save(model, FOLDER / f"{name}.onnx")
    numpy.savez(FOLDER / f"{name}.npz", **stored)


def write(name, nodes, inputs, outputs, constants, arrays):
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    save(name, model, arrays)


def lstm_step(x="x", peephole=False, coupled=False):
    """One step from x, h, c to h1, c1; the gates are in the order of Keras."""
    nodes = [
        node("MatMul", f"{x} W", "xw"),
        node("MatMul", "h R", "hr"),
        node("Add", "xw hr", "sum"),
        node("Add", "sum B", "all"),
        node("Split", "all", "i0 f0 g0 o0", axis=1),
        node("Sigmoid", "i0", "i"),
        node("Tanh", "g0", "g"),
        node("Sigmoid", "o0", "o"),
        node("Mul", "f c", "fc"),
        node("Mul", "i g", "ig"),
        node("Add", "fc ig", "c1"),
        node("Tanh", "c1", "t"),
        node("Mul", "o t", "h1"),
    ]
    if peephole:
        nodes += [node("Mul", "c P", "cp"), node("Add", "f0 cp", "fp"), node("Sigmoid", "fp", "f")]
    elif coupled:
        nodes += [node("Sub", "one i", "f")]
    else:
        nodes += [node("Sigmoid", "f0", "f")]
    return sorted_nodes(nodes)


def gru_step(reset_after, candidate="Tanh", **parameters):
    """One step from x, h to h1: gates z, r and a candidate, as Keras has them."""
    nodes = [
        node("MatMul", "x W", "xw"),
        node("Add", "xw B", "xb"),
        node("Split", "xb", "xz xr xn", axis=-1),
        node("Slice", "R r0 r2 axis1", "Rzr"),
        node("Slice", "R r2 r3 axis1", "Rn"),
        node("MatMul", "h Rzr", "hzr"),
        node("Split", "hzr", "hz hr", axis=1),
        node("Add", "xz hz", "z0"),
        node("Sigmoid", "z0", "z"),
        node("Add", "xr hr", "r0_"),
        node("Sigmoid", "r0_", "r"),
        node("Sub", "one z", "z1"),
        node("Mul", "z h", "zh"),
        node("Mul", "z1 n", "zn"),
        node("Add", "zh zn", "h1"),
        node(candidate, "n0", "n", **parameters),
        node("Add", "xn hn", "n0"),
    ]
    if reset_after:
        nodes += [node("MatMul", "h Rn", "hn0"), node("Add", "hn0 Bn", "hn1"), node("Mul", "r hn1", "hn")]
    else:
        nodes += [node("Mul", "r h", "rh"), node("MatMul", "rh Rn", "hn")]
    return sorted_nodes(nodes)


def sorted_nodes(nodes):
    """The nodes in an order in which each reads values of those before it."""
    made = {name for one in nodes for name in one.output}
    result, known = [], set()
    while nodes:
        ready = [one for one in nodes if all(name in known or name not in made for name in one.input)]
        result += ready
        known |= {name for one in ready for name in one.output}
        nodes = [one for one in nodes if one not in ready]
    return result


LSTM = [constant("W", array(INPUT, 4 * HIDDEN)), constant("R", array(HIDDEN, 4 * HIDDEN)), constant("B", array(4 * HIDDEN))]
GRU = [
    constant("W", array(INPUT, 3 * HIDDEN)),
    constant("R", array(HIDDEN, 3 * HIDDEN)),
    constant("B", array(3 * HIDDEN)),
    constant("Bn", array(HIDDEN)),
    constant("r0", numpy.array([0])),
    constant("r2", numpy.array([2 * HIDDEN])),
    constant("r3", numpy.array([2**31 - 1])),
    constant("axis1", numpy.array([1])),
]
ONE = constant("one", numpy.float32(1))
X = array(STEPS, BATCH, INPUT)
H, C = array(BATCH, HIDDEN), array(BATCH, HIDDEN)
# The third sequence has no step.
MASK = random.random((STEPS, BATCH, 1)) < 0.6
MASK[:, 2] = False
MASK[0, :] = False

STATE = [BATCH, HIDDEN]
STATES = {"h": H, "c": C}


def loop(name, step, states, outputs, constants, masked=None):
    """A loop over the steps of `xs`, which the body reads by its counter.

    `outputs`: values of the body that are stacked. `masked`: the value of the output at masked
    steps; all states keep their values there.
    """
    nodes = [node("Gather", "xs at", "x", axis=0), *step, node("Identity", "go", "go_on")]
    next_of = {state: f"{state}1" for state in states}
    if masked:
        nodes += [node("Gather", "mask at", "m", axis=0), node("Not", "m", "not_m")]
        nodes += [node("Cast", "m", "mf", to=FLOAT), node("Cast", "not_m", "not_mf", to=FLOAT)]
        for state in states:
            kept = [f"mf {state}1", f"not_mf {state}"]
            nodes += [node("Mul", kept[0], f"{state}_new"), node("Mul", kept[1], f"{state}_old")]
            nodes += [node("Add", f"{state}_new {state}_old", f"{state}2")]
            next_of[state] = f"{state}2"
        nodes += [node("Where", f"m h1 {masked}", "y1")]
        outputs = ["y1"]
        if masked == "y":
            states = [*states, "y"]
            next_of["y"] = "y1"
    stacked = [f"{output}_each" for output in outputs]
    nodes += [node("Identity", output, each) for output, each in zip(outputs, stacked)]
    inputs = [value("at", INT64, []), value("go", BOOL, [])] + [value(s, FLOAT, STATE) for s in states]
    results = [value("go_on", BOOL, [])] + [value(next_of[s], FLOAT, STATE) for s in states]
    results += [value(each, FLOAT, STATE) for each in stacked]
    body = helper.make_graph(nodes, "body", inputs, results)
    arrays = {f"{state}_start": STATES[state] for state in states if state in STATES}
    graph_inputs = [value("xs", FLOAT, ["T", BATCH, INPUT])]
    graph_inputs += [value(state, FLOAT, STATE) for state in arrays]
    arrays["xs"] = X
    if masked:
        graph_inputs.append(value("mask", BOOL, ["T", BATCH, 1]))
        arrays["mask"] = MASK
    constants = [*constants, ONE, constant("true", True), constant("y_start", numpy.zeros(STATE, numpy.float32))]
    constants += [constant("zeros", numpy.zeros(STATE, numpy.float32)), constant("zero", numpy.int64(0))]
    lasts = [f"{state}_last" for state in states]
    ends = [f"all_{output}" for output in outputs]
    write(
        name,
        [
            node("Shape", "xs", "shape"),
            node("Gather", "shape zero", "T"),
            helper.make_node("Loop", ["T", "true", *(f"{state}_start" for state in states)], lasts + ends, body=body),
        ],
        graph_inputs,
        [value(last, FLOAT, STATE) for last in lasts]
        + [value(end, FLOAT, ["T", BATCH, HIDDEN]) for end in ends],
        constants,
        arrays,
    )


def scan(name, reverse):
    """A scan of an LSTM whose features are those of two sequences, with one matrix for all."""
    step = [
        node("Concat", "a h b", "all_features", axis=1),
        node("Gemm", "all_features M B", "gates", transB=1),
        node("Slice", "gates g0 g3 axis1", "ifo0"),
        node("Sigmoid", "ifo0", "ifo"),
        node("Slice", "gates g3 g4 axis1", "g_"),
        node("Tanh", "g_", "g"),
        node("Split", "ifo", "i f o", axis=1),
        node("Mul", "c f", "cf"),
        node("Mul", "g i", "gi"),
        node("Add", "gi cf", "c1"),
        node("Tanh", "c1", "t"),
        node("Mul", "t o", "h1"),
        node("Identity", "h1", "each"),
    ]
    inputs = [value("h", FLOAT, STATE), value("c", FLOAT, STATE), value("a", FLOAT, [BATCH, 2]), value("b", FLOAT, [BATCH, 2])]
    outputs = [value("h1", FLOAT, STATE), value("c1", FLOAT, STATE), value("each", FLOAT, STATE)]
    body = helper.make_graph(step, "body", inputs, outputs)
    directions = {"scan_input_directions": [1, 1], "scan_output_directions": [1]} if reverse else {}
    call = helper.make_node(
        "Scan", ["h0", "c0", "as", "bs"], ["hn", "cn", "ys"], body=body, num_scan_inputs=2, **directions
    )
    write(
        name,
        [call],
        [value("h0", FLOAT, STATE), value("c0", FLOAT, STATE)]
        + [value(one, FLOAT, ["T", BATCH, 2]) for one in ("as", "bs")],
        [value("hn", FLOAT, STATE), value("cn", FLOAT, STATE), value("ys", FLOAT, ["T", BATCH, HIDDEN])],
        [
            constant("M", array(4 * HIDDEN, INPUT + HIDDEN)),
            constant("B", array(4 * HIDDEN)),
            constant("g0", numpy.array([0])),
            constant("g3", numpy.array([3 * HIDDEN])),
            constant("g4", numpy.array([4 * HIDDEN])),
            constant("axis1", numpy.array([1])),
        ],
        {"h0": H, "c0": C, "as": X[:, :, :2].copy(), "bs": X[:, :, 2:].copy()},
    )


def branches():
    """A step of a GRU if the mode is less than 100; else the state."""
    step = helper.make_graph(gru_step(True), "then", [], [value("h1", FLOAT, STATE)])
    kept = helper.make_graph([node("Identity", "h", "h2")], "else", [], [value("h2", FLOAT, STATE)])
    write(
        "branch_by_mode",
        [
            node("Less", "mode limit", "is_step"),
            node("If", "is_step", "y", then_branch=step, else_branch=kept),
        ],
        [value("x", FLOAT, [BATCH, INPUT]), value("h", FLOAT, STATE), value("mode", INT64, [])],
        [value("y", FLOAT, STATE)],
        [*GRU, ONE, constant("limit", numpy.int64(100))],
        {"x": X[0], "h": H, "mode": numpy.array(1)},
    )


class Unrolled(torch.nn.Module):
    """Cells of two layers that are stepped in a loop."""

    def __init__(self, kind):
        super().__init__()
        self.first = kind(INPUT, HIDDEN)
        self.second = kind(HIDDEN, HIDDEN)

    def forward(self, x, first, second):
        outputs = []
        of = lambda state: state[0] if isinstance(state, tuple) else state
        if isinstance(self.first, torch.nn.LSTMCell):
            first, second = (first, first * 2), (second, second * 2)
        for step in x:
            first = self.first(step, first)
            second = self.second(of(first), second)
            outputs.append(of(second))
        return torch.stack(outputs), of(first)


class Feedback(torch.nn.Module):
    """A decoder: each step reads the output of the one before."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(HIDDEN, HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, h):
        c = torch.zeros_like(h)
        outputs = []
        for _ in range(4):
            h, c = self.cell(x, (h, c))
            x = torch.relu(self.out(h))
            outputs.append(x)
        return torch.stack(outputs)


def export(name, module, inputs):
    """PyTorch's export of a module."""
    path = FOLDER / f"{name}.onnx"
    module.eval()
    torch.onnx.export(module, tuple(inputs.values()), path, input_names=list(inputs), dynamo=True, external_data=False)
    save(name, onnx.load(path), {key: of.numpy() for key, of in inputs.items()})


def exports():
    torch.manual_seed(5)
    x, h, c = (torch.from_numpy(of) for of in (X, H, C))
    for kind in (torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell):
        name = kind.__name__.lower().removesuffix("cell")
        export(f"unrolled_{name}", Unrolled(kind), {"x": x, "first": h, "second": c})
    export("unrolled_feedback", Feedback(), {"x": h, "h": c})
    export("step_gru", torch.nn.GRUCell(INPUT, HIDDEN), {"x": x[0], "h": h})


if __name__ == "__main__":
    loop("loop_lstm", lstm_step(), ["h", "c"], ["h1"], LSTM)
    loop("loop_gru_reset_after", gru_step(True), ["h"], ["h1"], GRU)
    loop("loop_gru_reset_before", gru_step(False, "LeakyRelu", alpha=0.3), ["h"], ["h1"], GRU)
    rnn = [node("MatMul", "x W", "xw"), node("MatMul", "h R", "hr"), node("Add", "hr xw", "s"), node("Relu", "s", "h1")]
    loop("loop_rnn", rnn, ["h"], ["h1"], [constant("W", array(INPUT, HIDDEN)), constant("R", array(HIDDEN, HIDDEN))])
    loop("loop_masked_zero", lstm_step(), ["h", "c"], [], LSTM, masked="zeros")
    loop("loop_masked_held", lstm_step(), ["h", "c"], [], LSTM, masked="y")
    loop("loop_masked_state", gru_step(True), ["h"], [], GRU, masked="h")
    scan("scan_lstm", reverse=False)
    scan("scan_lstm_reversed", reverse=True)
    branches()
    exports()
    peephole = [*LSTM, constant("P", array(HIDDEN))]
    loop("other_peephole", lstm_step(peephole=True), ["h", "c"], ["h1"], peephole)
    loop("other_coupled_gates", lstm_step(coupled=True), ["h", "c"], ["h1"], LSTM)
    loop("other_cell_states", lstm_step(), ["h", "c"], ["h1", "c1"], LSTM)
