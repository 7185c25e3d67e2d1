"""Which layers compute on gatestream, and why the others do not."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import nn
from torch.nn.modules.rnn import RNNBase, RNNCellBase

from ._layers import CLASSES, OnGatestream, Recurrent

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


class LayerReport(NamedTuple):
    """A recurrent layer of a module."""

    name: str
    """Its name in the module; empty for the module itself."""
    kind: str
    """Its class, such as ``LSTM``."""
    on_gatestream: bool
    """Whether it computes on gatestream."""
    why: str
    """Why it does not, or for which calls; empty: there is nothing to say."""

    def __str__(self) -> str:
        where = "on gatestream" if self.on_gatestream else "left as it is"
        why = f": {self.why}" if self.why else ""
        return f"{self.name or 'the module'} ({self.kind}) is {where}{why}"


class Report(tuple[LayerReport, ...]):
    """The recurrent layers of a module; a line each when printed."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "there are no recurrent layers"


def report(module: nn.Module) -> Report:
    """Which recurrent layers in ``module`` compute on gatestream, and why the others do not."""
    layers = []
    for name, layer in module.named_modules():
        if isinstance(layer, OnGatestream):
            kind = layer.original_class.__name__
            layers.append(LayerReport(name, kind, True, _limits(layer)))
        elif (why := why_left(layer)) is not None:
            layers.append(LayerReport(name, type(layer).__name__, False, why))
        elif type(layer) in CLASSES:
            why = "call gatestream.torch.optimize"
            layers.append(LayerReport(name, type(layer).__name__, False, why))
    return Report(layers)


def why_left(layer: nn.Module) -> Optional[str]:
    """Why :func:`optimize` leaves a recurrent layer as it is; ``None``: it does not, or the module
    is none."""
    if isinstance(layer, OnGatestream):
        return None
    if type(layer) in CLASSES:
        if "forward" in layer.__dict__:
            return "it has a forward of its own"
        hooks = [hooks for hooks in _HOOKS if getattr(layer, hooks, None)]
        return f"it has {hooks[0][1:].replace('_', ' ')}" if hooks else None
    if isinstance(layer, (RNNBase, RNNCellBase)):
        return "it is of a subclass, which may compute something else"
    kind = type(layer)
    if kind.__module__.startswith("torch.ao.") and hasattr(layer, "hidden_size"):
        return "it is quantized"
    if isinstance(layer, torch.jit.ScriptModule) and layer.original_name in _NAMES:
        return "it is TorchScript"
    return None


_NAMES = {kind.__name__ for kind in CLASSES}


def _limits(layer: OnGatestream) -> str:
    """For which calls the original layer runs, as the layer is now."""
    weights = layer._weights()
    if weights is None:
        return "but its weights are computed, so the original runs"
    if any(w.dtype is not torch.float32 or w.device.type != "cpu" for w in weights):
        return "but its weights are not float32 on the CPU, so the original runs"
    limits = []
    if any(weight.requires_grad for weight in weights):
        limits.append("where gradients are on (use torch.inference_mode(), or freeze=True)")
    if isinstance(layer, Recurrent) and layer._drops():
        limits.append("for training with dropout (call eval())")
    return f"the original runs {', and '.join(limits)}" if limits else ""
