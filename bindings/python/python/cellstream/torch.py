"""Recurrent layers of PyTorch modules on cellstream.

>>> import torch, cellstream.torch
>>> model = cellstream.torch.optimize(model.eval())
>>> with torch.inference_mode():
...     y = model(x)

:func:`optimize` replaces ``nn.LSTM``, ``nn.GRU``, ``nn.RNN`` and their cells by modules with the
same parameters, inputs and outputs. They compute on cellstream where no gradient is asked for, on
CPU tensors of type float32; everything else goes to the original layer. The operators are
registered with PyTorch, so ``torch.compile(fullgraph=True)`` and ``torch.export`` take them.

The weights are packed at the first call, and again when a weight has changed. A change through
``parameter.data`` is not seen by PyTorch either: call :func:`repack` after it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Optional, TypeVar, Union, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ._native import Model, RawSession

__all__ = ["Cell", "Recurrent", "optimize", "repack"]

M = TypeVar("M", bound=nn.Module)

_MODES = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}
_LAYERS = (nn.LSTM, nn.GRU, nn.RNN)
_CELLS = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU", nn.RNNCell: "RNN"}

_SESSIONS = 256
"""Most layers that are kept packed; the one packed first goes first."""


def _weight_names(mode: str, layers: int, bidirectional: bool, count: int) -> list[str]:
    """The names of ``count`` weights, in the order of ``nn.LSTM.all_weights``."""
    directions = ("", "_reverse") if bidirectional else ("",)
    each = count // (layers * len(directions))
    parts = {
        2: ("weight_ih", "weight_hh"),
        3: ("weight_ih", "weight_hh", "weight_hr"),
        4: ("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
        5: ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"),
    }[each]
    return [
        f"{part}_l{layer}{direction}"
        for layer in range(layers)
        for direction in directions
        for part in parts
    ]


def _version(weight: Tensor) -> int:
    # Tensors made in inference mode count no versions; they cannot change outside of it.
    return 0 if weight.is_inference() else weight._version


class _Packed:
    """The session of a layer, and the weights that it was packed from."""

    __slots__ = ("session", "weights")

    def __init__(self, session: RawSession, weights: list[Tensor]) -> None:
        self.session = session
        # Held, so that no other tensor gets the address of one of them.
        self.weights = weights


class _Sessions:
    """Packed layers by their weights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packed: OrderedDict[Any, _Packed] = OrderedDict()
        self.clears = 0

    def get(
        self, weights: list[Tensor], mode: str, layers: int, bidirectional: bool
    ) -> RawSession:
        key = (
            mode,
            layers,
            bidirectional,
            *[weight.data_ptr() for weight in weights],
            *[_version(weight) for weight in weights],
        )
        found = self._packed.get(key)
        if found is not None:
            return found.session
        session = RawSession(_model(weights, mode, layers, bidirectional))
        addresses = key[3 : 3 + len(weights)]
        with self._lock:
            # Earlier versions of these weights.
            for other in [k for k in self._packed if k[3 : 3 + len(weights)] == addresses]:
                del self._packed[other]
            self._packed[key] = _Packed(session, [weight.detach() for weight in weights])
            while len(self._packed) > _SESSIONS:
                self._packed.popitem(last=False)
        return session

    def clear(self) -> None:
        with self._lock:
            self.clears += 1
            self._packed.clear()


_sessions = _Sessions()


def _model(weights: list[Tensor], mode: str, layers: int, bidirectional: bool) -> Model:
    names = _weight_names(mode, layers, bidirectional, len(weights))
    tensors = {name: w.detach().contiguous().numpy() for name, w in zip(names, weights)}
    return Model.from_state_dict(tensors, cell=_MODES[mode])


def _state_size(weights: list[Tensor], layers: int, bidirectional: bool) -> int:
    """The size of the hidden state: the columns of ``weight_hh``."""
    return weights[1].shape[1]


def _output_sizes(
    weights: list[Tensor], mode: str, layers: int, bidirectional: bool
) -> tuple[int, int, int]:
    """Values of an output step, blocks of states, and the size of a cell state."""
    directions = 2 if bidirectional else 1
    gates = {"LSTM": 4, "GRU": 3}.get(mode, 1)
    hidden = weights[1].shape[0] // gates
    return weights[1].shape[1] * directions, layers * directions, hidden


