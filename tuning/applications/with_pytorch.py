"""PyTorch: an application's module in inference mode."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benches" / "references" / "workers")]

from modules import applications  # noqa: E402
from protocol import serve  # noqa: E402


class Network:
    """The application that a file is of; its weights and inputs are those of the seed."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        name = Path(request["model"]).stem
        self.application = next(a for a in applications(small=False) if a.name == name)

    def call(self) -> None:
        self.answers = self.application.answers()

    def output(self) -> list[np.ndarray]:
        return [answer.numpy() for answer in self.answers.values()]


if __name__ == "__main__":
    serve(torch.__version__.split("+")[0], Network, dict)
