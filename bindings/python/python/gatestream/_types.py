"""Values that the extension module returns."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    from numpy.typing import NDArray

    from ._native import Ticket


class Result(NamedTuple):
    """The result of :meth:`Session.run`."""

    output: NDArray[np.float32]
    """``[steps, batch, output_size]``, or ``[batch, steps, output_size]``: the axes of ``x``."""
    hn: NDArray[np.float32]
    """Final hidden states, ``[layers * directions, batch, size]``."""
    cn: Optional[NDArray[np.float32]]
    """Final cell states, likewise; ``None`` of a model without LSTM layers."""


class Port(NamedTuple):
    """An input or output of a :class:`Network`."""

    name: str
    dtype: Optional[str]
    """The name of the NumPy type; ``None`` if the file does not say it."""
    shape: Optional[list[Optional[int]]]
    """The length of each axis, ``None`` for any; ``None`` if the file does not say it."""


def _wait(ticket: Ticket) -> Generator[Any, None, NDArray[np.float32]]:
    """The generator behind ``await ticket``."""
    import asyncio  # here, because it takes longer to import than all of gatestream

    loop = asyncio.get_running_loop()
    while True:
        woken = loop.create_future()

        def wake(woken: asyncio.Future[None] = woken) -> None:
            def end() -> None:
                if not woken.done():
                    woken.set_result(None)

            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:
                pass  # the loop is closed, so nobody waits

        if ticket._poll(wake):
            return ticket.result()
        try:
            yield from woken
        except asyncio.CancelledError:
            ticket.cancel()
            raise
