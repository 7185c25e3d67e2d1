"""The extension module."""

import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Optional, Union, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from ._types import Port, Result

_Path = Union[str, os.PathLike[str]]
_Precision = Literal["f32", "bf16", "int8"]
_Effort = Literal["estimate", "measure", "exhaustive"]
_Progress = Callable[[float, str], Optional[bool]]

__all__ = [
    "Engine",
    "Model",
    "Network",
    "Plan",
    "RawSession",
    "Session",
    "Stream",
    "StreamState",
    "Ticket",
    "__version__",
    "main",
    "quantize",
    "tune",
]

__version__: str

def main(arguments: Sequence[str]) -> int: ...

@final
class Model:
    """A stack of recurrent layers with its weights."""

    @staticmethod
    def open(
        path: _Path,
        *,
        prefix: Optional[str] = None,
        cell: Optional[str] = None,
        batch_first: Optional[bool] = None,
        precision: Optional[_Precision] = None,
    ) -> Model:
        """Reads a file, whose bytes tell its kind: ONNX, safetensors, or a checkpoint of PyTorch
        (``.pt``, ``.ckpt``, ``.bin``, …), of which no code is executed. A file of a set, or the
        index of the set, stands for all of its files.

        :param prefix: selects the stack in a state dict whose tensor names start with it.
        :param cell: ``lstm``, ``gru``, ``light_gru``, ``rnn_tanh`` or ``rnn_relu``, where a state
            dict does not say it.
        :param batch_first: whether the batch is the first axis, where a state dict does not say it.
        :param precision: rounds the weights to it.
        :raises ModelError: for a file that is not a supported model.
        """

    @staticmethod
    def from_state_dict(
        tensors: Mapping[str, ArrayLike],
        *,
        prefix: Optional[str] = None,
        cell: Optional[str] = None,
        batch_first: Optional[bool] = None,
        precision: Optional[_Precision] = None,
    ) -> Model:
        """A model of arrays with the names of PyTorch's modules: ``weight_ih_l0``
        ``[gates * hidden, input]``, ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0``, and so on."""

    def save(self, path: _Path) -> None:
        """Writes a safetensors file that :meth:`open` reads back, whole or not at all.

        :param path: ends with ``.safetensors``.
        """

    def in_precision(self, precision: _Precision) -> Model:
        """The same model with its weights rounded."""

    @property
    def input_size(self) -> int:
        """Features of an input step."""

    @property
    def output_size(self) -> int:
        """Features of an output step."""

    @property
    def hidden_sizes(self) -> list[int]:
        """The hidden size of each layer."""

    @property
    def bidirectional(self) -> bool:
        """Whether a layer has two directions."""

    @property
    def batch_first(self) -> bool:
        """Whether the batch is the first axis of inputs and outputs."""

    @property
    def precision(self) -> str:
        """``f32``, ``bf16``, ``int8`` or ``mixed``."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""

    def __eq__(self, value: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Plan:
    """How a session runs a model on this machine, for requests of certain sizes."""

    @staticmethod
    def estimate(
        model: Model,
        batch: Optional[int] = None,
        steps: Optional[int] = None,
        *,
        threads: Optional[int] = None,
    ) -> Plan:
        """A plan without measuring. Without ``batch`` and ``steps`` it has the usual sizes: 1, 4 and
        16 sequences of 1, 10 and 100 steps."""

    @staticmethod
    def load(path: _Path, model: Model) -> Plan:
        """Reads a plan that was made for this model on this machine.

        :raises PlanError: for any other.
        """

    @staticmethod
    def load_or_estimate(path: _Path, model: Model) -> Plan:
        """As :meth:`load`; where that raises an error, as :meth:`estimate`."""

    def save(self, path: _Path) -> None:
        """Writes the plan, whole or not at all."""

    @property
    def threads(self) -> int:
        """The most threads that a run uses."""

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Sequences and steps of each entry."""

    @property
    def is_tuned(self) -> bool:
        """Whether all entries were measured."""

    def __eq__(self, value: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def tune(
    model: Model,
    sizes: Sequence[tuple[int, int]],
    *,
    threads: Optional[int] = None,
    seconds: float = 20.0,
    effort: _Effort = "measure",
    lengths: Sequence[int] = ...,
    progress: Optional[_Progress] = None,
) -> Plan:
    """Finds the fastest plan by measuring. Ctrl-C ends it.

    :param sizes: sequences and steps of the requests to tune for.
    :param seconds: time for all sizes together.
    :param lengths: lengths of the sequences, repeated in turn; a longer one is cut to the steps of
        the size. By default every sequence has all steps.
    :param progress: called with the fraction of the time, from 0 to 1, and a text. Where it returns
        ``False``, the tuning ends with its result so far.
    """

def quantize(source: _Path, target: _Path) -> list[str]:
    """Writes an ONNX file with the recurrent weights of another in 8 bits; returns their names."""

@final
class Session:
    """Runs a model. Threads may share a session; its runs come one after the other."""

    def __new__(
        cls, model: Model, plan: Optional[Plan] = None, *, threads: Optional[int] = None
    ) -> Self:
        """Packs the weights and starts the threads.

        :param plan: by default an estimate for the usual sizes, on ``threads`` cores or all.
        """

    def run(
        self,
        x: ArrayLike,
        *,
        lengths: Optional[ArrayLike] = None,
        h0: Optional[ArrayLike] = None,
        c0: Optional[ArrayLike] = None,
        out: Optional[NDArray[np.float32]] = None,
    ) -> Result:
        """Runs whole sequences. float32 arrays in row-major order are not copied. Ctrl-C ends a long
        run, unless a layer is bidirectional or the batch comes first.

        :param x: ``[steps, batch, input_size]``, of a batch-first model
            ``[batch, steps, input_size]``; or one sequence ``[steps, input_size]``.
        :param lengths: steps of each sequence, ``[batch]``. Outputs past the end are zero.
        :param h0: initial hidden states, ``[layers * directions, batch, size]`` as those that a run
            returns, or in one axis as :attr:`StreamState.h`; zero by default.
        :param c0: initial cell states, likewise.
        :param out: an array to write the output to.
        :raises InputError: for arrays that do not fit; nothing has been computed then.
        """

    def stream(
        self, batch: int = 1, *, h0: Optional[ArrayLike] = None, c0: Optional[ArrayLike] = None
    ) -> StreamState:
        """The states of ``batch`` streams that run step by step.

        :param h0: initial hidden states, as those of :meth:`run`; zero by default.
        :param c0: initial cell states, likewise.
        :raises InputError: for a model with a reverse direction, which needs whole sequences.
        """

    def reserve(self, batch: int, steps: int) -> None:
        """Makes room for inputs of this size, which a run otherwise does when it needs it."""

@final
class StreamState:
    """The states of streams between steps."""

    def step(self, x: ArrayLike) -> NDArray[np.float32]:
        """Runs a step: ``x`` ``[batch, input_size]``, or ``[input_size]`` of one stream. Returns the
        output, ``[batch, output_size]`` or ``[output_size]``.

        :raises InputError: for an array that does not fit; the states are as before then.
        """

    @property
    def batch(self) -> int:
        """Number of streams."""

    @property
    def h(self) -> NDArray[np.float32]:
        """The hidden states: blocks ``[batch, size]`` of all layers, one after the other in one axis.
        May be set to such an array, or to ``[layers, batch, size]``."""

    @h.setter
    def h(self, value: ArrayLike) -> None: ...
    @property
    def c(self) -> NDArray[np.float32]:
        """The cell states, likewise."""

    @c.setter
    def c(self, value: ArrayLike) -> None: ...
    def reset(self) -> None:
        """Sets all states to zero."""

    def copy(self, streams: Optional[ArrayLike] = None) -> StreamState:
        """The streams again, in states of their own.

        :param streams: which ones, in this order, by their numbers from 0; all by default.
        """

    @staticmethod
    def join(states: Sequence[StreamState]) -> StreamState:
        """The streams of several states of one model, one after the other, in states of their own."""

    def split(self) -> list[StreamState]:
        """Each stream, in states of its own."""

    def add(self, other: StreamState) -> None:
        """Adds the streams of other states of the same model after its own. The others stay as they
        are."""

    def remove(self, streams: ArrayLike) -> StreamState:
        """Takes streams out, and returns them in states of their own.

        :param streams: their numbers from 0; the streams after them move up.
        """

@final
class RawSession:
    """Runs on addresses; for :mod:`gatestream.torch`."""

    def __new__(cls, model: Model, threads: int, gomp_parallel: int) -> Self: ...
    def run(
        self,
        steps: int,
        batch: int,
        is_batch_first: bool,
        x: int,
        x_values: int,
        h0: int,
        h0_values: int,
        c0: int,
        c0_values: int,
        y: int,
        y_values: int,
        hn: int,
        hn_values: int,
        cn: int,
        cn_values: int,
    ) -> None: ...
    def run_packed(
        self,
        batch_sizes: Sequence[int],
        x: int,
        x_values: int,
        h0: int,
        h0_values: int,
        c0: int,
        c0_values: int,
        y: int,
        y_values: int,
        hn: int,
        hn_values: int,
        cn: int,
        cn_values: int,
    ) -> None: ...

@final
class Network:
    """A whole ONNX graph: its recurrent and dense layers on gatestream, the others on tract."""

    @staticmethod
    def open(
        path: _Path,
        *,
        threads: Optional[int] = None,
        precision: Optional[_Precision] = None,
        plan_bytes: Optional[int] = None,
        unchecked: bool = False,
    ) -> Network:
        """Reads an ONNX file.

        :param threads: those that all recurrent layers share; one for each core by default.
        :param precision: that of the weights of all recurrent layers; that of the file by default.
        :param plan_bytes: most bytes of the plans that are kept, each for other shapes of the
            inputs; 512 MiB by default. The last one is kept in any case.
        :param unchecked: run operators, too, that ONNX's own test cases have not verified; their
            results may be wrong.
        :raises ModelError: for a file that is not a supported model.
        """

    @property
    def inputs(self) -> list[Port]:
        """The inputs that a run needs."""

    @property
    def outputs(self) -> list[Port]:
        """The outputs."""

    def run(self, arrays: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
        """Runs the graph on named arrays; returns all outputs by name. The first run with inputs of
        other shapes takes longer."""

    def plan_stats(self) -> dict[str, int]:
        """The plans that are ``kept`` and their ``bytes``, without the constants of the file; how many
        were ``made`` and ``evicted``."""

    def tune(
        self,
        arrays: Mapping[str, ArrayLike],
        path: Optional[_Path] = None,
        *,
        seconds: float = 20.0,
        effort: _Effort = "measure",
        progress: Optional[_Progress] = None,
    ) -> None:
        """Finds the fastest plan of each recurrent layer for these inputs and uses it from now on;
        writes the plans to ``path``."""

    def use_plan(self, path: _Path) -> None:
        """Uses the plans of a file."""

@final
class Engine:
    """Serves one model to many users: batches single steps of all requests that are under way."""

    def __new__(
        cls,
        model: Model,
        *,
        policy: Optional[str] = None,
        max_batch: Optional[int] = None,
        workers: Optional[Literal["one-per-core", "one-over-all"]] = None,
        plan: Optional[Plan] = None,
        max_steps: Optional[int] = None,
        max_requests: Optional[int] = None,
        max_nodes: Optional[int] = None,
        max_request_nodes: Optional[int] = None,
        max_bytes: Optional[int] = None,
        max_streams: Optional[int] = None,
    ) -> Self:
        """Starts the workers.

        :param policy: ``ebatch`` (the default), ``cellular`` or ``shortest``.
        :param max_batch: the largest number of rows of a batch.
        :param max_steps: the longest sequence of a model with a reverse direction, which runs whole;
            1000 by default.
        :param max_requests: requests that have not ended; those beyond it are refused with
            :class:`OverloadedError`. Likewise all limits below.
        :param max_nodes: their steps together; of a model with a reverse direction, the sequences.
        :param max_request_nodes: steps of one request.
        :param max_bytes: memory of their inputs, states and outputs.
        :param max_streams: open streams.
        """

    def submit(
        self,
        x: ArrayLike,
        *,
        states: Optional[Sequence[ArrayLike]] = None,
        outputs: Literal["last", "each"] = "last",
        priority: int = 0,
        timeout: Optional[float] = None,
    ) -> Ticket:
        """Submits a sequence ``[steps, input_size]``.

        :param states: initial states, ``[size]`` each: of each layer the hidden state and, of an
            LSTM, the cell state. A model with a reverse direction has two: all hidden states, and
            all cell states.
        :param outputs: the output of the last step, ``[output_size]``, or of each,
            ``[steps, output_size]``.
        :param priority: from 0 to 255; higher ones come first.
        :param timeout: seconds after which the request ends with :class:`DeadlineError`.
        """

    def stream(self, states: Optional[ArrayLike] = None) -> Stream:
        """Opens a stream, whose steps come one by one.

        :param states: those of :meth:`Stream.state` of another; zero by default.
        """

    @property
    def policy(self) -> str:
        """The policy that forms batches: ``ebatch``, ``cellular`` or ``shortest``."""

    def stats(self) -> dict[str, float]:
        """Numbers of requests: ``submitted``, ``completed``, ``cancelled``, ``late``, ``failed``,
        ``refused``, ``unanswered``. The rows that wait for a worker, ``ready_rows``, and those of
        all batches, ``computed_rows``. The number of ``workers``, and the time of their batches,
        ``busy_seconds``."""

    def close(self) -> None:
        """Ends all requests and the workers. An engine without references, not even of a
        :class:`Ticket`, ends as well."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: Optional[type[BaseException]] = ...,
        value: Optional[BaseException] = ...,
        traceback: Optional[TracebackType] = ...,
        /,
    ) -> None: ...

@final
class Stream:
    """An open stream of an engine. One without references ends as by :meth:`close`."""

    def push(self, x: ArrayLike, *, priority: int = 0, timeout: Optional[float] = None) -> Ticket:
        """Adds a step, ``[input_size]``; its answer is ``[output_size]``."""

    def state(self) -> NDArray[np.float32]:
        """The states after the last answered step."""

    def close(self) -> None:
        """Ends the stream after the steps that were added."""

@final
class Ticket(Awaitable[NDArray[np.float32]]):
    """The answer of an engine, to be awaited or waited for."""

    def result(self, timeout: Optional[float] = None) -> NDArray[np.float32]:
        """Waits for the answer.

        :raises TimeoutError: after ``timeout`` seconds; the request goes on.
        :raises RequestError: if the request ended without an answer.
        """

    def done(self) -> bool:
        """Whether the request has ended."""

    def cancel(self) -> None:
        """Ends the request, unless it has ended."""

    def _poll(self, wake: Callable[[], None]) -> bool: ...
    def __await__(self) -> Generator[Any, None, NDArray[np.float32]]: ...
