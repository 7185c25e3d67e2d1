"""The workers, one process per library, and the rounds in which they are timed in turn.

    for round in rounds
      for library in all of them, in random order
        wake it, warm-up calls, timed calls for one window, stop it

Only one process is awake at a time: the others are stopped by SIGSTOP, so that a pool that spins between
calls (each library keeps its own default there) takes nothing from the one in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import signal
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from peers import OURS, Peer


def confine(cores: set[int]) -> None:
    """In a new process, before its program: its cores, and that it ends with us. A stopped process whose
    parent is gone would stay for ever."""
    os.sched_setaffinity(0, cores)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Refused(Exception):
    """A library said, in its own words, why it does not run this."""


class Ended(Exception):
    """A worker is gone."""


class Worker:
    """A library's process; stopped unless it is asked something."""

    def __init__(self, peer: Peer, cores: set[int]) -> None:
        self.peer, self.cores = peer, cores
        self.process: subprocess.Popen[bytes] | None = None
        self.complaints = tempfile.TemporaryFile()
        self.version = "?"

    def start(self) -> None:
        """Starts it, pinned to the cores before its first thread exists; waits for its greeting."""
        self.process = subprocess.Popen(
            self.peer.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env={**os.environ, **self.peer.environment},
            preexec_fn=lambda: confine(self.cores),
        )
        self.rest = b""
        self.version = self.answer(120.0)["ok"]["version"]
        self.pause()

    def ask(self, request: dict, seconds: float) -> dict:
        """Wakes it, asks, stops it again."""
        if self.process is None:
            self.start()
        assert self.process is not None and self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.end()
            raise Ended(f"has ended{self.last_words()}") from None
        answer = self.answer(seconds)
        self.pause()
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def answer(self, seconds: float) -> dict:
        """One line, or the end of a worker that gives none in time."""
        assert self.process is not None and self.process.stdout is not None
        descriptor, until = self.process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            more = os.read(descriptor, 1 << 20) if ready else b""
            if not more:
                status = self.end()
                what = f"ended with status {status}" if ready else f"gave no answer in {seconds:.0f} s"
                raise Ended(f"{what}{self.last_words()}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def last_words(self) -> str:
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:200]}" if lines else ""

    def pause(self) -> None:
        """Stops it and waits until all of its threads are."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        # An exit is left for `end` to collect; the stop is taken, or the next wait would return at once.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG)

    def end(self) -> int | None:
        """Ends it, stopped or not; it is started anew when next asked."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        process.kill()
        return process.wait()


@dataclass
class Timing:
    """What one library's runs of a row took, in seconds, round by round."""

    rounds: list[list[float]] = field(default_factory=list)

    def all(self) -> list[float]:
        return sorted(t for times in self.rounds for t in times)

    def at(self, fraction: float) -> float:
        times = self.all()
        return times[round((len(times) - 1) * fraction)]

    @property
    def median(self) -> float:
        return self.at(0.5)

    @property
    def tail(self) -> float:
        """p99 over the median."""
        return self.at(0.99) / self.median

    def as_json(self) -> dict:
        return {
            "median_ms": 1e3 * self.median,
            "p25_ms": 1e3 * self.at(0.25),
            "p75_ms": 1e3 * self.at(0.75),
            "p99_ms": 1e3 * self.at(0.99),
            "runs": len(self.all()),
            "round_medians_ms": [1e3 * statistics.median(times) for times in self.rounds],
        }


@dataclass(frozen=True)
class Window:
    """How long, how often."""

    rounds: int
    seconds: float  # of timed calls, for each library in each round
    most_runs: int = 5000  # ends the windows of short calls early
    # As long as a frequency governor and a pool of threads need to wake up, and one call at least, which
    # brings the weights back into the caches.
    warm_seconds: float = 0.02
    warm_runs: int = 1


# For a load, or one round of a library: beyond it a row is unusable for users too.
PATIENCE = 300.0


# Beside the libraries: what the machine does to a loop as long as our call (rust-peers/src/bare.rs).
BARE = "bare loop"


def race(workers: list[Worker], window: Window, order: random.Random) -> tuple[dict[str, Timing], dict[str, str]]:
    """Times all workers, each with its row loaded, and the bare loop. Who fails is left out, with the reason."""
    times: dict[str, Timing] = {}
    failed: dict[str, str] = {}

    def timed(worker: Worker, runs: int) -> list[float] | None:
        request = {"do": "run", "runs": runs, "warm_runs": window.warm_runs, "warm_seconds": window.warm_seconds}
        try:
            return worker.ask(request, PATIENCE)["times"]
        except (Refused, Ended) as error:
            failed[worker.peer.name] = str(error)
            return None

    # Not counted: they say how many calls fill a window. A hiccup on a single call would shorten all of
    # a library's windows, so calls that cost little are repeated until the median shrugs it off.
    runs: dict[str, int] = {}
    for worker in workers:
        sample = timed(worker, 1)
        if sample and sample[0] < window.seconds:
            more = timed(worker, 20 if sample[0] < 0.01 else 2)
            sample = more and sample + more
        if sample:
            wanted = int(window.seconds / max(statistics.median(sample), 1e-9))
            runs[worker.peer.name] = min(max(wanted, 1), window.most_runs)
    for _ in range(window.rounds):
        turn = [worker for worker in workers if worker.peer.name not in failed]
        order.shuffle(turn)
        for worker in turn:
            count = runs[worker.peer.name]
            if found := timed(worker, count):
                times.setdefault(worker.peer.name, Timing()).rounds.append(found)
            if found and worker.peer.name == OURS:
                # As long in every round: a loop that followed a slow round of ours would look uneven, too.
                length = statistics.median(times[OURS].rounds[0])
                with contextlib.suppress(Refused, Ended):
                    bare = worker.ask({"do": "bare", "runs": count, "seconds": length}, PATIENCE)["times"]
                    times.setdefault(BARE, Timing()).rounds.append(bare)
    return {name: timing for name, timing in times.items() if name not in failed}, failed


def load(worker: Worker, row: dict, folder: Path, threads: int, plan: Path | None) -> dict:
    """Loads a row in the library's precision; what the worker says of it."""
    request = {"do": "load", "row": row, "folder": str(folder), "threads": threads, "precision": worker.peer.precision}
    if plan is not None:
        request["plan"] = str(plan)
    return worker.ask(request, PATIENCE)["ok"]
