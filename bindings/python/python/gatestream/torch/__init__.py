"""Recurrent layers of PyTorch modules on gatestream.

>>> import torch, gatestream.torch
>>> model = gatestream.torch.optimize(model.eval())
>>> with torch.inference_mode():
...     y = model(x)

:func:`optimize` makes ``nn.LSTM``, ``nn.GRU``, ``nn.RNN`` and their cells compute on gatestream,
where no gradient is asked for, on CPU tensors of type float32. For everything else, and in
``torch.jit``, ``torch.onnx``, ``torch.fx``, ``torch.func`` and under dispatch modes, they are the
original layers. :func:`restore` undoes it, :func:`report` tells which layers it is for. They use
at most ``torch.get_num_threads()`` threads. The operators are registered with PyTorch, so
``torch.compile(fullgraph=True)`` and ``torch.export`` take them.

The weights are packed at the first call, and again when a weight has changed. PyTorch counts no
changes through ``parameter.data``, nor any of a parameter made in inference mode: call
:func:`repack` after those. A forked process packs anew.
"""

from __future__ import annotations

import warnings
from typing import TypeVar

from torch import nn

from ._layers import CLASSES, Cell, OnGatestream, Recurrent
from ._report import LayerReport, Report, report, why_left
from ._sessions import sessions

__all__ = [
    "Cell",
    "LayerReport",
    "Recurrent",
    "Report",
    "optimize",
    "repack",
    "report",
    "restore",
]

M = TypeVar("M", bound=nn.Module)


def optimize(module: M, *, freeze: bool = False, verbose: bool = False) -> M:
    """Makes the recurrent layers and cells in ``module`` compute on gatestream, in place.

    Parameters, hooks and methods stay as they are, and so does ``isinstance(layer, nn.LSTM)``. A
    layer that may compute something else is left alone: one of a subclass, of a class that
    PyTorch's parametrisation or quantisation makes, or with hooks, such as those of
    ``torch.nn.utils.weight_norm`` and ``prune``. :func:`report` names those and the reasons. There
    is a warning where no layer computes on gatestream.

    :param module: any module, or a recurrent layer itself. Run it in evaluation mode, inside
        ``torch.inference_mode()`` or ``torch.no_grad()``: where a gradient may be asked for, the
        original layer runs.
    :param freeze: sets ``requires_grad`` of the recurrent weights to false. Then the layers run on
        gatestream outside of ``torch.no_grad()``, too, unless their input needs a gradient.
    :param verbose: prints the report.
    :returns: ``module``.
    """
    for layer in module.modules():
        is_new = type(layer) in CLASSES and not isinstance(layer, OnGatestream)
        if is_new and why_left(layer) is None:
            layer.__class__ = CLASSES[type(layer)]
        if freeze and isinstance(layer, OnGatestream):
            layer.freeze()
    found = report(module)
    if verbose:
        print(found)
    if not any(layer.on_gatestream for layer in found):
        warnings.warn(f"gatestream.torch.optimize changed nothing: {found}", stacklevel=2)
    return module


def restore(module: M) -> M:
    """Undoes :func:`optimize`, in place: the layers are PyTorch's own again, with their present
    parameters and hooks.

    :returns: ``module``.
    """
    for layer in module.modules():
        if isinstance(layer, OnGatestream):
            layer.restore()
    return module


def repack() -> None:
    """Packs all weights again at their next use: after changes that PyTorch does not count."""
    sessions.clear()
