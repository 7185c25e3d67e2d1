"""Recurrent layers of PyTorch modules on cellstream.

>>> import torch, cellstream.torch
>>> model = cellstream.torch.optimize(model.eval())
>>> with torch.inference_mode():
...     y = model(x)

:func:`optimize` replaces ``nn.LSTM``, ``nn.GRU``, ``nn.RNN`` and their cells by modules with the
same parameters, inputs and outputs. They compute on cellstream where no gradient is asked for, on
CPU tensors of type float32; everything else goes to the original layer. They use at most
``torch.get_num_threads()`` threads. The operators are registered with PyTorch, so
``torch.compile(fullgraph=True)`` and ``torch.export`` take them.

The weights are packed at the first call, and again when a weight has changed. PyTorch counts no
changes through ``parameter.data``, nor any of a parameter made in inference mode: call
:func:`repack` after those. A forked process packs anew.
"""

from __future__ import annotations

from typing import Optional, TypeVar, Union, overload

from torch import nn

from ._layers import CELLS, LAYERS, Cell, Recurrent
from ._sessions import sessions

__all__ = ["Cell", "Recurrent", "optimize", "repack"]

M = TypeVar("M", bound=nn.Module)

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@overload
def optimize(module: Union[nn.LSTM, nn.GRU, nn.RNN], *, freeze: bool = ...) -> Recurrent: ...
@overload
def optimize(module: Union[nn.LSTMCell, nn.GRUCell, nn.RNNCell], *, freeze: bool = ...) -> Cell: ...
@overload
def optimize(module: M, *, freeze: bool = ...) -> M: ...


def optimize(module: nn.Module, *, freeze: bool = False) -> nn.Module:
    """Replaces the recurrent layers and cells in ``module`` by those of cellstream, in place.

    A layer that may compute something else is left as it is: one of a subclass, of a class that
    PyTorch's parametrisation or quantisation makes, or with hooks, such as those of
    ``torch.nn.utils.weight_norm`` and ``prune``.

    :param module: any module, or a recurrent layer itself. Run it in evaluation mode, inside
        ``torch.inference_mode()`` or ``torch.no_grad()``: where a gradient may be asked for, the
        original layer runs.
    :param freeze: sets ``requires_grad`` of the recurrent weights to false. Then the layers run on
        cellstream outside of ``torch.no_grad()``, too, unless their input needs a gradient.
    :returns: ``module``, or the replacement if it is a recurrent layer itself.
    """
    replaced = _replacement(module, {}, freeze)
    return module if replaced is None else replaced


def repack() -> None:
    """Packs all weights again at their next use: after changes that PyTorch does not count."""
    sessions.clear()


def _is_plain(module: nn.Module) -> bool:
    """Whether a call of a module is no more than the ``forward`` of its class."""
    has_hooks = any(getattr(module, hooks, None) for hooks in _HOOKS)
    return not has_hooks and "forward" not in module.__dict__


def _replacement(
    module: nn.Module, known: dict[nn.Module, Optional[nn.Module]], freeze: bool
) -> Optional[nn.Module]:
    """The replacement of a module; ``None``: it stays, but its children may have been replaced."""
    if module in known:
        return known[module]
    replaced: Optional[nn.Module] = None
    known[module] = replaced
    if type(module) in LAYERS and _is_plain(module):
        replaced = Recurrent(module)  # type: ignore[arg-type]
    elif type(module) in CELLS and _is_plain(module):
        replaced = Cell(module)  # type: ignore[arg-type]
    if replaced is not None:
        known[module] = replaced
        if freeze:
            replaced.requires_grad_(False)
        return replaced
    for name, child in list(module._modules.items()):
        other = None if child is None else _replacement(child, known, freeze)
        if other is not None:
            setattr(module, name, other)
    return None
