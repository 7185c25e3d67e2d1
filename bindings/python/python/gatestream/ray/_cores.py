"""Cores of a replica: those that no other replica of the machine has."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Iterator


class Cores:
    """Cores that this process has taken, by locks of files, which end with the process.

    :param count: their number. With fewer free ones, none is taken.
    """

    def __init__(self, count: int) -> None:
        self._locks: list[IO[bytes]] = []
        self.numbers: list[int] = []
        folder = Path(tempfile.gettempdir()) / f"gatestream-cores-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        for number in sorted(os.sched_getaffinity(0)):
            if len(self.numbers) == count:
                return
            lock = open(folder / str(number), "wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            self._locks.append(lock)
            self.numbers.append(number)
        if len(self.numbers) < count:
            self._locks, self.numbers = [], []

    @contextmanager
    def only(self) -> Iterator[None]:
        """Threads that are started meanwhile by this one run on these cores."""
        if not self.numbers:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.numbers)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
