"""Steps of cells without the checks that the last step passed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._sessions import FastPath


class CellPath(FastPath):
    """A step of a cell."""

    __slots__ = ("input", "hidden", "is_lstm")

    def __init__(
        self, names: list[str], weights: list[Tensor], mode: str, input: int, hidden: int
    ) -> None:
        super().__init__(names, weights, mode, 1, False)
        self.input = input
        self.hidden = hidden
        self.is_lstm = mode == "LSTM"

    def run(self, x: Any, hx: Any) -> Any:
        """The result of the cell's ``forward``; ``None``: it needs a gradient, a conversion, or an
        error."""
        if (
            type(x) is not Tensor
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
            or not _is_as_it_is(x)
        ):
            return None
        axes = x.shape
        if len(axes) == 2:
            batch, features = axes
            shape: tuple[int, ...] = (batch, self.hidden)
        elif len(axes) == 1:
            batch, features, shape = 1, axes[0], (self.hidden,)
        else:
            return None
        if features != self.input or batch == 0:
            return None
        h = c = None
        if hx is not None:
            if not self.is_lstm:
                h = hx
            elif type(hx) is tuple and len(hx) == 2:
                h, c = hx
                if type(c) is not Tensor or c.shape != shape or not _is_as_it_is(c):
                    return None
            else:
                return None
            if type(h) is not Tensor or h.shape != shape or not _is_as_it_is(h):
                return None
        hn = x.new_empty(shape)
        # All shapes have been checked.
        taken, size = batch * features, batch * self.hidden
        x0, h0 = x.data_ptr(), 0 if h is None else h.data_ptr()
        c0 = 0 if c is None else c.data_ptr()
        if (x0 | h0 | c0) & 3:  # not aligned
            return None
        # The output of the only step is its hidden state.
        arrays = x0, taken, h0, size, c0, size, hn.data_ptr(), size, 0, 0
        if self.is_lstm:
            cn = x.new_empty(shape)
            self.session.run(1, batch, False, *arrays, cn.data_ptr(), size)
            return hn, cn
        self.session.run(1, batch, False, *arrays, 0, 0)
        return hn


def _is_as_it_is(x: Tensor) -> bool:
    """Whether the numbers in memory are those of the tensor, one after the other, float32."""
    return x.dtype is torch.float32 and x.is_cpu and x.is_contiguous() and not x.is_neg()
