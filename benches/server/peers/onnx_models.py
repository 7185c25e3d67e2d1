"""The models of the comparison as ONNX files, and as functions of a batch on ONNX Runtime.

`Lstm` pads the sequences of a batch; `G2p` runs the encoder with the lengths of the words, and the decoder step by
step until all words of the batch have ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime

WIDTH = 1024


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class Lstm:
    """`input` `[steps, 1024]` to `output` `[steps, 1024]`."""

    name, datatype, shape = "input", "FP32", [-1, -1, WIDTH]

    def __init__(self, folder: Path) -> None:
        self.session = session(folder / "lstm.onnx")

    def __call__(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        # A request is `[1, steps, 1024]`.
        steps = [x.shape[1] for x in inputs]
        batch = np.zeros((max(steps), len(inputs), WIDTH), np.float32)
        for row, x in enumerate(inputs):
            batch[: x.shape[1], row] = x[0]
        (output,) = self.session.run(["output"], {"input": batch})
        return [output[:count, 0, row] for row, count in enumerate(steps)]


class G2p:
    """`source` `[letters]` to the phonemes."""

    name, datatype, shape = "source", "INT64", [-1]
    BEGIN, END, LIMIT = 0, 1, 40

    def __init__(self, folder: Path) -> None:
        self.encoder, self.decoder = session(folder / "encoder.onnx"), session(folder / "decoder.onnx")

    def __call__(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        lengths = np.array([len(word) for word in inputs], np.int32)
        letters = np.zeros((lengths.max(), len(inputs)), np.int64)
        for row, word in enumerate(inputs):
            letters[: len(word), row] = word
        (state,) = self.encoder.run(["state"], {"letters": letters, "lengths": lengths})
        symbol = np.full(len(inputs), self.BEGIN, np.int64)
        symbols = []
        has_ended = np.zeros(len(inputs), bool)
        while len(symbols) < self.LIMIT and not has_ended.all():
            symbol, state = self.decoder.run(["symbol", "next_state"], {"previous": symbol, "state": state})
            symbols.append(symbol)
            has_ended |= symbol == self.END
        words = np.stack(symbols, axis=1)
        ends = [np.flatnonzero(word == self.END) for word in words]
        return [word[: end[0] if len(end) else len(word)] for word, end in zip(words, ends)]


MODELS = {"lstm": Lstm, "g2p": G2p}


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    types = {"F32": "<f4", "F16": "<f2"}
    return {
        name: np.frombuffer(values[slice(*entry["data_offsets"])], types[entry["dtype"]])
        .reshape(entry["shape"])
        .astype(np.float32)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def gates(weights: np.ndarray, order: list[int]) -> np.ndarray:
    """PyTorch's gates in the order of ONNX."""
    return np.concatenate([np.split(weights, len(order))[gate] for gate in order])


def recurrent(tensors: dict[str, np.ndarray], prefix: str, suffixes: list[str], order: list[int]) -> list[np.ndarray]:
    """W, R and B of a node, with a direction for each suffix."""

    def stacked(name: str) -> np.ndarray:
        return np.stack([gates(tensors[f"{prefix}{name}{suffix}"], order) for suffix in suffixes])

    biases = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)
    return [stacked("weight_ih"), stacked("weight_hh"), biases]


def export(weights: Path, g2p: Path, folder: Path) -> None:
    """Writes lstm.onnx of the weights of an `nn.LSTM`, encoder.onnx and decoder.onnx of `g2p.safetensors`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def save(name: str, nodes: list, constants: dict[str, np.ndarray], inputs: list, outputs: list) -> None:
        values = [numpy_helper.from_array(value, key) for key, value in constants.items()]
        graph = helper.make_graph(nodes, name, inputs, outputs, values)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, folder / f"{name}.onnx")

    def port(name: str, kind: int, shape: list) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    float32, int64, int32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
    w, r, b = recurrent(read(weights), "", ["_l0"], [0, 3, 1, 2])
    save(
        "lstm",
        [helper.make_node("LSTM", ["input", "w", "r", "b"], ["output"], hidden_size=WIDTH)],
        {"w": w, "r": r, "b": b},
        [port("input", float32, ["steps", "batch", WIDTH])],
        [port("output", float32, ["steps", 1, "batch", WIDTH])],
    )
    tensors = read(g2p)
    order = [1, 0, 2]
    w, r, b = recurrent(tensors, "encoder.rnn.", ["_l0", "_l0_reverse"], order)
    hidden = r.shape[2]
    options = {"hidden_size": hidden, "direction": "bidirectional", "linear_before_reset": 1}
    save(
        "encoder",
        [
            helper.make_node("Gather", ["embedding", "letters"], ["x"]),
            helper.make_node("GRU", ["x", "w", "r", "b", "lengths"], ["", "last"], **options),
            helper.make_node("Transpose", ["last"], ["rows"], perm=[1, 0, 2]),
            helper.make_node("Reshape", ["rows", "shape"], ["state"]),
        ],
        {
            "embedding": tensors["encoder.embedding.weight"], "w": w, "r": r, "b": b,
            "shape": np.array([1, -1, 2 * hidden]),
        },  # fmt: skip
        [port("letters", int64, ["letters", "batch"]), port("lengths", int32, ["batch"])],
        [port("state", float32, [1, "batch", 2 * hidden])],
    )
    w, r, b = recurrent(tensors, "decoder.rnn.", ["_l0"], order)
    hidden = r.shape[2]
    options = {"hidden_size": hidden, "linear_before_reset": 1}
    save(
        "decoder",
        [
            helper.make_node("Gather", ["embedding", "previous"], ["row"]),
            helper.make_node("Unsqueeze", ["row", "first"], ["x"]),
            helper.make_node("GRU", ["x", "w", "r", "b", "", "state"], ["", "next_state"], **options),
            helper.make_node("Squeeze", ["next_state", "first"], ["h"]),
            helper.make_node("Gemm", ["h", "projection", "bias"], ["logits"], transB=1),
            helper.make_node("ArgMax", ["logits"], ["symbol"], axis=1, keepdims=0),
        ],
        {
            "embedding": tensors["decoder.embedding.weight"], "w": w, "r": r, "b": b, "first": np.array([0]),
            "projection": tensors["output.weight"], "bias": tensors["output.bias"],
        },  # fmt: skip
        [port("previous", int64, ["batch"]), port("state", float32, [1, "batch", hidden])],
        [port("symbol", int64, ["batch"]), port("next_state", float32, [1, "batch", hidden])],
    )
