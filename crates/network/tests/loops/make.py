#!/usr/bin/env python3
"""Writes small graphs with loops, and the outputs of ONNX Runtime.

    pip install onnx onnxruntime numpy
    python3 make.py
"""

import pathlib

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
random = numpy.random.default_rng(7)


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, array):
    return numpy_helper.from_array(numpy.asarray(array), name)


def save(name, nodes, inputs, outputs, constants, arrays):
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    results = session.run(None, arrays)
    stored = {f"in:{key}": array for key, array in arrays.items()}
    stored |= {f"out:{output.name}": result for output, result in zip(outputs, results)}
    folder = pathlib.Path(__file__).parent
    onnx.save(model, folder / f"{name}.onnx")
    numpy.savez(folder / f"{name}.npz", **stored)


def loop(body, inputs, outputs):
    return helper.make_node("Loop", inputs, outputs, body=body)


def body(nodes, states, outputs, constants=()):
    inputs = [value("i", INT64, []), value("go", BOOL, [])]
    return helper.make_graph(nodes, "body", inputs + states, outputs, list(constants))


X = random.standard_normal((6, 2, 3)).astype(numpy.float32)
W = random.standard_normal((3, 3)).astype(numpy.float32) / 2


def cell():
    """s' = tanh(x[at] + s W), of a state `s` and a place `at`."""
    return [
        helper.make_node("Gather", ["x", "at"], ["step"], axis=0),
        helper.make_node("MatMul", ["s", "w"], ["product"]),
        helper.make_node("Add", ["step", "product"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["next"]),
    ]


def sum_of_steps():
    """The largest number of iterations is that of the steps of the input; the place is `i`."""
    nodes = [
        helper.make_node("Identity", ["i"], ["at"]),
        *cell(),
        helper.make_node("Identity", ["go"], ["go_on"]),
        helper.make_node("Identity", ["next"], ["each"]),
    ]
    outputs = [value("go_on", BOOL, []), value("next", FLOAT, [2, 3]), value("each", FLOAT, [2, 3])]
    of = body(nodes, [value("s", FLOAT, [2, 3])], outputs)
    save(
        "steps_of_the_input",
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "zero"], ["steps"], axis=0),
            loop(of, ["steps", "true", "start"], ["last", "all"]),
        ],
        [value("x", FLOAT, ["T", 2, 3])],
        [value("last", FLOAT, [2, 3]), value("all", FLOAT, ["T", 2, 3])],
        [
            constant("w", W),
            constant("zero", numpy.int64(0)),
            constant("true", True),
            constant("start", numpy.ones((2, 3), numpy.float32)),
        ],
        {"x": X},
    )


def counter_of_the_exporter():
    """The place is a state that begins at 2; the condition ends the loop before the maximum; a state
    is only written, and the end of the counter is an output."""
    nodes = [
        *cell(),
        helper.make_node("Add", ["at", "one"], ["at_next"]),
        helper.make_node("Less", ["at_next", "end"], ["go_on"]),
        helper.make_node("Identity", ["next"], ["written"]),
        helper.make_node("Mul", ["next", "next"], ["each"]),
    ]
    outputs = [
        value("go_on", BOOL, []),
        value("at_next", INT32, []),
        value("written", FLOAT, [2, 3]),
        value("next", FLOAT, [2, 3]),
        value("each", FLOAT, [2, 3]),
    ]
    states = [value("at", INT32, []), value("unread", FLOAT, [2, 3]), value("s", FLOAT, [2, 3])]
    of = body(nodes, states, outputs, [constant("one", numpy.int32(1)), constant("end", numpy.int32(5))])
    save(
        "counter_of_the_exporter",
        [loop(of, ["most", "true", "from", "start", "start"], ["at_end", "written_last", "state_last", "all"])],
        [value("x", FLOAT, [6, 2, 3])],
        [value("at_end", INT32, []), value("written_last", FLOAT, [2, 3]), value("all", FLOAT, ["T", 2, 3])],
        [
            constant("w", W),
            constant("most", numpy.int64(100)),
            constant("true", True),
            constant("from", numpy.int32(2)),
            constant("start", numpy.zeros((2, 3), numpy.float32)),
        ],
        {"x": X},
    )


def states_alone():
    """The body reads neither the counter nor a sequence; the condition reads a state."""
    nodes = [
        helper.make_node("Mul", ["n", "two"], ["n_next"]),
        helper.make_node("Less", ["n_next", "end"], ["go_on"]),
        helper.make_node("MatMul", ["s", "w"], ["next"]),
    ]
    outputs = [value("go_on", BOOL, []), value("n_next", FLOAT, []), value("next", FLOAT, [2, 3])]
    states = [value("n", FLOAT, []), value("s", FLOAT, [2, 3])]
    of = body(nodes, states, outputs, [constant("two", numpy.float32(2)), constant("end", numpy.float32(50))])
    save(
        "states_alone",
        [loop(of, ["", "", "from", "x"], ["n_last", "last"])],
        [value("x", FLOAT, [2, 3])],
        [value("n_last", FLOAT, []), value("last", FLOAT, [2, 3])],
        [constant("w", W), constant("from", numpy.float32(3))],
        {"x": X[0]},
    )


def condition_on_values():
    """The number of iterations depends on values: it is not known before a run."""
    nodes = [
        helper.make_node("Mul", ["s", "half"], ["next"]),
        helper.make_node("ReduceMax", ["next"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "end"], ["go_on"]),
    ]
    outputs = [value("go_on", BOOL, []), value("next", FLOAT, [2, 3])]
    of = body(
        nodes,
        [value("s", FLOAT, [2, 3])],
        outputs,
        [constant("half", numpy.float32(0.5)), constant("end", numpy.float32(0.1))],
    )
    save(
        "condition_on_values",
        [loop(of, ["", "", "x"], ["last"])],
        [value("x", FLOAT, [2, 3])],
        [value("last", FLOAT, [2, 3])],
        [],
        {"x": X[0]},
    )


if __name__ == "__main__":
    sum_of_steps()
    counter_of_the_exporter()
    states_alone()
    condition_on_values()
