"""PyTorch: torch.nn.LSTM and torch.nn.GRU in inference mode; packed sequences where lengths differ."""

from __future__ import annotations

import numpy as np
import torch
from protocol import Request, serve
from safetensors.torch import load_file
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Network:
    def __init__(self, request: Request) -> None:
        torch.set_num_threads(request.threads)
        tensors = load_file(request.safetensors)
        stacks = request.row["stacks"]
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[request.row["cell"]]
        self.modules = []
        for index, stack in enumerate(stacks):
            module = kind(
                stack["input"], stack["hidden"], stack["layers"], bidirectional=stack["bidirectional"]
            )
            start = f"{index}." if len(stacks) > 1 else ""
            named = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            module.load_state_dict(named)
            self.modules.append(module.eval())
        self.input = torch.from_numpy(request.values)
        self.steps = request.row["steps"]
        self.packed = request.lengths is not None
        if self.packed:
            # Packed once, outside the timed call: only what the network itself costs is counted.
            lengths = torch.tensor(request.lengths)
            self.input = pack_padded_sequence(self.input, lengths, enforce_sorted=False)
        self.result = None

    def call(self) -> None:
        with torch.inference_mode():
            value = self.input
            for module in self.modules:
                value, _ = module(value)
            self.result = value

    def output(self) -> np.ndarray:
        value = self.result
        if self.packed:
            value, _ = pad_packed_sequence(value, total_length=self.steps)
        return value.numpy()


if __name__ == "__main__":
    serve(torch.__version__.split("+")[0], Network)