def _address(tensor: Optional[Tensor]) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _run(
    x: Tensor,
    h0: Optional[Tensor],
    c0: Optional[Tensor],
    weights: list[Tensor],
    mode: str,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    session = _sessions.get(weights, mode, layers, bidirectional)
    output, blocks, hidden = _output_sizes(weights, mode, layers, bidirectional)
    first, second, _ = x.shape
    steps, batch = (second, first) if batch_first else (first, second)
    x = x.contiguous()
    h0 = None if h0 is None else h0.contiguous()
    c0 = None if c0 is None else c0.contiguous()
    y = x.new_empty((first, second, output))
    hn = x.new_empty((blocks, batch, weights[1].shape[1]))
    is_lstm = mode == "LSTM"
    cn = x.new_empty((blocks, batch, hidden) if is_lstm else (0,))
    session.run(
        steps,
        batch,
        batch_first,
        x.data_ptr(),
        _address(h0),
        _address(c0),
        y.data_ptr(),
        hn.data_ptr(),
        cn.data_ptr() if is_lstm else 0,
    )
    return y, hn, cn


def _run_packed(
    data: Tensor,
    batch_sizes: Tensor,
    h0: Optional[Tensor],
    c0: Optional[Tensor],
    weights: list[Tensor],
    mode: str,
    layers: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    session = _sessions.get(weights, mode, layers, bidirectional)
    output, blocks, hidden = _output_sizes(weights, mode, layers, bidirectional)
    sizes = batch_sizes.tolist()
    batch = sizes[0]
    data = data.contiguous()
    h0 = None if h0 is None else h0.contiguous()
    c0 = None if c0 is None else c0.contiguous()
    y = data.new_empty((data.shape[0], output))
    hn = data.new_empty((blocks, batch, weights[1].shape[1]))
    is_lstm = mode == "LSTM"
    cn = data.new_empty((blocks, batch, hidden) if is_lstm else (0,))
    session.run_packed(
        sizes,
        data.data_ptr(),
        _address(h0),
        _address(c0),
        y.data_ptr(),
        hn.data_ptr(),
        cn.data_ptr() if is_lstm else 0,
    )
    return y, hn, cn


def _fake(x, h0, c0, weights, mode, layers, bidirectional, batch_first):  # type: ignore[no-untyped-def]
    output, blocks, hidden = _output_sizes(weights, mode, layers, bidirectional)
    first, second, _ = x.shape
    batch = first if batch_first else second
    return (
        x.new_empty((first, second, output)),
        x.new_empty((blocks, batch, weights[1].shape[1])),
        x.new_empty((blocks, batch, hidden) if mode == "LSTM" else (0,)),
    )


def _fake_packed(data, batch_sizes, h0, c0, weights, mode, layers, bidirectional):  # type: ignore[no-untyped-def]
    output, blocks, hidden = _output_sizes(weights, mode, layers, bidirectional)
    # The number of sequences is a value, unless a state has it.
    batch = torch.library.get_ctx().new_dynamic_size() if h0 is None else h0.shape[1]
    return (
        data.new_empty((data.shape[0], output)),
        data.new_empty((blocks, batch, weights[1].shape[1])),
        data.new_empty((blocks, batch, hidden) if mode == "LSTM" else (0,)),
    )


# `Library` instead of `custom_op`: a call is faster by a microsecond.
_library = torch.library.Library("cellstream", "DEF")
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
torch.library.register_fake("cellstream::recurrent", _fake, lib=_library)
torch.library.register_fake("cellstream::recurrent_packed", _fake_packed, lib=_library)
_recurrent = torch.ops.cellstream.recurrent.default
_recurrent_packed = torch.ops.cellstream.recurrent_packed.default


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

    def __getstate__(self) -> dict[str, Any]:
        # What is packed belongs to this process and these parameters.
        return {name: value for name, value in self.__dict__.items() if name != "_shortcut"}

    def extra_repr(self) -> str:
        return f"{self.__dict__['_original'].extra_repr()}, on cellstream"


class _Shortcut:
    """The usual call of a layer, without the checks that its last call has passed.

    A small layer takes a few microseconds, of which each attribute of a tensor is a tenth.
    """

    __slots__ = (
        "session", "clears", "weights", "input", "output", "blocks", "size", "cell", "batch_first",
        "drops",
    )  # fmt: skip

    def __init__(self, layer: Recurrent, weights: list[Tensor]) -> None:
        at = (layer.mode, layer.num_layers, layer.bidirectional)
        self.clears = _sessions.clears
        self.session: Optional[RawSession] = _sessions.get(weights, *at)
        self.weights = [
            (name, weight, _version(weight), weight.data_ptr())
            for name, weight in zip(layer._names, weights)
            if not weight.is_inference()
        ]
        if len(self.weights) < len(weights):
            self.session = None
        self.output, self.blocks, hidden = _output_sizes(weights, *at)
        self.size = weights[1].shape[1]
        self.cell = hidden if layer.mode == "LSTM" else 0
        self.input = layer.input_size
        self.batch_first = layer.batch_first
        self.drops = layer.num_layers > 1 and layer.dropout > 0

    def applies(self, layer: Recurrent, x: Tensor) -> bool:
        """Whether a call is a usual one: no gradient, and the same weights as before."""
        if (
            self.session is None
            or torch.is_grad_enabled()
            or x.dtype is not torch.float32
            or not x.is_cpu
            or x.dim() != 3
            or not x.is_contiguous()
            or torch.get_default_dtype() is not torch.float32
            or torch.is_autocast_enabled("cpu")
            or (self.drops and layer.training)
            or _sessions.clears != self.clears
        ):
            return False
        parameters = layer._parameters
        for name, weight, version, address in self.weights:
            if (
                parameters[name] is not weight
                or weight._version != version
                or weight.data_ptr() != address
            ):
                return False
        first, second, features = x.shape
        return features == self.input and first > 0 and second > 0

    def run(self, x: Tensor) -> Any:
        """The result of the layer's ``forward``, or ``None``."""
        assert self.session is not None
        first, second, _ = x.shape
        steps, batch = (second, first) if self.batch_first else (first, second)
        y = torch.empty(first, second, self.output)
        if not y.is_cpu:  # torch.set_default_device
            return None
        hn = torch.empty(self.blocks, batch, self.size)
        addresses = (x.data_ptr(), 0, 0, y.data_ptr(), hn.data_ptr())
        if self.cell:
            cn = torch.empty(self.blocks, batch, self.cell)
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
            return isinstance(hx, Tensor) and _is(hx, (blocks, batch, size))
        return (
            isinstance(hx, tuple)
            and len(hx) == 2
            and _is(hx[0], (blocks, batch, size))
            and _is(hx[1], (blocks, batch, self.hidden_size))
        )

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As ``forward`` of the original layer."""
        if hx is None and not torch.compiler.is_compiling():
            shortcut = self.__dict__.get("_shortcut")
            if shortcut is not None and type(input) is Tensor and shortcut.applies(self, input):
                result = shortcut.run(input)
                if result is not None:
                    return result
        return self._checked(input, hx)

    def _checked(self, input: Any, hx: Any) -> Any:
        """As :meth:`forward`, for any input."""
        weights = self._weights()
        packed = isinstance(input, PackedSequence)
        x = input.data if packed else input
        dropping = self.training and self.dropout > 0 and self.num_layers > 1
        if dropping or not isinstance(x, Tensor) or not _can_run(x, weights):
            return self.original()(input, hx)
        return self._packed(input, hx, weights) if packed else self._padded(x, hx, weights)

    def _padded(self, x: Tensor, hx: Any, weights: list[Tensor]) -> Any:
        is_single = x.dim() == 2
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            return self.original()(x, hx)
        lstm = self.mode == "LSTM"
        given = hx
        if is_single:
            x = x.unsqueeze(0 if self.batch_first else 1)
            if hx is not None:
                try:
                    hx = tuple(h.unsqueeze(1) for h in hx) if lstm else hx.unsqueeze(1)
                except (AttributeError, IndexError):
                    return self.original()(x.squeeze(0 if self.batch_first else 1), given)
        batch = x.shape[0] if self.batch_first else x.shape[1]
        # No steps are an error of the original.
        steps = x.shape[1] if self.batch_first else x.shape[0]
        if steps == 0 or (hx is not None and not self._fits(hx, batch)):
            single = x.squeeze(0 if self.batch_first else 1) if is_single else x
            return self.original()(single, given)
        h0, c0 = (hx if lstm else (hx, None)) if hx is not None else (None, None)
        compiling = torch.compiler.is_compiling()
        run = _recurrent if compiling else _run
        y, hn, cn = run(
            x, h0, c0, weights, self.mode, self.num_layers, self.bidirectional, self.batch_first
        )
        if not compiling:
            self.__dict__["_shortcut"] = _Shortcut(self, weights)
        if is_single:
            y = y.squeeze(0 if self.batch_first else 1)
            hn = hn.squeeze(1)
            cn = cn.squeeze(1) if lstm else cn
        return y, ((hn, cn) if lstm else hn)

    def _packed(self, input: PackedSequence, hx: Any, weights: list[Tensor]) -> Any:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        lstm = self.mode == "LSTM"
        if data.dim() != 2 or data.shape[-1] != self.input_size:
            return self.original()(input, hx)
        h0 = c0 = None
        if hx is not None:
            if not self._fits(hx, int(batch_sizes[0])):
                return self.original()(input, hx)
            h0, c0 = hx if lstm else (hx, None)
            if sorted_indices is not None:
                h0 = h0.index_select(1, sorted_indices)
                c0 = None if c0 is None else c0.index_select(1, sorted_indices)
        run = _recurrent_packed if torch.compiler.is_compiling() else _run_packed
        y, hn, cn = run(
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
        mode = _CELLS[type(original)]
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
        weights = self._weights()
        lstm = self.mode == "LSTM"
        is_tensor = isinstance(input, Tensor) and input.dim() in (1, 2)
        if not is_tensor or input.shape[-1] != self.input_size or not _can_run(input, weights):
            return self.original()(input, hx)
        shape = (*input.shape[:-1], self.hidden_size)
        states = () if hx is None else hx if lstm else (hx,)
        if hx is not None and not (
            isinstance(states, tuple)
            and len(states) == (2 if lstm else 1)
            and all(isinstance(s, Tensor) and _is(s, shape) for s in states)
        ):
            return self.original()(input, hx)
        batch = 1 if input.dim() == 1 else input.shape[0]
        x = input.reshape(1, batch, self.input_size)
        h0, c0 = (*[s.reshape(1, batch, self.hidden_size) for s in states], None, None)[:2]
        run = _recurrent if torch.compiler.is_compiling() else _run
        _, hn, cn = run(x, h0, c0, weights, self.mode, 1, False, False)
        return (hn.reshape(shape), cn.reshape(shape)) if lstm else hn.reshape(shape)


def _is(state: Any, shape: tuple[int, ...]) -> bool:
    return (
        isinstance(state, Tensor)
        and state.shape == shape
        and state.dtype is torch.float32
        and state.device.type == "cpu"
        and not (torch.is_grad_enabled() and state.requires_grad)
    )


@overload
def optimize(module: Union[nn.LSTM, nn.GRU, nn.RNN], *, freeze: bool = ...) -> Recurrent: ...
@overload
def optimize(module: Union[nn.LSTMCell, nn.GRUCell, nn.RNNCell], *, freeze: bool = ...) -> Cell: ...
@overload
def optimize(module: M, *, freeze: bool = ...) -> M: ...


def optimize(module: nn.Module, *, freeze: bool = False) -> nn.Module:
    """Replaces the recurrent layers and cells in ``module`` by those of cellstream, in place.

    A layer inside a subclass of its own, such as a user's subclass of ``nn.LSTM``, is left as it
    is, because its ``forward`` may do something else. So is one with quantised or parametrised
    weights.

    :param module: any module, or a recurrent layer itself. Run it in evaluation mode, inside
        ``torch.inference_mode()`` or ``torch.no_grad()``: where a gradient may be asked for, the
        original layer runs.
    :param freeze: sets ``requires_grad`` of the recurrent weights to false. Then the layers run on
        cellstream outside of ``torch.no_grad()``, too, unless their input needs a gradient.
    :returns: ``module``, or the replacement if it is a recurrent layer itself.
    """
    replaced = _replacement(module, {}, freeze)
    return module if replaced is None else replaced


def _replacement(
    module: nn.Module, known: dict[nn.Module, Optional[nn.Module]], freeze: bool
) -> Optional[nn.Module]:
    """What replaces a module; ``None``: nothing, but its children may have been replaced."""
    if module in known:
        return known[module]
    known[module] = None
    is_plain = not module._parametrizations if hasattr(module, "_parametrizations") else True
    is_plain = is_plain and not hasattr(module, "parametrizations")
    replaced: Optional[nn.Module] = None
    if is_plain and type(module) in _LAYERS:
        replaced = Recurrent(module)  # type: ignore[arg-type]
    elif is_plain and type(module) in _CELLS:
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


def repack() -> None:
    """Packs all weights again at their next use: after changes through ``parameter.data``."""
    _sessions.clear()
