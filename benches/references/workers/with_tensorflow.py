"""TensorFlow: Keras layers inside a tf.function, DeepCPU's baseline as it is today."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf
from protocol import Request, serve
from safetensors.numpy import load_file


class Network:
    configured = False

    def __init__(self, request: Request) -> None:
        if not Network.configured:  # possible only before the first operation
            tf.config.threading.set_intra_op_parallelism_threads(request.threads)
            tf.config.threading.set_inter_op_parallelism_threads(request.threads)
            Network.configured = True
        tensors, row = load_file(request.file("safetensors")), request.row
        self.layers: list[tuple] = []
        for index, stack in enumerate(row["stacks"]):
            start = f"{index}." if len(row["stacks"]) > 1 else ""
            for layer in range(stack["layers"]):
                ends = ("", "_reverse") if stack["bidirectional"] else ("",)
                wide = stack["hidden"] * len(ends)
                features = stack["input"] if layer == 0 else wide
                made = tuple(
                    keras_layer(row["cell"], stack["hidden"], features, tensors, f"{start}%s_l{layer}{end}")
                    for end in ends
                )
                self.layers.append(made)
        # Keras has batch before steps.
        self.input = tf.constant(np.ascontiguousarray(request.values.transpose(1, 0, 2)))
        mask = None
        if request.lengths is not None:
            mask = tf.sequence_mask(request.lengths, row["steps"])
        self.function = tf.function(lambda value: self.graph(value, mask))
        self.result = None

    def graph(self, value, mask):
        for directions in self.layers:
            outputs = [directions[0](value, mask=mask)]
            if len(directions) == 2:
                turned = directions[1](tf.reverse(value, [1]), mask=None if mask is None else tf.reverse(mask, [1]))
                outputs.append(tf.reverse(turned, [1]))
            value = tf.concat(outputs, 2) if len(outputs) == 2 else outputs[0]
        return value

    def call(self) -> None:
        self.result = self.function(self.input)

    def output(self) -> np.ndarray:
        return self.result.numpy().transpose(1, 0, 2)


def keras_layer(cell: str, hidden: int, features: int, tensors: dict, name: str):
    """A layer with PyTorch's weights: kernels transposed; of a GRU, update before reset."""
    w, u = tensors[name % "weight_ih"], tensors[name % "weight_hh"]
    b, d = tensors[name % "bias_ih"], tensors[name % "bias_hh"]
    if cell == "lstm":
        layer = tf.keras.layers.LSTM(hidden, return_sequences=True)
        given = [w.T, u.T, b + d]
    else:
        swap = lambda a: np.concatenate([np.split(a, 3)[i] for i in (1, 0, 2)])  # noqa: E731
        layer = tf.keras.layers.GRU(hidden, return_sequences=True, reset_after=True)
        given = [swap(w).T, swap(u).T, np.stack([swap(b), swap(d)])]
    layer.build((None, None, features))
    layer.set_weights(given)
    return layer


if __name__ == "__main__":
    serve(tf.__version__, Network)
