"""One set of weights per row, written once in each format that a library reads.

safetensors has PyTorch's names and gate orders (LSTM i f g o, GRU r z n with the reset after the
product); ONNX has its own (LSTM i o f c, GRU z r h with linear_before_reset=1).
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from suites import Row, Stack

Weights = dict[str, np.ndarray]


def weights_of(row: Row) -> Weights:
    """Uniform in ±1/sqrt(hidden), PyTorch's own initialisation; the row's name is the seed."""
    random = np.random.default_rng(zlib.crc32(row.name.encode()))
    made: Weights = {}
    for index, stack in enumerate(row.stacks):
        bound = 1.0 / np.sqrt(stack.hidden)
        wide = row.gates * stack.hidden
        for layer, suffix in layers_of(stack):
            shapes = {
                "weight_ih": (wide, stack.layer_input(layer)),
                "weight_hh": (wide, stack.hidden),
                "bias_ih": (wide,),
                "bias_hh": (wide,),
            }
            for kind, shape in shapes.items():
                values = random.uniform(-bound, bound, shape).astype(np.float32)
                made[f"{prefix(row, index)}{kind}_{suffix}"] = values
    return made


def layers_of(stack: Stack) -> list[tuple[int, str]]:
    """Layer and PyTorch's suffix for it, direction after direction."""
    ends = ("", "_reverse")[: stack.directions]
    return [(layer, f"l{layer}{end}") for layer in range(stack.layers) for end in ends]


def prefix(row: Row, stack: int) -> str:
    """What stands before the names of a stack's tensors: nothing where there is only one."""
    return f"{stack}." if len(row.stacks) > 1 else ""


def input_of(row: Row) -> np.ndarray:
    """[steps, batch, features], uniform in ±1; padding too, so that whoever reads it is found out."""
    random = np.random.default_rng(zlib.crc32(row.name.encode()) ^ 1)
    return random.uniform(-1, 1, (row.steps, row.batch, row.input)).astype(np.float32)


# What the files are called, by what a library says it reads. The weights in them are those of f32, but of
# the last two: int8, with a scale for each gate of each unit, or one for each matrix.
FILES = {
    "safetensors": "model.safetensors",
    "onnx": "model.onnx",
    "onnx-int8": "model.int8.onnx",
    "onnx-int8-per-tensor": "model.int8-per-tensor.onnx",
}


@dataclass
class Written:
    """A row's network and input; which kinds of file could not be written, and why."""

    weights: Weights
    values: np.ndarray
    lacking: dict[str, str] = field(default_factory=dict)


def write(row: Row, folder: Path, kinds: set[str]) -> Written:
    """Writes input.f32, and the network as model.safetensors and what else of `kinds` there is for it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Written(weights_of(row), input_of(row))
    write_safetensors(made.weights, folder / FILES["safetensors"])
    made.values.tofile(folder / "input.f32")
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        why = f"no ONNX file could be written: {error}"
        made.lacking = {kind: why for kind in FILES if kind.startswith("onnx")}
        return made
    write_onnx(row, made.weights, folder / FILES["onnx"])
    # ONNX has no quantised GRU; libraries that read these files are not asked for one.
    if row.cell == "lstm" and any(kind.startswith("onnx-int8") for kind in kinds):
        try:
            write_int8(folder)
        except ImportError as error:
            why = f"no int8 ONNX file could be written: {error}"
            made.lacking = {kind: why for kind in FILES if kind.startswith("onnx-int8")}
    return made


def write_int8(folder: Path) -> None:
    """As its users do: ONNX Runtime's quantizer on the f32 file, which makes each LSTM a DynamicQuantizeLSTM."""
    from onnxruntime.quantization import quantize_dynamic

    # It advises to have the graph optimised first; of these nothing would come of that.
    logging.disable(logging.WARNING)
    try:
        for kind in ("onnx-int8", "onnx-int8-per-tensor"):
            per_channel = kind == "onnx-int8"
            quantize_dynamic(folder / FILES["onnx"], folder / FILES[kind], per_channel=per_channel)
    finally:
        logging.disable(logging.NOTSET)


def write_safetensors(weights: Weights, path: Path) -> None:
    """The format is a length, a JSON header and the bytes: written here, so that the self-check needs NumPy alone."""
    header, at = {}, 0
    for name, values in weights.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in weights.values():
            file.write(values.tobytes())


# Positions of ONNX's gates among PyTorch's.
ONNX_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


def onnx_gates(cell: str, values: np.ndarray) -> np.ndarray:
    """Rows of a gate matrix, or values of a bias, from PyTorch's order into ONNX's."""
    order = ONNX_ORDER[cell]
    blocks = np.split(values, len(order))
    return np.concatenate([blocks[i] for i in order])


def write_onnx(row: Row, weights: Weights, path: Path) -> None:
    """A node per layer; `input` [T, B, E] (and `lengths` [B]) to `output` [T, B, directions x H]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants = [], []

    def constant(name: str, values: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    value, lengths = "input", "lengths" if row.lengths else ""
    for index, stack in enumerate(row.stacks):
        for layer in range(stack.layers):
            at = f"{index}_{layer}"
            parts: dict[str, list[np.ndarray]] = {"W": [], "R": [], "B": []}
            for suffix in [suffix for of, suffix in layers_of(stack) if of == layer]:
                take = lambda kind: weights[f"{prefix(row, index)}{kind}_{suffix}"]  # noqa: E731
                gates = lambda kind: onnx_gates(row.cell, take(kind))  # noqa: E731
                parts["W"].append(gates("weight_ih"))
                parts["R"].append(gates("weight_hh"))
                parts["B"].append(np.concatenate([gates("bias_ih"), gates("bias_hh")]))
            inputs = [value, *(constant(f"{k}_{at}", np.stack(v)) for k, v in parts.items()), lengths]
            direction = "bidirectional" if stack.bidirectional else "forward"
            more = {"linear_before_reset": 1} if row.cell == "gru" else {}
            last = index == len(row.stacks) - 1 and layer == stack.layers - 1
            y, value = f"Y_{at}", "output" if last else f"x_{at}"
            kind = row.cell.upper()
            nodes.append(helper.make_node(kind, inputs, [y], hidden_size=stack.hidden, direction=direction, **more))
            if stack.bidirectional:  # [T, 2, B, H] to [T, B, 2 x H]
                nodes.append(helper.make_node("Transpose", [y], [f"t_{at}"], perm=[0, 2, 1, 3]))
                shape = constant(f"shape_{at}", np.array([0, 0, -1], np.int64))
                nodes.append(helper.make_node("Reshape", [f"t_{at}", shape], [value]))
            else:
                axis = constant(f"axis_{at}", np.array([1], np.int64))
                nodes.append(helper.make_node("Squeeze", [y, axis], [value]))
    make = helper.make_tensor_value_info
    inputs = [make("input", TensorProto.FLOAT, [row.steps, row.batch, row.input])]
    if row.lengths:
        inputs.append(make("lengths", TensorProto.INT32, [row.batch]))
    output = make("output", TensorProto.FLOAT, [row.steps, row.batch, row.output])
    graph = helper.make_graph(nodes, "network", inputs, [output], constants)
    # Old enough for every reader, new enough for what the nodes say.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.save(model, str(path))
