"""A replica: an engine, and the sequences that it has computed last.

A request of a sequence takes these steps: the replica gets the states (its own, or those of the store), computes,
writes the new states to the store, answers. If another replica has written in between, the store refuses, and the
request is computed again from the states there. A request that fails or is cancelled leaves the states of the store
as they were; the replica then forgets its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

import numpy as np
import ray
from numpy.typing import ArrayLike, NDArray
from ray import serve

from .._native import Engine, Model, Plan, Stream
from ..errors import InputError
from ._cores import Cores
from ._scaling import LoadMeter
from ._states import Saved, SequenceError
from ._store import open_store

# A request is computed again as often if other replicas go on with its sequence meanwhile.
ATTEMPTS = 5


@dataclass
class Limits:
    """Limits of the open sequences of an application."""

    sequences: int
    idle_seconds: float


@dataclass
class Held:
    """A sequence whose requests this replica computes."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stream: Optional[Stream] = None
    """Goes on from ``saved``; ``None`` if the states are to be read."""
    saved: Optional[Saved] = None
    requests: int = 0
    """Requests under way."""
    used: float = field(default_factory=time.monotonic)

    def forget(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self.stream = self.saved = None


@dataclass
class Request:
    """A request of a sequence."""

    x: NDArray[np.float32]
    start: bool
    end: bool
    identifier: str
    priority: int
    timeout: Optional[float]


class Replica:
    """Runs a model. The methods are called through handles of Ray Serve."""

    def __init__(
        self,
        model: Union[Model, str, os.PathLike[str]],
        plan: Optional[str],
        engine: Mapping[str, Any],
        cores: int,
        limits: Limits,
    ) -> None:
        model = model if isinstance(model, Model) else Model.open(model)
        self._features, self._outputs = model.input_size, model.output_size
        context = serve.get_replica_context()
        self._name = context.deployment
        self._weights = hashlib.blake2b(pickle.dumps(model), digest_size=16).hexdigest()
        self._cores = Cores(cores)
        with self._cores.only():
            options = dict(engine)
            if plan is not None:
                options["plan"] = Plan.load_or_estimate(plan, model)
            self._engine = Engine(model, **options)
        self._meter = LoadMeter(self._engine)
        self._limits = limits
        self._store = open_store(context.app_name, limits.sequences, limits.idle_seconds)
        self._held: dict[str, Held] = {}

    def sizes(self) -> tuple[int, int]:
        """The numbers of features of a step of the input, and of the output."""
        return self._features, self._outputs

    async def infer(self, x: ArrayLike, *, priority: int = 0, timeout: Optional[float] = None) -> NDArray[np.float32]:
        """Computes a whole sequence, ``[steps, features]`` to ``[steps, outputs]``, or a batch of them."""
        x = np.asarray(x, np.float32)
        # The engine batches sequences step by step.
        rows = [self._checked(row) for row in (x if x.ndim == 3 else [x])]
        tickets = [self._engine.submit(row, outputs="each", priority=priority, timeout=timeout) for row in rows]
        answers = [await ticket for ticket in tickets]
        return np.stack(answers) if x.ndim == 3 else answers[0]

    async def step(
        self,
        x: ArrayLike,
        sequence: str,
        *,
        start: bool = False,
        end: bool = False,
        request: Optional[str] = None,
        priority: int = 0,
        timeout: Optional[float] = None,
    ) -> NDArray[np.float32]:
        """Computes the next steps of a sequence: ``[steps, features]`` to ``[steps, outputs]``.

        :param request: identifies the request. One with the same identifier as the last of the sequence is not
            computed again: it gets the same answer.
        """
        identifier = request if request is not None else os.urandom(8).hex()
        asked = Request(self._checked(x), start, end, identifier, priority, timeout)
        held = self._held.setdefault(sequence, Held())
        held.requests += 1
        try:
            # One request after the other, in the order of their arrival.
            async with held.lock:
                try:
                    for _ in range(ATTEMPTS):
                        answer = await self._try(held, f"{self._name}/{sequence}", asked)
                        if answer is not None:
                            return answer
                except BaseException:
                    held.forget()
                    raise
            raise SequenceError(f"other replicas go on with the sequence {sequence}; send one request after the other")
        finally:
            held.requests -= 1
            held.used = time.monotonic()
            if not held.requests and held.stream is None:
                del self._held[sequence]

    async def _try(self, held: Held, name: str, asked: Request) -> Optional[NDArray[np.float32]]:
        """``None`` if another replica has gone on with the sequence."""
        if held.saved is not None and held.saved.request == asked.identifier:
            return held.saved.answer
        steps, before = 0, ""
        if asked.start:
            held.forget()
            held.stream = self._engine.stream()
        else:
            if held.stream is None or held.saved is None:
                held.saved = await self._of_store("read", name, self._weights)
                if held.saved.request == asked.identifier:
                    return np.array(held.saved.answer)
                held.stream = self._engine.stream(held.saved.states)
            steps, before = held.saved.steps, held.saved.request
        answer = await _run(held.stream, asked)
        saved = Saved(self._weights, steps + len(asked.x), held.stream.state(), asked.identifier, answer)
        if asked.start:
            written = asked.end or await self._of_store("start", name, saved)
        elif asked.end:
            written = await self._of_store("end", name, before, self._weights)
        else:
            written = await self._of_store("write", name, before, saved)
        held.saved = saved
        if asked.end or not written:
            held.forget()
        return answer if written else None

    async def _of_store(self, method: str, *arguments: Any) -> Any:
        try:
            return await getattr(self._store, method).remote(*arguments)
        except ray.exceptions.RayTaskError as error:
            # Its own class, without the traceback of another process.
            raise error.cause from None

    def _checked(self, x: ArrayLike) -> NDArray[np.float32]:
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim != 2 or x.shape[1] != self._features:
            raise InputError(f"x has the shape {list(x.shape)}; it must be [steps, {self._features}]")
        if not len(x):
            raise InputError("x has no steps")
        return x

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve."""
        return {"load": self._meter.load()}

    async def check_health(self) -> None:
        """Called by Ray Serve."""
        await self._store.alive.remote()
        oldest = time.monotonic() - self._limits.idle_seconds
        for sequence, held in list(self._held.items()):
            if held.used < oldest and not held.requests:
                held.forget()
                del self._held[sequence]

    def __del__(self) -> None:
        # Ray Serve calls it at the end of the replica, also of one that could not be made.
        if hasattr(self, "_engine"):
            self._engine.close()


async def _run(stream: Stream, asked: Request) -> NDArray[np.float32]:
    tickets = [stream.push(row, priority=asked.priority, timeout=asked.timeout) for row in asked.x]
    try:
        return np.stack([await ticket for ticket in tickets])
    except BaseException:
        for ticket in tickets:
            ticket.cancel()
        raise
