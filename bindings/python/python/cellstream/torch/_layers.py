"""The modules that replace those of PyTorch."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .._native import RawSession
from ._cells import CellPath
from ._operators import recurrent, recurrent_packed, run, run_packed, sizes_of
from ._sessions import sessions

LAYERS = (nn.LSTM, nn.GRU, nn.RNN)
CELLS = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU", nn.RNNCell: "RNN"}


def _can_run(x: Tensor, weights: list[Tensor]) -> bool:
    """Whether cellstream computes this input with these weights: no gradient, float32, CPU."""
    first = weights[0]
    if x.dtype is not torch.float32 or first.dtype is not torch.float32:
        return False
    if x.device.type != "cpu" or first.device.type != "cpu":
        return False
    if torch.is_grad_enabled() and (x.requires_grad or any(w.requires_grad for w in weights)):
        return False
    return not torch.is_autocast_enabled("cpu")


def _is_state(state: Any, shape: tuple[int, ...]) -> bool:
    """Whether cellstream takes this initial state; for others the original has its errors."""
    return (
        isinstance(state, Tensor)
        and state.shape == shape
        and state.dtype is torch.float32
        and state.device.type == "cpu"
        and not (torch.is_grad_enabled() and state.requires_grad)
    )


class _Replacement(nn.Module):
    """A module with the parameters of another, and the other itself for what it cannot do."""

    _names: list[str]

    def _take(self, original: nn.Module) -> None:
        for name, parameter in original.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        # Not as a submodule, so that the names of parameters stay those of the original.
        self.__dict__["_original"] = original
        self.training = original.training

    def _weights(self) -> list[Tensor]:
        parameters = self._parameters
        return [parameters[name] for name in self._names]  # type: ignore[misc]

    def _trains(self) -> bool:
        """Whether a gradient of the weights is wanted; then the original runs without checks."""
        first = self._parameters[self._names[0]]
        return torch.is_grad_enabled() and first is not None and first.requires_grad

    def original(self) -> nn.Module:
        """The original layer, with the present parameters."""
        original: nn.Module = self.__dict__["_original"]
        for name in self._names:
            parameter = self._parameters[name]
            if original._parameters[name] is not parameter:
                setattr(original, name, parameter)
        if original.training != self.training:
            original.train(self.training)
        return original

    def _run_original(self, input: Any, hx: Any) -> Any:
        return self.original().forward(input, hx)

    def reset_parameters(self) -> None:
        """As of the original: draws new weights."""
        self.original().reset_parameters()  # type: ignore[operator]

    def __getstate__(self) -> dict[str, Any]:
        # What is packed belongs to this process and these parameters.
        return {name: value for name, value in self.__dict__.items() if name != "_fast_path"}

    def extra_repr(self) -> str:
        return f"{self.__dict__['_original'].extra_repr()}, on cellstream"


class _FastPath:
    """A call without states, by a layer whose last one passed all checks.

    A small layer takes a few microseconds, of which each attribute of a tensor is a tenth.
    """

    __slots__ = (
        "session", "clears", "threads", "weights", "input", "sizes", "batch_first", "drops",
    )  # fmt: skip

    def __init__(self, layer: Recurrent, weights: list[Tensor]) -> None:
        stack = (layer.mode, layer.num_layers, layer.bidirectional)
        self.clears = sessions.clears
        self.threads = torch.get_num_threads()
        self.session: RawSession = sessions.get(weights, *stack)
        self.weights = [
            (name, weight, weight._version, weight.data_ptr())
            for name, weight in zip(layer._names, weights)
        ]
        self.sizes = sizes_of(weights, *stack)
        self.input = layer.input_size
        self.batch_first = layer.batch_first
        self.drops = layer.num_layers > 1 and layer.dropout > 0

    def takes(self, layer: Recurrent, x: Tensor) -> bool:
        """Whether an input needs no gradient, no conversion and no error."""
        if (
            torch.is_grad_enabled()
            or x.dtype is not torch.float32
            or not x.is_cpu
            or x.dim() != 3
            or not x.is_contiguous()
            or torch.get_default_dtype() is not torch.float32
            or torch.is_autocast_enabled("cpu")
            or (self.drops and layer.training)
        ):
            return False
        first, second, features = x.shape
        return features == self.input and first > 0 and second > 0

    def is_current(self, layer: Recurrent) -> bool:
        """Whether the session is that of the layer's weights, on PyTorch's threads."""
        if sessions.clears != self.clears or torch.get_num_threads() != self.threads:
            return False
        parameters = layer._parameters
        for name, weight, version, address in self.weights:
            if (
                parameters[name] is not weight
                or weight._version != version
                or weight.data_ptr() != address
            ):
                return False
        return True

    def run(self, x: Tensor) -> Any:
        """The result of the layer's ``forward``; ``None``: new tensors are on another device."""
        first, second, _ = x.shape
        steps, batch = (second, first) if self.batch_first else (first, second)
        output, blocks, hidden, cell = self.sizes
        y = torch.empty(first, second, output)
        if not y.is_cpu:  # torch.set_default_device
            return None
        hn = torch.empty(blocks, batch, hidden)
        addresses = (x.data_ptr(), 0, 0, y.data_ptr(), hn.data_ptr())
        if cell:
            cn = torch.empty(blocks, batch, cell)
            self.session.run(steps, batch, self.batch_first, *addresses, cn.data_ptr())
            return y, (hn, cn)
        self.session.run(steps, batch, self.batch_first, *addresses, 0)
        return y, hn


