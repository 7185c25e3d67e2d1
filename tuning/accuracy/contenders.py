"""The models under test, the truth in f64, and what each contender answers: arrays [steps, batch, features]."""

from __future__ import annotations

import copy
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", message=".*torch.quantize_per_tensor.*")
warnings.filterwarnings("ignore", message=".*quantized tensor creation.*")
from torch.ao import quantization  # noqa: E402

PRECISIONS = ("f32", "bf16", "int8")


def is_lstm(model: nn.RNNBase) -> bool:
    return isinstance(model, nn.LSTM)


class Stepped(nn.Module):
    """A tanh RNN as steps of a cell: PyTorch quantises RNNCell, but not RNN."""

    def __init__(self, model: nn.RNN) -> None:
        super().__init__()
        self.cell = nn.RNNCell(model.input_size, model.hidden_size)
        state = model.state_dict()
        self.cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in state.items()})

    def forward(self, x, state):
        h, ys = state[0], []
        for step in x:
            h = self.cell(step, h)
            ys.append(h)
        return torch.stack(ys), h


class Task:
    """A model with its input and first state, from which every contender starts."""

    def __init__(self, name: str, model: nn.RNNBase, x: np.ndarray, h0: np.ndarray | None = None) -> None:
        self.name, self.model, self.x = name, model.eval(), np.ascontiguousarray(x, np.float32)
        directions = 2 if model.bidirectional else 1
        self.h0 = np.zeros((directions, x.shape[1], model.hidden_size), np.float32) if h0 is None else h0

    def state(self, dtype, rows=slice(None)):
        h = torch.from_numpy(self.h0[:, rows].copy()).to(dtype)
        return (h, torch.zeros_like(h)) if is_lstm(self.model) else h

    @torch.no_grad()
    def pytorch(self, dtype, h_error: float = 0.0) -> np.ndarray:
        """PyTorch with everything in `dtype`; on request with an error in the first state."""
        model = copy.deepcopy(self.model).to(dtype)
        state = self.state(dtype)
        if h_error:
            generator = torch.Generator().manual_seed(0)
            off = lambda s: s + h_error * torch.randn(s.shape, generator=generator, dtype=s.dtype)
            state = tuple(map(off, state)) if is_lstm(self.model) else off(state)
        return model(torch.from_numpy(self.x).to(dtype), state)[0].double().numpy()

    @torch.no_grad()
    def pytorch_int8(self, per_channel: bool = False, rows_alone: bool = False) -> np.ndarray:
        """PyTorch's dynamic quantisation. Its scale of activations spans a batch, so sequences alone are its best."""
        model, kind = self.model, type(self.model)
        if isinstance(model, nn.RNN):
            model, kind = Stepped(model), nn.RNNCell
        which = quantization.per_channel_dynamic_qconfig if per_channel else quantization.default_dynamic_qconfig
        model = nn.ModuleList([model])
        small = quantization.quantize_dynamic(model, {kind: which}, dtype=torch.qint8)[0]
        inner = small.cell if isinstance(small, Stepped) else small
        if type(inner) is kind:
            raise SystemExit(f"{self.name}: PyTorch left {kind.__name__} as it was")
        x, width = torch.from_numpy(self.x), self.x.shape[1]
        groups = [slice(row, row + 1) for row in range(width)] if rows_alone else [slice(None)]
        parts = [small(x[:, rows].contiguous(), self.state(torch.float32, rows))[0] for rows in groups]
        return torch.cat(parts, dim=1).double().numpy()

    def ours(self, binary: Path, precision: str) -> np.ndarray:
        """The command line's answer."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            file = folder / "model.safetensors"
            save_file({name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}, file)
            np.save(folder / "x.npy", self.x)
            np.save(folder / "h0.npy", np.ascontiguousarray(self.h0))
            kind = {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: "rnn"}[type(self.model)]
            # Any number of threads gives the same bits.
            command = [binary, "run", file, "--cell", kind, "--precision", precision, "--threads", "1"]
            command += ["--input", f"input={folder}/x.npy", "--input", f"h0={folder}/h0.npy"]
            subprocess.run([*command, "--output", f"output={folder}/y.npy"], check=True)
            return np.load(folder / "y.npy").astype(np.float64)


def random_task(cell: str, hidden: int, seed: int, steps: int, batch: int, features: int = 64) -> Task:
    """PyTorch's default weights, uniform within ±1/sqrt(hidden), and normal inputs."""
    torch.manual_seed(1000 * seed + hidden)
    kind = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}[cell]
    model = kind(features, hidden)
    x = torch.randn(steps, batch, features).numpy()
    return Task(f"{cell} {hidden}", model, x)


def lone(module: nn.GRU) -> nn.GRU:
    """The same weights, time-major and by themselves."""
    gru = nn.GRU(module.input_size, module.hidden_size, bidirectional=module.bidirectional)
    gru.load_state_dict(module.state_dict())
    return gru


def rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(a))))
