"""The f32 twin of a graph with DynamicQuantizeLSTM: the same weights, which are multiplied out, and exact arithmetic
in the recurrent nodes. Two libraries that quantise activations differently are both compared with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


def write(path: Path, target: Path) -> int:
    """Writes the twin; the number of nodes that were replaced."""
    model = onnx.load(path)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    replaced = 0
    for node in model.graph.node:
        if node.op_type != "DynamicQuantizeLSTM":
            continue
        given = [*node.input, *[""] * (12 - len(node.input))]
        for slot, scale, zero in ((1, 8, 9), (2, 10, 11)):
            name = f"{node.name}/dequantized_{slot}"
            weights = weight(*(constants[given[at]] for at in (slot, scale, zero)))
            model.graph.initializer.append(numpy_helper.from_array(weights, name))
            given[slot] = name
        del node.input[:]
        node.input.extend(given[:8])
        node.op_type, node.domain = "LSTM", ""
        replaced += 1
    onnx.save(model, target)
    return replaced


def weight(values: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """`[directions, columns, 4 hidden]` int8, a scale for each direction or each gate's unit; the f32 matrix as the
    operator LSTM wants it, `[directions, 4 hidden, columns]`."""
    shape = (values.shape[0], 1, -1)
    numbers = (values.astype(np.float64) - zero.astype(np.float64).reshape(shape)) * scale.reshape(shape)
    return np.ascontiguousarray(numbers.astype(np.float32).transpose(0, 2, 1))
