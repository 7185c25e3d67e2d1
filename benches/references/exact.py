"""The same network in f64, by the formulas of torch.nn.LSTM and torch.nn.GRU: what outputs are held to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models import Weights, layers_of, prefix
from suites import Row

# Sequences are independent of each other, so of expensive rows only the first few are computed.
MOST_FLOPS = 4e10


def exact(row: Row, weights: Weights, values: np.ndarray) -> np.ndarray:
    """[steps, sequences computed, directions x hidden]; zeros beyond a sequence's end."""
    computed = max(1, min(row.batch, int(MOST_FLOPS / (row.flops / row.batch))))
    lengths = (row.lengths or (row.steps,) * row.batch)[:computed]
    x = values[:, :computed].astype(np.float64)
    for index, stack in enumerate(row.stacks):
        for layer in range(stack.layers):
            outputs = []
            for suffix in [suffix for of, suffix in layers_of(stack) if of == layer]:
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                taken = [weights[f"{prefix(row, index)}{n}_{suffix}"].astype(np.float64) for n in names]
                backward = suffix.endswith("_reverse")
                given = reverse(x, lengths) if backward else x
                y = {"lstm": lstm, "gru": gru}[row.cell](given, *taken)
                outputs.append(reverse(y, lengths) if backward else y)
            x = np.concatenate(outputs, axis=2)
            for sequence, length in enumerate(lengths):
                x[length:, sequence] = 0.0
    return x


def reverse(x: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Each sequence backwards, its padding left where it is."""
    turned = x.copy()
    for sequence, length in enumerate(lengths):
        turned[:length, sequence] = x[:length, sequence][::-1]
    return turned


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def lstm(x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
    products = x @ w.T + (b + d)
    h = np.zeros((x.shape[1], u.shape[1]))
    c, y = np.zeros_like(h), np.empty((*x.shape[:2], u.shape[1]))
    for step, product in enumerate(products):
        i, f, g, o = np.split(product + h @ u.T, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = y[step] = sigmoid(o) * np.tanh(c)
    return y


def gru(x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
    products = x @ w.T + b
    h, y = np.zeros((x.shape[1], u.shape[1])), np.empty((*x.shape[:2], u.shape[1]))
    for step, product in enumerate(products):
        (xr, xz, xn), (hr, hz, hn) = np.split(product, 3, axis=1), np.split(h @ u.T + d, 3, axis=1)
        z = sigmoid(xz + hz)
        h = y[step] = (1.0 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h
    return y


@dataclass(frozen=True)
class Error:
    """How far an output is from f64, over what is no padding; infinite where a value is not a number."""

    most: float  # the largest absolute difference
    rms: float
    relative: float  # rms, over the RMS of the output itself


def error(row: Row, expected: np.ndarray, output: np.ndarray) -> Error:
    """Of `output`, [steps, batch, directions x hidden], on the sequences that were computed in f64."""
    output = output.reshape(row.steps, row.batch, row.output)[:, : expected.shape[1]]
    lengths = row.lengths or (row.steps,) * row.batch
    inside = np.arange(row.steps)[:, None] < np.array(lengths[: expected.shape[1]])[None, :]
    off = (output - expected)[inside]
    if not np.isfinite(off).all():
        return Error(*[float("inf")] * 3)
    rms, whole = (float(np.sqrt(np.mean(part**2))) for part in (off, expected[inside]))
    return Error(float(np.max(np.abs(off))), rms, rms / whole)
