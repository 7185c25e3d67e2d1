"""PyTorch modules without and with gatestream.torch: Table 1's rows, packed sentences, a compiled model.

    python bindings/python/benches/torch_layers.py --lengths FILE [--record]

Both run in one process, in turns, with PyTorch's default number of threads. Its pool sleeps between calls.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import gatestream.torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "benches" / "references"), str(ROOT / "benches")]

from report import records  # noqa: E402
from suites import default_lengths, lengths_from, table1  # noqa: E402


def median(call: Callable[[], object], seconds: float) -> float:
    """Of one call, in milliseconds."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def compare(name: str, theirs: Callable[[], object], ours: Callable[[], object], rounds: int) -> dict[str, str]:
    """A row of the record."""
    for call in (theirs, ours):
        for _ in range(3):
            call()
    turns = [(median(theirs, 0.1), median(ours, 0.1)) for _ in range(rounds)]
    plain, mine = (statistics.median(column) for column in zip(*turns))
    print(f"{name:<28} {plain:>9.4f} {mine:>9.4f} {plain / mine:>6.2f}", flush=True)
    return {"row": name, "pytorch_median_ms": f"{plain:.4f}", "gatestream_median_ms": f"{mine:.4f}", "ratio": f"{plain / mine:.3f}"}


def both(name: str, layer: nn.Module, x: Tensor | PackedSequence, rounds: int) -> dict[str, str]:
    """A layer and its replacement."""
    mine = gatestream.torch.optimize(copy.deepcopy(layer))
    with torch.inference_mode():
        return compare(name, lambda: layer(x), lambda: mine(x), rounds)


class Tagger(nn.Module):
    """Convolution, LSTM, output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(80, 128, 3, padding=1)
        self.lstm = nn.LSTM(128, 256, batch_first=True)
        self.out = nn.Linear(256, 40)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return self.out(y)


def overhead() -> list[dict[str, str]]:
    """The call of a module with the smallest layer, and of its session alone."""
    layer = gatestream.torch.optimize(nn.LSTM(64, 64).eval())
    x = torch.randn(1, 1, 64)
    with torch.inference_mode():
        y, (h, c) = layer(x)
        session = layer.__dict__["_fast_path"].session
        addresses = (x.data_ptr(), 0, 0, y.data_ptr(), h.data_ptr(), c.data_ptr())
        calls = {"module": lambda: layer(x), "session": lambda: session.run(1, 1, False, *addresses)}
        times = {f"lstm-64-64-b1-t1-{name}": median(call, 1.0) for name, call in calls.items()}
    print(*(f"{name} {1e3 * time:.2f} µs" for name, time in times.items()), sep="\n", flush=True)
    return [{"row": name, "pytorch_median_ms": "", "gatestream_median_ms": f"{time:.5f}", "ratio": ""}
            for name, time in times.items()]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="a CSV of lengths of sentences for packed sequences")
    parser.add_argument("--rounds", type=int, default=5, metavar="R")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    lengths = lengths_from(given.lengths) if given.lengths else default_lengths()
    rows = []
    print(f"{'row':<28} {'PyTorch':>9} {'ours':>9} {'ratio':>6}")
    for row in table1():
        kind = nn.LSTM if row.cell == "lstm" else nn.GRU
        stack = row.stacks[0]
        layer = kind(stack.input, stack.hidden, stack.layers, bidirectional=stack.bidirectional).eval()
        x = torch.randn(row.steps, row.batch, row.input)
        rows.append(both(row.name, layer, x, given.rounds))
    for kind, hidden in ((nn.LSTM, 256), (nn.GRU, 256), (nn.LSTM, 512)):
        layer = kind(256, hidden, bidirectional=True).eval()
        packed = pack_sequence([torch.randn(length, 256) for length in lengths], enforce_sorted=False)
        rows.append(both(f"packed-{kind.__name__.lower()}-{hidden}-bi", layer, packed, given.rounds))
    rows.extend(overhead())
    model, x = Tagger().eval(), torch.randn(1, 100, 80)
    with torch.no_grad():
        compiled = torch.compile(gatestream.torch.optimize(copy.deepcopy(model)), fullgraph=True)
        rows.append(compare("compiled-conv-lstm-linear", lambda: model(x), lambda: compiled(x), given.rounds))
    if given.record:
        records.write(records.folder() / "python.csv", records.stamp("bindings/python/benches/torch_layers.py"), rows)


if __name__ == "__main__":
    main()
