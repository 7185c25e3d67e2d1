"""Sessions against the formula in NumPy; threads, forks, memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from conftest import lstm, weights

import gatestream


def test_a_session_computes_the_formula(tensors: dict, model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    y, hn, cn = session.run(x)
    expected = lstm(tensors, x)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_array_equal(hn[0], y[-1])
    assert y.dtype == np.float32 and cn.shape == (1, 3, 24)


def test_layers_follow_each_other(x: np.ndarray) -> None:
    tensors = weights("lstm", 12, 24, layers=2)
    y = gatestream.Session(gatestream.Model.from_state_dict(tensors)).run(x).output
    np.testing.assert_allclose(y, lstm(tensors, lstm(tensors, x), 1), atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_and_layouts_change_no_bit(model: gatestream.Model, x: np.ndarray, threads: int) -> None:
    y = gatestream.Session(model).run(x).output
    np.testing.assert_array_equal(gatestream.Session(model, threads=threads).run(x).output, y)
    session = gatestream.Session(model, gatestream.Plan.estimate(model, 3, 30, threads=threads))
    np.testing.assert_array_equal(session.run(x).output, y)
    # One sequence, columns of another array, Fortran order, double precision, a list.
    one = session.run(x[:, 1]).output
    np.testing.assert_array_equal(one, y[:, 1])
    for same in (np.asfortranarray(x), x.astype(np.float64), np.repeat(x, 2, axis=0)[::2], x.tolist()):
        np.testing.assert_array_equal(session.run(same).output, y)


def test_batch_first(tensors: dict, model: gatestream.Model, x: np.ndarray) -> None:
    first = gatestream.Session(gatestream.Model.from_state_dict(tensors, batch_first=True))
    y = gatestream.Session(model).run(x).output
    np.testing.assert_array_equal(first.run(x.transpose(1, 0, 2)).output, y.transpose(1, 0, 2))


def test_lengths_states_and_outputs_given(model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    y = session.run(x).output
    cut = session.run(x, lengths=[30, 10, 0])
    np.testing.assert_array_equal(cut.output[:10, 1], y[:10, 1])
    assert not cut.output[10:, 1].any() and not cut.output[:, 2].any()
    np.testing.assert_array_equal(cut.hn[0, 1], y[9, 1])
    half = session.run(x[:15])
    rest = session.run(x[15:], h0=half.hn, c0=half.cn)
    np.testing.assert_array_equal(rest.output, y[15:])
    out = np.full((30, 3, 24), np.nan, np.float32)
    assert session.run(x, out=out).output is out
    np.testing.assert_array_equal(out, y)


def test_streams(model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    y, hn, _ = session.run(x)
    stream = session.stream(batch=3)
    np.testing.assert_array_equal(np.stack([stream.step(step) for step in x]), y)
    np.testing.assert_array_equal(stream.h, hn.reshape(-1))
    stream.reset()
    np.testing.assert_array_equal(stream.step(x[0]), y[0])


def test_streams_come_and_go(model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    y = session.run(x).output
    first, others = session.stream(), session.stream(batch=2)
    for step in range(5):
        np.testing.assert_array_equal(first.step(x[step, :1]), y[step, :1])
    for step in range(3):
        np.testing.assert_array_equal(others.step(x[step, 1:]), y[step, 1:])
    # Of another session, of the same model.
    late = gatestream.Session(model).stream(h0=others.copy(1).h, c0=others.copy(1).c)
    others.add(first)
    assert others.batch == 3 and first.batch == 1
    rows = np.stack([x[3, 1], x[3, 2], x[5, 0]])
    np.testing.assert_array_equal(others.step(rows), np.stack([y[3, 1], y[3, 2], y[5, 0]]))
    np.testing.assert_array_equal(late.step(x[3, 2]), y[3, 2])
    gone = others.remove([0, 2])
    np.testing.assert_array_equal(others.step(x[4, 2]), y[4, 2])
    np.testing.assert_array_equal(gone.step(np.stack([x[4, 1], x[6, 0]])), np.stack([y[4, 1], y[6, 0]]))
    second, first = gone.split()
    joined = gatestream.StreamState.join([first, late, second])
    rows = np.stack([x[7, 0], x[4, 2], x[5, 1]])
    np.testing.assert_array_equal(joined.step(rows), np.stack([y[7, 0], y[4, 2], y[5, 1]]))
    # Those that were copied have gone no further.
    np.testing.assert_array_equal(second.step(x[5, 1]), y[5, 1])


def test_states_are_set_and_copied(x: np.ndarray) -> None:
    model = gatestream.Model.from_state_dict(weights("lstm", 12, 24, layers=2))
    session = gatestream.Session(model)
    whole = session.run(x)
    half = session.run(x[:15])
    stream = session.stream(3)
    stream.h, stream.c = half.hn, half.cn
    again = stream.copy()
    swapped = stream.copy([2, 0])
    np.testing.assert_array_equal(stream.step(x[15]), whole.output[15])
    again.h, again.c = again.h, again.c
    np.testing.assert_array_equal(again.step(x[15]), whole.output[15])
    np.testing.assert_array_equal(swapped.step(x[15, [2, 0]]), whole.output[15, [2, 0]])
    rest = session.run(x[16:], h0=stream.h, c0=stream.c)
    np.testing.assert_array_equal(rest.output, whole.output[16:])


def test_arrays_of_another_shape_change_no_state(model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    y = session.run(x).output
    stream = session.stream(3)
    states = np.zeros((1, 3, 24), np.float32)
    for wrong in (x[0].T, x[0].reshape(-1), x[0, :2], x[0][None], np.zeros((3, 11))):
        with pytest.raises(gatestream.InputError, match="shape"):
            stream.step(wrong)
    for wrong in (states.transpose(1, 0, 2), states.transpose(2, 1, 0), states[0], states[:, :2], np.zeros(71)):
        with pytest.raises(gatestream.InputError, match="shape"):
            stream.h = wrong
        with pytest.raises(gatestream.InputError, match="shape"):
            session.run(x, c0=wrong)
        with pytest.raises(gatestream.InputError, match="shape"):
            session.stream(3, h0=wrong)
    for wrong in (3, [0, 0], [-1], [0.5], True):
        with pytest.raises(gatestream.InputError):
            stream.remove(wrong)
    mask = np.array([True, False, True])
    for wrong in (mask, mask.tolist()):
        for call in (stream.remove, stream.copy):
            with pytest.raises(gatestream.InputError, match=r"streams is a mask; numpy\.flatnonzero"):
                call(wrong)
    other = gatestream.Session(gatestream.Model.from_state_dict(weights("lstm", 12, 24, seed=1)))
    with pytest.raises(gatestream.InputError, match="different models"):
        stream.add(other.stream())
    with pytest.raises(gatestream.InputError):
        gatestream.StreamState.join([])
    np.testing.assert_array_equal(stream.step(x[0]), y[0])


def test_both_directions_have_no_streams() -> None:
    tensors = weights("gru", 12, 8)
    tensors |= {f"{name}_reverse": value for name, value in tensors.items()}
    session = gatestream.Session(gatestream.Model.from_state_dict(tensors))
    with pytest.raises(gatestream.InputError, match="reverse"):
        session.stream()


def test_arrays_that_are_too_large(model: gatestream.Model) -> None:
    session = gatestream.Session(model)
    for batch in (10**12, 2**62, 2**63):
        with pytest.raises(gatestream.TooLargeError) as raised:
            session.stream(batch)
        assert isinstance(raised.value, MemoryError)
    wide = gatestream.Session(gatestream.Model.from_state_dict({"weight_ih_l0": np.zeros((4096, 1)), "weight_hh_l0": np.zeros((4096, 4096))}, cell="rnn_tanh"))
    with pytest.raises(MemoryError):
        wide.run(np.broadcast_to(np.zeros((1, 1, 1), np.float32), (2**20, 2**18, 1)))
    with pytest.raises(MemoryError):
        wide.run(np.zeros((2**15, 2**15, 1), np.float32))  # 16 TB


@pytest.mark.parametrize(
    "call",
    [
        lambda model: gatestream.Session(model, threads=0),
        lambda model: gatestream.Session(model, threads=10**6),
        lambda model: gatestream.Session(model, threads=-1),
        lambda model: gatestream.Plan.estimate(model, 1, 10, threads=0),
        lambda model: gatestream.Plan.estimate(model, -1, 10),
        lambda model: gatestream.tune(model, [(1, -10)], seconds=0.1),
        lambda model: gatestream.tune(model, [(1, 10)], seconds=0.1, threads=0),
        lambda model: gatestream.Session(model).stream(-1),
        lambda model: gatestream.Session(model).reserve(1, -1),
        lambda model: gatestream.Session(model).reserve(2**64, 1),
    ],
)
def test_numbers_out_of_range_are_refused(model: gatestream.Model, call: Callable[[gatestream.Model], object]) -> None:
    with pytest.raises(gatestream.InputError):
        call(model)


def test_long_runs_in_parts_have_the_same_bits() -> None:
    tensors = weights("lstm", 16, 512)
    session = gatestream.Session(gatestream.Model.from_state_dict(tensors))
    x = np.random.default_rng(5).normal(size=(5000, 2, 16)).astype(np.float32)  # four parts
    whole = session.run(x)
    part = session.run(x[:1000])
    rest = session.run(x[1000:], h0=part.hn, c0=part.cn)
    np.testing.assert_array_equal(whole.output[:1000], part.output)
    np.testing.assert_array_equal(whole.output[1000:], rest.output)
    np.testing.assert_array_equal(whole.cn, rest.cn)
    cut = session.run(x, lengths=[5000, 700])
    np.testing.assert_array_equal(cut.hn[0, 0], whole.hn[0, 0])
    np.testing.assert_array_equal(cut.hn[0, 1], whole.output[699, 1])
    assert not cut.output[700:, 1].any()


def test_ctrl_c_ends_a_long_run() -> None:
    program = """
