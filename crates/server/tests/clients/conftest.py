"""A server of the program over a repository in a temporary folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[4]
FEATURES, HIDDEN = 5, 7


class Addresses(NamedTuple):
    http: str
    grpc: str
    pid: int


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Lstm:
    """The formula of an LSTM, in float64."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        uniform = lambda *shape: random.uniform(-0.5, 0.5, shape).astype(np.float32)  # noqa: E731
        self.weights = {
            "weight_ih_l0": uniform(4 * HIDDEN, FEATURES),
            "weight_hh_l0": uniform(4 * HIDDEN, HIDDEN),
            "bias_ih_l0": uniform(4 * HIDDEN),
            "bias_hh_l0": uniform(4 * HIDDEN),
        }

    def run(self, x: np.ndarray) -> np.ndarray:
        """``[batch, steps, features]`` to ``[batch, steps, hidden]``."""
        w, u, b, d = (weight.astype(np.float64) for weight in self.weights.values())
        h = c = np.zeros((x.shape[0], HIDDEN))
        outputs = []
        for step in x.astype(np.float64).swapaxes(0, 1):
            i, f, g, o = np.split(step @ w.T + h @ u.T + b + d, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
        return np.stack(outputs, axis=1)


@pytest.fixture(scope="session")
def lstm() -> Lstm:
    return Lstm(1)


@contextmanager
def serving(repository: Path, *options: str, folder: Path | None = None) -> Iterator[Addresses]:
    """Runs the program in a folder; at the end it must stop with all requests answered."""
    program = str(Path(os.environ.get("GATESTREAM", ROOT / "target" / "debug" / "gatestream")).absolute())
    command = [program, "serve", str(repository), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *options]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert running.stdout is not None
    for line in running.stdout:
        # http://127.0.0.1:40000 (gRPC 127.0.0.1:40001)
        if line.startswith(("http://", "https://")):
            http, grpc = line.strip().partition("://")[2].rstrip(")").split(" (gRPC ")
            break
    else:
        raise AssertionError("the server has not started")
    try:
        yield Addresses(http, grpc, running.pid)
    finally:
        running.terminate()
    assert running.wait(60) == 0, "all requests and sequences had ended"


@pytest.fixture(scope="session")
def repository(lstm: Lstm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    for name in ("lstm", "frames"):
        (repository / name / "1").mkdir(parents=True)
        save_file(lstm.weights, repository / name / "1" / "model.safetensors")
    (repository / "frames" / "config.toml").write_text("[sequences]\nonly = true\n")
    (repository / "g2p" / "1").mkdir(parents=True)
    models = ROOT / "examples" / "models"
    (repository / "g2p" / "1" / "model.safetensors").symlink_to(models / "g2p.safetensors")
    (repository / "g2p" / "config.toml").symlink_to(models / "config.toml")
    return repository


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[Addresses]:
    with serving(repository) as addresses:
        yield addresses
