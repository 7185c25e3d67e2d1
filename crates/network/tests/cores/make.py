#!/usr/bin/env python3
"""Writes a graph with recurrent nodes among others, and the values around them of ONNX Runtime.

    pip install onnx onnxruntime numpy
    python3 make.py
"""

import pathlib

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FEATURES, HIDDEN = 5, 4
random = numpy.random.default_rng(11)


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def weights(*shape):
    return random.uniform(-0.5, 0.5, shape).astype(numpy.float32)


constants = []


def constant(name, array):
    constants.append(numpy_helper.from_array(numpy.asarray(array), name))
    return name


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs, outputs, outputs[0] + "_node", **attributes)


def zeros(directions):
    """States of zeros, whose size comes from the shape of the input."""
    return [
        node("Shape", ["x"], [f"shape{directions}"]),
        node("Slice", [f"shape{directions}", "one", "two", "zero"], [f"batch{directions}"]),
        node("Concat", [constant(f"d{directions}", [directions]), f"batch{directions}", "hidden"],
             [f"sizes{directions}"], axis=0),
        node("ConstantOfShape", [f"sizes{directions}"], [f"zeros{directions}"]),
    ]


constant("zero", [0])
constant("one", [1])
constant("two", [2])
constant("hidden", [HIDDEN])
constant("lengths", numpy.array([6, 4, 5], numpy.int32))
constant("w1_flat", weights(2 * 4 * HIDDEN, FEATURES))
constant("w1_shape", [2, 4 * HIDDEN, FEATURES])
constant("r1", weights(2, 4 * HIDDEN, HIDDEN))
constant("b1", weights(2, 8 * HIDDEN))
constant("y1_shape", [0, 0, 2 * HIDDEN])
constant("w2", weights(1, 3 * HIDDEN, 2 * HIDDEN))
constant("r2", weights(1, 3 * HIDDEN, HIDDEN))
constant("h2", weights(1, 3, HIDDEN))
constant("w3", weights(1, HIDDEN, HIDDEN))
constant("r3", weights(1, HIDDEN, HIDDEN))

branch = {
    name: helper.make_graph(
        [node("RNN", ["last", "w3", "r3"], [f"{name}_y", f"{name}_h"], hidden_size=HIDDEN,
              activations=[activation])],
        name, [], [value(f"{name}_h", FLOAT, None)])
    for name, activation in [("then", "Relu"), ("else", "Tanh")]
}
nodes = [
    *zeros(2),
    node("Relu", ["x"], ["relu"]),
    # Weights that constants compute.
    node("Reshape", ["w1_flat", "w1_shape"], ["w1"]),
    node("LSTM", ["relu", "w1", "r1", "b1", "lengths", "zeros2", "zeros2"], ["y1"], hidden_size=HIDDEN,
         direction="bidirectional"),
    node("Transpose", ["y1"], ["y1_major"], perm=[0, 2, 1, 3]),
    node("Reshape", ["y1_major", "y1_shape"], ["x2"]),
    node("GRU", ["x2", "w2", "r2", "", "lengths", "h2"], ["y2", "h"], hidden_size=HIDDEN,
         linear_before_reset=1),
    node("Squeeze", ["y2", "one"], ["squeezed"]),
    node("Exp", ["squeezed"], ["last"]),
    node("If", ["chosen"], ["end"], then_branch=branch["then"], else_branch=branch["else"]),
]
graph = helper.make_graph(
    nodes, "graph",
    [value("x", FLOAT, ["T", 3, FEATURES]), value("chosen", BOOL, [])],
    [value("end", FLOAT, [1, 3, HIDDEN])], constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
folder = pathlib.Path(__file__).parent
onnx.save(model, folder / "among_others.onnx")
around = ["lengths", "h2", "relu", "x2", "y1", "y2", "h", "last", "end"]
for name in around[:-1]:
    kind = TensorProto.INT32 if name == "lengths" else FLOAT
    model.graph.output.append(value(name, kind, None))
session = onnxruntime.InferenceSession(model.SerializeToString())
x = random.standard_normal((6, 3, FEATURES)).astype(numpy.float32)
values = session.run(around, {"x": x, "chosen": numpy.array(True)})
stored = {f"out:{name}": array for name, array in zip(around, values)}
numpy.savez(folder / "among_others.npz", **{"in:x": x}, **stored)
