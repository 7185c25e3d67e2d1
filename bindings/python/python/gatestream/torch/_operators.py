"""The operators ``gatestream::recurrent`` and ``gatestream::recurrent_packed``.

``weights`` are those of ``nn.LSTM.all_weights``, one after the other. The results are the output
and the final states; the last is empty for a cell without a cell state.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, _VF

from ..errors import InputError, TooLargeError
from ._sessions import sessions


class Sizes(NamedTuple):
    """Sizes of outputs and states of a stack."""

    output: int
    """Features of an output step."""
    blocks: int
    """Blocks of a state: layers times directions."""
    hidden: int
    """Values of a block of the hidden state."""
    cell: int
    """Values of a block of the cell state; 0: there is none."""


def sizes_of(weights: list[Tensor], mode: str, layers: int, bidirectional: bool) -> Sizes:
    """The sizes of a stack with these weights."""
    directions = 2 if bidirectional else 1
    rows, hidden = weights[1].shape  # weight_hh
    return Sizes(
        output=hidden * directions,
        blocks=layers * directions,
        hidden=hidden,
        cell=rows // 4 if mode == "LSTM" else 0,
    )


def _results(
    x: Tensor, axes: tuple[int, ...], batch: int, sizes: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised results: an output with these axes before its features, and the states."""
    return (
        x.new_empty((*axes, sizes.output)),
        x.new_empty((sizes.blocks, batch, sizes.hidden)),
        x.new_empty((sizes.blocks, batch, sizes.cell) if sizes.cell else (0,)),
    )


def _contiguous(state: Optional[Tensor]) -> Optional[Tensor]:
    return None if state is None else _aligned(state)


def _array(tensor: Optional[Tensor]) -> tuple[int, int]:
    """The address of a tensor and its number of values; 0: there is none."""
    return (0, 0) if tensor is None else (tensor.data_ptr(), tensor.numel())


def _aligned(x: Tensor) -> Tensor:
    """As a tensor with its values one after the other, at an address for numbers."""
    x = x.contiguous()
    return x if x.data_ptr() % 4 == 0 else x.clone()


def run(
    x: Tensor,
    h0: Optional[Tensor],
    c0: Optional[Tensor],
    weights: list[Tensor],
    mode: str,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs sequences ``[steps, batch, features]``, or ``[batch, steps, features]``."""
    session = sessions.get(weights, mode, layers, bidirectional)
    first, second, _ = x.shape
    steps, batch = (second, first) if batch_first else (first, second)
    x, h0, c0 = _aligned(x), _contiguous(h0), _contiguous(c0)
    sizes = sizes_of(weights, mode, layers, bidirectional)
    results = _results(x, (first, second), batch, sizes)
    y, hn, cn = map(_array, results)
    session.run(steps, batch, batch_first, *_array(x), *_array(h0), *_array(c0), *y, *hn, *cn)
    return results


def run_packed(
    data: Tensor,
    batch_sizes: Tensor,
    h0: Optional[Tensor],
    c0: Optional[Tensor],
    weights: list[Tensor],
    mode: str,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs the sequences of a ``PackedSequence``; :class:`TooLargeError`: they are too uneven."""
    session = sessions.get(weights, mode, layers, bidirectional)
    counts = batch_sizes.tolist()
    data, h0, c0 = _aligned(data), _contiguous(h0), _contiguous(c0)
    sizes = sizes_of(weights, mode, layers, bidirectional)
    results = _results(data, (data.shape[0],), counts[0], sizes)
    y, hn, cn = map(_array, results)
    session.run_packed(counts, *_array(data), *_array(h0), *_array(c0), *y, *hn, *cn)
    return results


def _run_original_packed(
    data: Tensor,
    batch_sizes: Tensor,
    h0: Optional[Tensor],
    c0: Optional[Tensor],
    weights: list[Tensor],
    mode: str,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`run_packed`, by PyTorch, which does not pad."""
    sizes = sizes_of(weights, mode, layers, bidirectional)
    states = sizes.blocks, int(batch_sizes[0])
    h0 = data.new_zeros((*states, sizes.hidden)) if h0 is None else h0
    has_biases = len(weights) // sizes.blocks >= 4
    options = weights, has_biases, layers, 0.0, False, bidirectional
    if mode == "LSTM":
        c0 = data.new_zeros((*states, sizes.cell)) if c0 is None else c0
        y, hn, cn = _VF.lstm(data, batch_sizes, (h0, c0), *options)
        return y, hn, cn
    original = {"GRU": _VF.gru, "RNN_TANH": _VF.rnn_tanh, "RNN_RELU": _VF.rnn_relu}[mode]
    y, hn = original(data, batch_sizes, h0, *options)
    return y, hn, data.new_empty((0,))


def _fake(x, h0, c0, weights, mode, layers, bidirectional, batch_first):  # type: ignore[no-untyped-def]
    batch = x.shape[0] if batch_first else x.shape[1]
    return _results(x, x.shape[:2], batch, sizes_of(weights, mode, layers, bidirectional))


def _fake_packed(data, batch_sizes, h0, c0, weights, mode, layers, bidirectional):  # type: ignore[no-untyped-def]
    # The number of sequences is a value, unless a state has it.
    batch: Any = torch.library.get_ctx().new_dynamic_size() if h0 is None else h0.shape[1]
    return _results(data, data.shape[:1], batch, sizes_of(weights, mode, layers, bidirectional))


def _check(x: Tensor, axes: int, h0: Optional[Tensor], c0: Optional[Tensor]) -> None:
    """Refuses what only calls by others than the layers may have."""
    for name, tensor, dim in (("x", x, axes), ("h0", h0, 3), ("c0", c0, 3)):
        if tensor is not None and (tensor.dtype is not torch.float32 or tensor.dim() != dim):
            raise InputError(f"{name} must be float32 with {dim} axes, not {tensor.dtype} with {tensor.dim()}")


def _run(x, h0, c0, *options):  # type: ignore[no-untyped-def]
    _check(x, 3, h0, c0)
    return run(x, h0, c0, *options)


def _run_packed(data, batch_sizes, h0, c0, *options):  # type: ignore[no-untyped-def]
    _check(data, 2, h0, c0)
    first = batch_sizes[0] if batch_sizes.dim() == 1 and batch_sizes.shape[0] else 0
    if batch_sizes.dtype is not torch.int64 or not 0 < first <= data.shape[0]:
        raise InputError("batch_sizes must be numbers of sequences, int64 in one axis")
    try:
        return run_packed(data, batch_sizes, h0, c0, *options)
    except TooLargeError:  # a compiled graph cannot choose by values of batch_sizes
        return _run_original_packed(data, batch_sizes, h0, c0, *options)


# `Library` instead of `custom_op`: a call is faster by a microsecond.
_library = torch.library.Library("gatestream", "DEF")
_library.define(
    "recurrent(Tensor x, Tensor? h0, Tensor? c0, Tensor[] weights, str mode, int layers, "
    "bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "recurrent_packed(Tensor data, Tensor batch_sizes, Tensor? h0, Tensor? c0, Tensor[] weights, "
    "str mode, int layers, bool bidirectional) -> (Tensor, Tensor, Tensor)"
)
_library.impl("recurrent", _run, "CPU")
_library.impl("recurrent_packed", _run_packed, "CPU")
torch.library.register_fake("gatestream::recurrent", _fake, lib=_library)
torch.library.register_fake("gatestream::recurrent_packed", _fake_packed, lib=_library)
recurrent = torch.ops.gatestream.recurrent.default
recurrent_packed = torch.ops.gatestream.recurrent_packed.default
