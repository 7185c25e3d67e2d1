"""The definition of int8 in src/model/precision.rs and src/reference/, in numpy, with a choice: how the state
is scaled.

    dynamic   by its greatest magnitude, for each sequence and step: what the reference defines
    fixed     by 1/127, since |h| < 1

All sums are exact: a row of at most 1040 products of two numbers within ±127 stays below 2^24, so f32's matrix
product adds whole numbers. Activations are f64's rounded to f32, where ours err by up to 2 units in the last place.
"""

from __future__ import annotations

import numpy as np
from torch import nn

F32 = np.float32
TINY_ROW, TINY_STATE = F32(2.0**-100), F32(2.0**-64)


def fma(a, b, c):
    return F32(np.float64(a) * np.float64(b) + np.float64(c))


def dynamic(values):
    """Whole numbers and their scale, for each row."""
    most = np.abs(values).max(axis=-1, keepdims=True)
    tiny = most < TINY_ROW
    q = np.rint(values * (F32(127) / np.where(tiny, F32(1), most)))
    return np.where(tiny, F32(0), q), np.where(tiny, F32(0), most / F32(127))


def fixed(values):
    """The same for values within ±1, whatever they are."""
    if np.abs(values).max() > 1:
        raise ValueError("a state beyond 1 has no fixed scale")
    return np.rint(values * F32(127)), F32(1) / F32(127)


SCALES = {"dynamic": dynamic, "fixed": fixed}


class Matrix:
    def __init__(self, weights: np.ndarray) -> None:
        if weights.shape[1] > 1040:
            raise ValueError("a sum could leave f32's whole numbers")
        most = np.abs(weights).max(axis=1, keepdims=True)
        scale = np.where(most < TINY_ROW, F32(0), most / F32(127))
        q = np.rint(weights / np.where(scale == 0, F32(1), scale)).clip(-127, 127)
        self.q, self.scale = np.where(scale == 0, F32(0), q).T.copy(), scale[:, 0]

    def times(self, quantised, start):
        q, scale = quantised
        return fma(q @ self.q, scale * self.scale, start)


def sigmoid(x):
    return F32(1 / (1 + np.exp(-np.float64(x))))


def tanh(x):
    return F32(np.tanh(np.float64(x)))


def flush(state):
    return np.where(np.abs(state) < TINY_STATE, F32(0), state)


class Direction:
    def __init__(self, model: nn.RNNBase, suffix: str, scale: str) -> None:
        tensor = lambda name: getattr(model, name + suffix).detach().numpy()
        self.input, self.recurrent = Matrix(tensor("weight_ih")), Matrix(tensor("weight_hh"))
        self.input_bias, self.recurrent_bias = tensor("bias_ih"), tensor("bias_hh")
        self.step = {nn.LSTM: self.lstm, nn.GRU: self.gru, nn.RNN: self.rnn}[type(model)]
        self.is_gru = isinstance(model, nn.GRU)
        self.quantise = SCALES[scale]

    def run(self, x: np.ndarray, h: np.ndarray) -> np.ndarray:
        """[steps, batch, features] -> [steps, batch, hidden]."""
        steps, hidden = len(x), h.shape[1]
        bias = self.input_bias + self.recurrent_bias
        if self.is_gru:  # the candidate has two chains, each with its own bias
            bias[2 * hidden :] = self.input_bias[2 * hidden :]
        of_input = self.input.times(dynamic(x), bias)
        state, ys = (h, np.zeros_like(h)), np.empty((steps, *h.shape), F32)
        for step in range(steps):
            state = self.step(of_input[step], state)
            ys[step] = state[0]
        return ys

    def lstm(self, z, state):
        h, c = state
        i, f, g, o = np.split(self.recurrent.times(self.quantise(h), z), 4, axis=1)
        c = flush(fma(sigmoid(f), c, sigmoid(i) * tanh(g)))
        return flush(sigmoid(o) * tanh(c)), c

    def gru(self, z, state):
        h, c = state
        hidden = h.shape[1]
        candidate = z[:, 2 * hidden :].copy()
        z = z.copy()
        z[:, 2 * hidden :] = self.recurrent_bias[2 * hidden :]
        z = self.recurrent.times(self.quantise(h), z)
        r, u = sigmoid(z[:, :hidden]), sigmoid(z[:, hidden : 2 * hidden])
        n = tanh(fma(r, z[:, 2 * hidden :], candidate))
        return flush(fma(u, h, (F32(1) - u) * n)), c

    def rnn(self, z, state):
        h, c = state
        return flush(tanh(self.recurrent.times(self.quantise(h), z))), c


def run(model: nn.RNNBase, x: np.ndarray, h0: np.ndarray, scale: str) -> np.ndarray:
    """One layer, one direction or two, in int8; as f64 for comparing."""
    ys = [Direction(model, "_l0", scale).run(x, h0[0])]
    if model.bidirectional:
        ys.append(Direction(model, "_l0_reverse", scale).run(x[::-1], h0[1])[::-1])
    return np.concatenate(ys, axis=2).astype(np.float64)
