"""Networks and their plain definitions in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import gatestream


def weights(cell: str, features: int, hidden: int, seed: int = 0, layers: int = 1) -> dict[str, np.ndarray]:
    """Random weights with the names of PyTorch's modules."""
    gates = {"lstm": 4, "gru": 3}.get(cell, 1)
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        inputs = features if layer == 0 else hidden
        for name, shape in (
            ("weight_ih", (gates * hidden, inputs)),
            ("weight_hh", (gates * hidden, hidden)),
            ("bias_ih", (gates * hidden,)),
            ("bias_hh", (gates * hidden,)),
        ):
            tensors[f"{name}_l{layer}"] = rng.uniform(-0.4, 0.4, shape).astype(np.float32)
    return tensors


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(tensors: dict[str, np.ndarray], x: np.ndarray, layer: int = 0) -> np.ndarray:
    """An LSTM in float64, by its formula: ``[steps, batch, features]`` to ``[steps, batch, hidden]``."""
    w, u, b, c = (tensors[f"{name}_l{layer}"].astype(np.float64) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    hidden = u.shape[1]
    h = cell = np.zeros((x.shape[1], hidden))
    outputs = []
    for step in x.astype(np.float64):
        z = step @ w.T + h @ u.T + b + c
        i, f, g, o = (z[:, at * hidden : (at + 1) * hidden] for at in range(4))
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(cell)
        outputs.append(h)
    return np.stack(outputs)


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    return weights("lstm", 12, 24)


@pytest.fixture
def model(tensors: dict[str, np.ndarray]) -> gatestream.Model:
    return gatestream.Model.from_state_dict(tensors)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(30, 3, 12)).astype(np.float32)
