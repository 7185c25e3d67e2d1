"""PyTorch: torch.nn.LSTM and torch.nn.GRU in inference mode; packed sequences where lengths differ.

In bf16 module and input are bf16. In int8 they are quantised dynamically, by that one of its engines that is
faster here: x86 (its default; for these cells the same as fbgemm) or onednn. qnnpack is for other CPUs.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from protocol import Request, quick_median, serve
from safetensors.torch import load_file
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

ENGINES = ("x86", "onednn")


class Network:
    def __init__(self, request: Request) -> None:
        torch.set_num_threads(request.threads)
        tensors = load_file(request.file("safetensors"))
        stacks = request.row["stacks"]
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[request.row["cell"]]
        # A list is a module around the others: quantize_dynamic replaces what is inside of one only, and
        # would give an LSTM by itself back as it is.
        self.modules = torch.nn.ModuleList()
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
        if request.precision == "bf16":
            self.modules, self.input = self.modules.bfloat16(), self.input.bfloat16()
        if request.lengths is not None:
            # Packed once, outside the timed call: only what the network itself costs is counted.
            lengths = torch.tensor(request.lengths)
            self.input = pack_padded_sequence(self.input, lengths, enforce_sorted=False)
        self.result, self.facts = None, {}
        if request.precision == "int8":
            self.quantize(kind)

    def quantize(self, kind: type) -> None:
        """The engine that weights are packed by is the one that runs them."""
        medians, plain = {}, self.modules
        for engine in [name for name in ENGINES if name in torch.backends.quantized.supported_engines]:
            torch.backends.quantized.engine = engine
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that this function is to move to another package
                self.modules = torch.ao.quantization.quantize_dynamic(plain, {kind}, dtype=torch.qint8)
            medians[engine] = quick_median(self.call), self.modules
        fastest = min(medians, key=lambda engine: medians[engine][0])
        torch.backends.quantized.engine = fastest
        self.modules, self.facts = medians[fastest][1], {"engine": fastest}

    def call(self) -> None:
        with torch.inference_mode():
            value = self.input
            for module in self.modules:
                value, _ = module(value)
            self.result = value

    def output(self) -> np.ndarray:
        value = self.result
        if isinstance(value, PackedSequence):
            value, _ = pad_packed_sequence(value, total_length=self.steps)
        return value.float().numpy()


if __name__ == "__main__":
    serve(torch.__version__.split("+")[0], Network)