import os, signal, threading, time, gatestream, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
shapes = {"weight_ih_l0": (16384, 8), "weight_hh_l0": (16384, 256), "weight_hr_l0": (256, 4096)}
weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
session = gatestream.Session(gatestream.Model.from_state_dict(weights))
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    session.run(np.zeros((800_000, 1, 8), np.float32))  # minutes: 8e12 operations
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "interrupted\n", ended.stderr


def test_other_threads_run_meanwhile() -> None:
    session = gatestream.Session(gatestream.Model.from_state_dict(weights("gru", 16, 512)))
    x = np.zeros((10_000, 1, 16), np.float32)
    turns = 0
    is_over = False

    def count() -> None:
        nonlocal turns
        while not is_over:
            time.sleep(0.001)
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = turns
    session.run(x)
    during = turns - before
    is_over = True
    counter.join()
    # With the interpreter held there is at most the turn that the thread's start allows.
    assert during > 3


def test_dlpack(model: gatestream.Model, x: np.ndarray) -> None:
    class Tensor:
        """An array of another library."""

        def __dlpack__(self, **options: object) -> object:
            return x.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

    session = gatestream.Session(model)
    np.testing.assert_array_equal(session.run(Tensor()).output, session.run(x).output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.zeros((5, 1, 11))}, "11 features"),
        ({"x": np.zeros(12)}, "shape"),
        ({"x": "text"}, "no array"),
        ({"x": np.zeros((5, 1, 12)), "lengths": [6]}, "6"),
        ({"x": np.zeros((5, 1, 12)), "lengths": [-1]}, "lengths"),
        ({"x": np.zeros((5, 2, 12)), "h0": np.zeros((1, 1, 24))}, "h0"),
        ({"x": np.zeros((5, 1, 12)), "out": np.zeros((5, 1, 24))}, "float32"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(model: gatestream.Model, arguments: dict, message: str) -> None:
    with pytest.raises(gatestream.InputError, match=message):
        gatestream.Session(model).run(**arguments)


def test_eight_threads_share_sessions(model: gatestream.Model, x: np.ndarray) -> None:
    sessions = [gatestream.Session(model), gatestream.Session(model, threads=1)]
    inputs = [x * factor for factor in np.linspace(-1, 1, 8, dtype=np.float32)]
    expected = [sessions[0].run(one).output for one in inputs]
    start = threading.Barrier(8)

    def work(at: int) -> None:
        start.wait()
        for turn in range(60):
            one = (at + turn) % 8
            np.testing.assert_array_equal(sessions[turn % 2].run(inputs[one]).output, expected[one])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_a_child_gets_an_error_and_may_make_its_own(model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    stream = session.stream(batch=3)
    engine = gatestream.Engine(model)
    ticket = engine.submit(x[:, 0])
    y = session.run(x).output
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for use in (lambda: session.run(x), lambda: stream.step(x[0]), lambda: engine.submit(x[:, 0]), ticket.result):
                try:
                    use()
                    os._exit(2)
                except gatestream.ForkedError:
                    pass
            if (gatestream.Session(model).run(x).output == y).all():
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ticket.result()
    engine.close()


def last_output(model: gatestream.Model, x: np.ndarray) -> np.ndarray:
    """What a process of a pool does."""
    return gatestream.Session(model, threads=1).run(x).output[-1]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_processes(model: gatestream.Model, x: np.ndarray, method: str) -> None:
    session = gatestream.Session(model)
    expected = session.run(x).output[-1]
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for answer in pool.map(last_output, [model] * 4, [x] * 4):
            np.testing.assert_array_equal(answer, expected)
    np.testing.assert_array_equal(session.run(x).output[-1], expected)


def test_sessions_leave_no_memory_behind(model: gatestream.Model, x: np.ndarray) -> None:
    def use(count: int) -> int:
        for _ in range(count):
            gatestream.Session(model, threads=2).run(x)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = use(1000)
    grown = use(9000) - before
    assert grown < 4096, f"{grown} KiB more after 9,000 sessions"
    assert threading.active_count() < 20
