"""The states of open sequences, kept apart from the replicas that compute them.

A replica writes the states after each request of a sequence, before it answers. A replica that does not hold
the sequence reads them. So sequences survive the death of a replica, and move when replicas are added, removed
or replaced.

Each write names the request that it goes on from. If another replica has written meanwhile, the write is refused, and
the replica computes the request again from the newer states: each request counts once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import OverloadedError, RequestError

# The number of ended sequences whose reason is remembered.
REMEMBERED = 10_000


class SequenceError(RequestError):
    """A request of a sequence that is not open, or the start of one that is.

    :ivar steps: the steps so far if the sequence is open, else ``None``.
    """

    def __init__(self, message: str, steps: Optional[int] = None) -> None:
        super().__init__(message)
        self.steps = steps

    def __reduce__(self) -> tuple[Any, ...]:
        return SequenceError, (str(self), self.steps)


@dataclass
class Saved:
    """A sequence after a request."""

    weights: str
    """Fingerprint of the model's weights."""
    steps: int
    """Steps so far."""
    states: NDArray[np.float32]
    """Those of :meth:`gatestream.Stream.state`."""
    request: str
    """Identifies the last request, which may be sent again if its replica dies."""
    answer: NDArray[np.float32]
    """That of the last request."""
    touched: float = field(default=0.0, compare=False)


class States:
    """Open sequences by name.

    :param limit: the largest number of open sequences.
    :param idle_seconds: the time without a request after which a sequence ends.
    """

    def __init__(self, limit: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[str, Saved] = OrderedDict()
        """The sequence with the oldest request comes first."""
        self._ended: OrderedDict[str, str] = OrderedDict()
        self.configure(limit, idle_seconds)

    def configure(self, limit: int, idle_seconds: float) -> None:
        """Sets the limits of :class:`States`; open sequences stay."""
        self._limit, self._idle_seconds = limit, idle_seconds

    def read(self, name: str, weights: str) -> Saved:
        """The states after the last request.

        :raises SequenceError: if it is not open, or was computed with other weights, which ends it.
        """
        self._expire()
        saved = self._open.get(name)
        if saved is None:
            why = self._ended.get(name, "it was not started here")
            raise SequenceError(f"the sequence {name} is not open: {why}; start it with sequence_start")
        if saved.weights != weights:
            self._end(name, "its model was replaced")
            raise SequenceError(f"the sequence {name} has ended: its model was replaced; start it anew")
        return saved

    def start(self, name: str, saved: Saved) -> bool:
        """Opens a sequence after its first request, which may be written twice. Returns true.

        :raises SequenceError: if it is open.
        :raises OverloadedError: if there are as many as allowed.
        """
        self._expire()
        already = self._open.get(name)
        if already is not None and already.request != saved.request:
            message = f"the sequence {name} is open, with {already.steps} steps; end it before it starts again"
            raise SequenceError(message, already.steps)
        if already is None and len(self._open) >= self._limit:
            raise OverloadedError(f"{self._limit} sequences are open, which is the limit")
        self._ended.pop(name, None)
        self._put(name, saved)
        return True

    def write(self, name: str, before: str, saved: Saved) -> bool:
        """Replaces the states, unless they are not those after the request ``before``; returns whether they are.

        :raises SequenceError: if it is not open.
        """
        if self.read(name, saved.weights).request != before:
            return False
        self._put(name, saved)
        return True

    def end(self, name: str, before: str, weights: str) -> bool:
        """Ends the sequence, unless its last request is not ``before``; returns whether it is.

        :raises SequenceError: if it is not open.
        """
        if self.read(name, weights).request != before:
            return False
        self._end(name, "it was ended")
        return True

    def count(self) -> int:
        """The number of open sequences."""
        self._expire()
        return len(self._open)

    def _put(self, name: str, saved: Saved) -> None:
        saved.touched = self._clock()
        self._open[name] = saved
        self._open.move_to_end(name)

    def _end(self, name: str, why: str) -> None:
        del self._open[name]
        self._ended[name] = why
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _expire(self) -> None:
        oldest = self._clock() - self._idle_seconds
        while self._open:
            name = next(iter(self._open))
            if self._open[name].touched >= oldest:
                break
            self._end(name, f"no request came for {self._idle_seconds:g} s")
