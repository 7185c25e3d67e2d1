"""Sessions of layers, found by their weights."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .._native import Model, RawSession

_CELLS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}

_LARGEST_NUMBER = 256
"""Most sessions that are kept; the oldest goes first."""


class _Key(NamedTuple):
    addresses: tuple[int, ...]
    versions: tuple[int, ...]
    threads: int
    mode: str
    layers: int
    bidirectional: bool


class _Entry(NamedTuple):
    session: RawSession
    weights: list[Tensor]
    """Held, so that no other tensor gets the address of one of them."""


def version(weight: Tensor) -> int:
    """The number of changes of a weight that PyTorch has counted."""
    return 0 if weight.is_inference() else weight._version


def _gomp_parallel() -> int:
    """The address of ``GOMP_parallel`` in PyTorch's OpenMP library; 0: it has none."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        # Finds the function in the libraries that PyTorch's is linked with.
        function = ctypes.CDLL(library).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Sessions:
    """The sessions of this process."""

    def __init__(self) -> None:
        self.clears = 0
        self._gomp_parallel = _gomp_parallel()
        self._renew()
        # A child has none of the threads of its parent's sessions, and its lock may be taken.
        os.register_at_fork(after_in_child=self._renew_in_child)

    def _renew_in_child(self) -> None:
        # The GNU library would wait for threads that only the parent has.
        self._gomp_parallel = 0
        self._renew()

    def _renew(self) -> None:
        self.clears += 1
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}

    def get(
        self, weights: list[Tensor], mode: str, layers: int, bidirectional: bool
    ) -> RawSession:
        """The session of these weights in their present versions, on PyTorch's threads."""
        key = _Key(
            tuple([weight.data_ptr() for weight in weights]),
            tuple([version(weight) for weight in weights]),
            torch.get_num_threads(),
            mode,
            layers,
            bidirectional,
        )
        found = self._entries.get(key)
        if found is not None:
            return found.session
        clears = self.clears
        model = _model(weights, mode, layers, bidirectional)
        session = RawSession(model, key.threads, self._gomp_parallel)
        with self._lock:
            if clears == self.clears:
                self._add(key, _Entry(session, [weight.detach() for weight in weights]))
        return session

    def _add(self, key: _Key, entry: _Entry) -> None:
        for other in list(self._entries):
            if other.addresses == key.addresses and other.versions != key.versions:
                del self._entries[other]
        self._entries[key] = entry
        if len(self._entries) > _LARGEST_NUMBER:
            del self._entries[next(iter(self._entries))]

    def clear(self) -> None:
        """Forgets all sessions."""
        with self._lock:
            self.clears += 1
            self._entries.clear()


sessions = Sessions()


class FastPath:
    """A call of a layer whose last one passed all checks.

    One of a small layer takes a few microseconds, of which each attribute of a tensor is a tenth.
    """

    __slots__ = ("session", "clears", "threads", "weights")

    def __init__(
        self, names: list[str], weights: list[Tensor], mode: str, layers: int, bidirectional: bool
    ) -> None:
        self.clears = sessions.clears
        self.threads = torch.get_num_threads()
        self.session = sessions.get(weights, mode, layers, bidirectional)
        self.weights = [
            (name, weight, weight._version, weight.data_ptr())
            for name, weight in zip(names, weights)
        ]

    def is_current(self, parameters: Mapping[str, Optional[Tensor]]) -> bool:
        """Whether the session is that of these weights, on PyTorch's threads."""
        if sessions.clears != self.clears or torch.get_num_threads() != self.threads:
            return False
        for name, weight, changes, address in self.weights:
            if (
                parameters.get(name) is not weight
                or weight._version != changes
                or weight.data_ptr() != address
            ):
                return False
        return True


def _model(weights: list[Tensor], mode: str, layers: int, bidirectional: bool) -> Model:
    names = _weight_names(layers, bidirectional, len(weights))
    tensors = {name: w.detach().contiguous().numpy() for name, w in zip(names, weights)}
    return Model.from_state_dict(tensors, cell=_CELLS[mode])


def _weight_names(layers: int, bidirectional: bool, count: int) -> list[str]:
    """The names of ``count`` weights, in the order of ``nn.LSTM.all_weights``."""
    directions = ("", "_reverse") if bidirectional else ("",)
    parts = {
        2: ("weight_ih", "weight_hh"),
        3: ("weight_ih", "weight_hh", "weight_hr"),
        4: ("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
        5: ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"),
    }[count // (layers * len(directions))]
    return [
        f"{part}_l{layer}{direction}"
        for layer in range(layers)
        for direction in directions
        for part in parts
    ]