class Recurrent(_Replacement):
    """``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` on cellstream: same parameters, inputs and outputs."""

    def __init__(self, original: Union[nn.LSTM, nn.GRU, nn.RNN]) -> None:
        super().__init__()
        self.mode = original.mode
        self.input_size = original.input_size
        self.hidden_size = original.hidden_size
        self.num_layers = original.num_layers
        self.bias = original.bias
        self.batch_first = original.batch_first
        self.dropout = original.dropout
        self.bidirectional = original.bidirectional
        self.proj_size = original.proj_size
        self._names = [name for names in original._all_weights for name in names]
        self._take(original)

    def _fits(self, hx: Any, batch: int) -> bool:
        """Whether these are initial states of a batch; others get the original's error."""
        blocks = self.num_layers * (2 if self.bidirectional else 1)
        size = self.proj_size or self.hidden_size
        if self.mode != "LSTM":
            return _is_state(hx, (blocks, batch, size))
        return (
            isinstance(hx, tuple)
            and len(hx) == 2
            and _is_state(hx[0], (blocks, batch, size))
            and _is_state(hx[1], (blocks, batch, self.hidden_size))
        )

    def flatten_parameters(self) -> None:
        """As of the original layer: packs the weights for CUDA; nothing on a CPU."""
        if self._weights()[0].device.type != "cpu":
            self.original().flatten_parameters()  # type: ignore[operator]

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """As of the original layer: the weights of each layer and direction."""
        return self.original().all_weights  # type: ignore[return-value]

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As ``forward`` of the original layer."""
        if self._trains():
            return self._run_original(input, hx)
        if hx is not None or torch.compiler.is_compiling():
            return self._checked(input, hx)
        path: Optional[_FastPath] = self.__dict__.get("_fast_path")
        is_current = path is not None and path.is_current(self)
        if path is not None and is_current and type(input) is Tensor and path.takes(self, input):
            result = path.run(input)
            if result is not None:
                return result
        result = self._checked(input, hx)
        weights = self._weights()
        ours = type(input) is Tensor and _can_run(input, weights)
        if not is_current and ours and not any(weight.is_inference() for weight in weights):
            self.__dict__["_fast_path"] = _FastPath(self, weights)
        return result

    def _checked(self, input: Any, hx: Any) -> Any:
        """As :meth:`forward`, for any input."""
        weights = self._weights()
        packed = isinstance(input, PackedSequence)
        x = input.data if packed else input
        dropping = self.training and self.dropout > 0 and self.num_layers > 1
        if dropping or not isinstance(x, Tensor) or not _can_run(x, weights):
            return self._run_original(input, hx)
        return self._packed(input, hx, weights) if packed else self._padded(x, hx, weights)

    def _padded(self, x: Tensor, hx: Any, weights: list[Tensor]) -> Any:
        given, given_states = x, hx
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            return self._run_original(given, given_states)
        lstm = self.mode == "LSTM"
        is_single = x.dim() == 2
        batch_axis = 0 if self.batch_first else 1
        if is_single:
            x = x.unsqueeze(batch_axis)
            if hx is not None:
                try:
                    hx = tuple(h.unsqueeze(1) for h in hx) if lstm else hx.unsqueeze(1)
                except (AttributeError, IndexError):
                    return self._run_original(given, given_states)
        # No steps are an error of the original.
        if x.shape[1 - batch_axis] == 0 or (hx is not None and not self._fits(hx, x.shape[batch_axis])):
            return self._run_original(given, given_states)
        h0, c0 = (hx if lstm else (hx, None)) if hx is not None else (None, None)
        operator = recurrent if torch.compiler.is_compiling() else run
        y, hn, cn = operator(
            x, h0, c0, weights, self.mode, self.num_layers, self.bidirectional, self.batch_first
        )
        if is_single:
            y = y.squeeze(batch_axis)
            hn = hn.squeeze(1)
            cn = cn.squeeze(1) if lstm else cn
        return y, ((hn, cn) if lstm else hn)

    def _packed(self, input: PackedSequence, hx: Any, weights: list[Tensor]) -> Any:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        lstm = self.mode == "LSTM"
        if data.dim() != 2 or data.shape[-1] != self.input_size:
            return self._run_original(input, hx)
        h0 = c0 = None
        if hx is not None:
            if not self._fits(hx, int(batch_sizes[0])):
                return self._run_original(input, hx)
            h0, c0 = hx if lstm else (hx, None)
            if sorted_indices is not None:
                h0 = h0.index_select(1, sorted_indices)
                c0 = None if c0 is None else c0.index_select(1, sorted_indices)
        operator = recurrent_packed if torch.compiler.is_compiling() else run_packed
        y, hn, cn = operator(
            data, batch_sizes, h0, c0, weights, self.mode, self.num_layers, self.bidirectional
        )
        if unsorted_indices is not None:
            hn = hn.index_select(1, unsorted_indices)
            cn = cn.index_select(1, unsorted_indices) if lstm else cn
        output = PackedSequence(y, batch_sizes, sorted_indices, unsorted_indices)
        return output, ((hn, cn) if lstm else hn)


class Cell(_Replacement):
    """``nn.LSTMCell``, ``nn.GRUCell`` or ``nn.RNNCell`` on cellstream."""

    def __init__(self, original: Union[nn.LSTMCell, nn.GRUCell, nn.RNNCell]) -> None:
        super().__init__()
        mode = CELLS[type(original)]
        if isinstance(original, nn.RNNCell):
            mode = f"RNN_{original.nonlinearity.upper()}"
        self.mode = mode
        self.input_size = original.input_size
        self.hidden_size = original.hidden_size
        self.bias = original.bias
        biases = ["bias_ih", "bias_hh"] if original.bias else []
        self._names = ["weight_ih", "weight_hh", *biases]
        self._take(original)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """As ``forward`` of the original cell."""
        if self._trains():
            return self._run_original(input, hx)
        if torch.compiler.is_compiling():
            return self._checked(input, hx)
        path: Optional[CellPath] = self.__dict__.get("_fast_path")
        is_current = path is not None and path.is_current(self._parameters)
        if path is not None and is_current:
            result = path.run(input, hx)
            if result is not None:
                return result
        result = self._checked(input, hx)
        weights = self._weights()
        ours = type(input) is Tensor and _can_run(input, weights)
        if not is_current and ours and not any(weight.is_inference() for weight in weights):
            sizes = self.input_size, self.hidden_size
            self.__dict__["_fast_path"] = CellPath(self._names, weights, self.mode, *sizes)
        return result

    def _checked(self, input: Tensor, hx: Any) -> Any:
        """As :meth:`forward`, for any input."""
        weights = self._weights()
        lstm = self.mode == "LSTM"
        is_tensor = isinstance(input, Tensor) and input.dim() in (1, 2)
        if not is_tensor or input.shape[-1] != self.input_size or not _can_run(input, weights):
            return self._run_original(input, hx)
        shape = (*input.shape[:-1], self.hidden_size)
        states = () if hx is None else hx if lstm else (hx,)
        if hx is not None and not (
            isinstance(states, tuple)
            and len(states) == (2 if lstm else 1)
            and all(_is_state(s, shape) for s in states)
        ):
            return self._run_original(input, hx)
        batch = 1 if input.dim() == 1 else input.shape[0]
        x = input.reshape(1, batch, self.input_size)
        h0, c0 = (*[s.reshape(1, batch, self.hidden_size) for s in states], None, None)[:2]
        operator = recurrent if torch.compiler.is_compiling() else run
        _, hn, cn = operator(x, h0, c0, weights, self.mode, 1, False, False)
        return (hn.reshape(shape), cn.reshape(shape)) if lstm else hn.reshape(shape)
