"""Arguments that nobody should pass: each is taken for what it is worth, or refused by a typed error that names it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import lstm, weights

import gatestream

CASES = Path(__file__).parents[3] / "crates" / "network" / "tests" / "cases"
HUGE = 10**30


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same values at an odd address."""
    room = np.empty(array.nbytes + 1, np.uint8)
    made = room[1:].view(array.dtype).reshape(array.shape)
    made[...] = array
    assert not made.flags.aligned
    return made


def read_only(array: np.ndarray) -> np.ndarray:
    made = array.copy()
    made.flags.writeable = False
    return made


def negative_strides(array: np.ndarray) -> np.ndarray:
    return array[::-1].copy()[::-1]


FORMS: dict[str, Callable[[np.ndarray], object]] = {
    "unaligned": unaligned,
    "unaligned Fortran order": lambda x: unaligned(x.T.copy()).T,
    "Fortran order": np.asfortranarray,
    "read-only": read_only,
    "negative strides": negative_strides,
    "every second value": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "big-endian": lambda x: x.astype(">f4"),
    "big-endian float64": lambda x: x.astype(">f8"),
    "unaligned big-endian": lambda x: unaligned(x.astype(">f4")),
    "memoryview": memoryview,
    "nested lists": lambda x: x.tolist(),
    "matrix subclass": lambda x: x.view(type("Mine", (np.ndarray,), {})),
    "a field of records": lambda x: records(x)["x"],
}


def records(x: np.ndarray) -> np.ndarray:
    made = np.zeros(x.shape, np.dtype([("flag", "u1"), ("x", "f4")]))
    made["x"] = x
    return made


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_every_form_of_array_is_the_same_input(tensors: dict, model: gatestream.Model, x: np.ndarray, form: Callable) -> None:
    session = gatestream.Session(model, threads=1)
    expected = lstm(tensors, x)
    np.testing.assert_allclose(session.run(form(x)).output, expected, atol=1e-5)
    h0, c0 = (np.random.default_rng(at).normal(size=(1, 3, 24)).astype(np.float32) for at in (2, 3))
    with_states = session.run(x, h0=h0, c0=c0)
    same = session.run(x, h0=form(h0), c0=form(c0))
    np.testing.assert_array_equal(same.output, with_states.output)
    assert not np.array_equal(same.output, session.run(x).output)
    given = {name: form(value) for name, value in tensors.items() if value.ndim == 2}
    loaded = gatestream.Model.from_state_dict({**tensors, **given})
    assert loaded == model
    with gatestream.Engine(model) as engine:
        one = np.ascontiguousarray(x[:, 0])
        np.testing.assert_allclose(engine.submit(form(one), outputs="each").result(), expected[:, 0], atol=1e-5)


@pytest.mark.parametrize("form", [name for name in FORMS if name not in ("big-endian float64", "nested lists")])
def test_every_form_of_array_is_the_same_input_of_a_network(form: str) -> None:
    # The outputs were recorded with ONNX Runtime.
    path = CASES / "07_unsorted_pack_LSTM_batch_firstTrue_enforce_sortedFalse_biTrue_lastFalse_script.onnx"
    recorded = np.load(path.with_suffix(".npz"))
    given = {name[3:]: recorded[name] for name in recorded.files if name.startswith("in:")}
    network = gatestream.Network.open(path, threads=1)
    assert given["L"].dtype == np.int64
    forms = {"X": FORMS[form](given["X"]), "L": unaligned(given["L"].astype(">i8"))}
    found = network.run(forms)
    for name, value in found.items():
        np.testing.assert_allclose(value, recorded[f"out:{name}"], atol=1e-5)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((5, 1, 12), np.complex64),
        np.zeros((5, 1, 12), "U3"),
        np.full((5, 1, 12), "1.5"),
        np.zeros((5, 1, 12), "M8[s]"),
        np.zeros((5, 1, 12), "m8[s]"),
        np.full((5, 1, 12), None),
        np.ma.masked_array(np.zeros((5, 1, 12), np.float32), mask=True),
        [[1.0, 2.0], [3.0]],
        {"x": 1.0},
        None,
        object(),
        "text",
        b"bytes",
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_what_is_no_array_of_real_numbers_is_refused(model: gatestream.Model, value: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(gatestream.InputError, match="^x "):
            gatestream.Session(model, threads=1).run(value)


def test_values_that_are_no_numbers_stay_in_their_sequence(model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    expected = session.run(x).output
    for bad in (np.nan, np.inf, -np.inf):
        wrong = x.copy()
        wrong[3, 1, 2] = bad
        found = session.run(wrong).output
        np.testing.assert_array_equal(found[:, [0, 2]], expected[:, [0, 2]])
        np.testing.assert_array_equal(found[:3, 1], expected[:3, 1])
        assert np.isnan(found[3, 1]).any() == np.isnan(bad)
    subnormal = np.full_like(x, 1e-42)
    assert np.isfinite(session.run(subnormal).output).all()


def test_sizes_of_zero(model: gatestream.Model) -> None:
    session = gatestream.Session(model)
    h0 = np.random.default_rng(0).normal(size=(1, 3, 24)).astype(np.float32)
    y, hn, _ = session.run(np.zeros((0, 3, 12), np.float32), h0=h0)
    assert y.shape == (0, 3, 24)
    np.testing.assert_array_equal(hn, h0)
    y, hn, cn = session.run(np.zeros((4, 0, 12), np.float32))
    assert (y.shape, hn.shape, cn.shape) == ((4, 0, 24), (1, 0, 24), (1, 0, 24))
    with pytest.raises(gatestream.InputError):
        session.run(np.zeros((4, 3, 0), np.float32))
    with gatestream.Engine(model) as engine, pytest.raises(gatestream.InputError):
        engine.submit(np.zeros((0, 12), np.float32))


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((30, 3, 24)),
        np.zeros((30, 3, 23), np.float32),
        np.zeros((30, 3, 24), ">f4"),
        np.zeros((24, 3, 30), np.float32).T,
        read_only(np.zeros((30, 3, 24), np.float32)),
        unaligned(np.zeros((30, 3, 24), np.float32)),
        [[0.0]],
        None,
    ],
    ids=["float64", "shape", "big-endian", "Fortran order", "read-only", "unaligned", "list", "none"],
)
def test_outputs_that_cannot_be_written(tensors: dict, model: gatestream.Model, x: np.ndarray, out: object) -> None:
    session = gatestream.Session(model)
    if out is None:
        np.testing.assert_allclose(session.run(x, out=None).output, lstm(tensors, x), atol=1e-5)
        return
    before = np.array(out)
    with pytest.raises(gatestream.InputError, match="^out "):
        session.run(x, out=out)
    np.testing.assert_array_equal(np.array(out), before)


def test_an_output_that_is_an_input_is_refused() -> None:
    model = gatestream.Model.from_state_dict(weights("lstm", 8, 8))
    x = np.random.default_rng(0).normal(size=(5, 2, 8)).astype(np.float32)
    before = x.copy()
    for out in (x, x[:], x.reshape(5, 2, 8)):
        with pytest.raises(gatestream.InputError, match="out"):
            gatestream.Session(model).run(x, out=out)
    np.testing.assert_array_equal(x, before)


THREADS: dict[str, Callable[[gatestream.Model, object], object]] = {
    "Session": lambda model, threads: gatestream.Session(model, threads=threads),
    "Plan.estimate": lambda model, threads: gatestream.Plan.estimate(model, threads=threads),
    "tune": lambda model, threads: gatestream.tune(model, [(1, 2)], seconds=0.1, threads=threads),
    "Network.open": lambda _, threads: gatestream.Network.open(sorted(CASES.glob("*.onnx"))[0], threads=threads),
}


@pytest.mark.parametrize("call", THREADS.values(), ids=list(THREADS))
@pytest.mark.parametrize("threads", [0, -1, 10**6, 2**63, 2**64, -HUGE, 10**9000], ids=lambda n: f"{n:e}" if n < HUGE else "huge")
def test_numbers_of_threads_that_nobody_has(model: gatestream.Model, call: Callable, threads: int) -> None:
    with pytest.raises(gatestream.InputError, match="^threads is "):
        call(model, threads)


@pytest.mark.parametrize("call", THREADS.values(), ids=list(THREADS))
@pytest.mark.parametrize("threads", [1.0, "1", [1], np.float32(1), 1j])
def test_numbers_of_threads_that_are_no_integers(model: gatestream.Model, call: Callable, threads: object) -> None:
    with pytest.raises(TypeError, match="threads"):
        call(model, threads)


def test_integers_of_numpy_are_integers(model: gatestream.Model, x: np.ndarray) -> None:
    for one in (np.int64(1), np.uint8(1), np.array(1), True):
        assert gatestream.Plan.estimate(model, one, one, threads=one).sizes == [(1, 1)]
    with gatestream.Engine(model, max_batch=np.int32(4)) as engine:
        engine.submit(x[:, 0], priority=np.uint8(255)).result()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda m: gatestream.Plan.estimate(m, 0, 1), "batch is 0"),
        (lambda m: gatestream.Plan.estimate(m, 1, -3), "steps is -3"),
        (lambda m: gatestream.tune(m, [(0, 1)]), "batch is 0"),
        (lambda m: gatestream.tune(m, [(1, 0)]), "steps is 0"),
        (lambda m: gatestream.tune(m, [(-1, 1)]), "batch is -1"),
        (lambda m: gatestream.tune(m, [(1, 2**64)]), "steps is 18446744073709551616"),
        (lambda m: gatestream.tune(m, [(1, 2)], lengths=[-1]), "length is -1"),
        (lambda m: gatestream.tune(m, [(1, 2)], lengths=[0], seconds=0.1), "lengths"),
        (lambda m: gatestream.tune(m, [(1, 2)], seconds=-1), "-1"),
        (lambda m: gatestream.tune(m, [(1, 2)], seconds=float("nan")), "NaN"),
        (lambda m: gatestream.tune(m, [(1, 2)], seconds=float("inf")), "inf"),
        (lambda m: gatestream.tune(m, [(1, 2)], seconds=1e300), "1e300|1000"),
        (lambda m: gatestream.tune(m, [(1, 2)], effort="hard"), "hard"),
        (lambda m: gatestream.Session(m, gatestream.Plan.estimate(m), threads=1), "threads"),
        (lambda m: m.in_precision("f16"), "f16"),
        (lambda m: gatestream.Engine(m, policy="fastest"), "fastest"),
        (lambda m: gatestream.Engine(m, workers="none"), "none"),
        *[
            (lambda m, name=name, value=value: gatestream.Engine(m, **{name: value}), f"{name} is {value}")
            for name in ("max_batch", "max_steps", "max_requests", "max_nodes", "max_request_nodes", "max_bytes", "max_streams")
            for value in (0, -1, 2**64)
        ],
        (lambda m: gatestream.Engine(m, max_batch=10**6), "max_batch is 1000000"),
    ],
)
def test_numbers_out_of_range_are_named(model: gatestream.Model, call: Callable, named: str) -> None:
    with pytest.raises(gatestream.InputError, match=named):
        call(model)


@pytest.mark.parametrize("priority", [-1, 256, 300, HUGE])
def test_priorities_out_of_range(model: gatestream.Model, priority: int) -> None:
    with gatestream.Engine(model) as engine:
        with pytest.raises(gatestream.InputError, match="priority is .* from 0 to 255"):
            engine.submit(np.zeros((2, 12)), priority=priority)
        stream = engine.stream()
        with pytest.raises(gatestream.InputError, match="priority is .* from 0 to 255"):
            stream.push(np.zeros(12), priority=priority)
        stream.push(np.zeros(12), priority=255).result()


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf"), 1e300])
def test_timeouts_that_no_clock_has(model: gatestream.Model, timeout: float) -> None:
    with gatestream.Engine(model) as engine:
        ticket = engine.submit(np.zeros((2, 12)))
        for call in (lambda: engine.submit(np.zeros((2, 12)), timeout=timeout), lambda: ticket.result(timeout=timeout)):
            with pytest.raises(gatestream.InputError):
                call()
        assert ticket.result().shape == (24,)


def test_refusals_name_the_keyword_that_helps(model: gatestream.Model) -> None:
    long = np.zeros((50_000, 12), np.float32)
    with gatestream.Engine(model, max_nodes=60_000) as engine:
        first = engine.submit(long)
        with pytest.raises(gatestream.OverloadedError, match="raise max_nodes of the Engine"):
            engine.submit(long)
        first.cancel()
    with gatestream.Engine(model, max_request_nodes=100) as engine:
        with pytest.raises(gatestream.OverloadedError, match="101 nodes.*raise max_request_nodes of the Engine"):
            engine.submit(long[:101])
        engine.submit(long[:100]).result()
    with gatestream.Engine(model, max_bytes=10_000) as engine, pytest.raises(gatestream.OverloadedError, match="raise max_bytes"):
        engine.submit(long)
    with gatestream.Engine(model, max_requests=1) as engine:
        first = engine.submit(long)
        with pytest.raises(gatestream.OverloadedError, match="raise max_requests of the Engine"):
            engine.submit(long)
        first.cancel()
    with gatestream.Engine(model, max_streams=1) as engine:
        stream = engine.stream()
        with pytest.raises(gatestream.OverloadedError, match="raise max_streams of the Engine"):
            engine.stream()
        stream.close()
    # As many as the keyword allows, and no more.
    with gatestream.Engine(model, max_request_nodes=300_000, max_nodes=10**6) as engine:
        engine.submit(np.zeros((260_000, 12), np.float32)).cancel()


def test_wrong_shapes_are_input_errors(model: gatestream.Model, x: np.ndarray) -> None:
    both = {f"{name}_reverse": value for name, value in weights("lstm", 12, 24).items()} | weights("lstm", 12, 24)
    with gatestream.Engine(model) as engine:
        for states in ([np.zeros(24)], [np.zeros(24)] * 3, [np.zeros(23), np.zeros(24)], [np.zeros(24), np.zeros(25)]):
            with pytest.raises(gatestream.InputError):
                engine.submit(x[:, 0], states=states)
        with pytest.raises(gatestream.InputError):
            engine.stream(np.zeros(47))
        with pytest.raises(gatestream.InputError):
            engine.stream(np.array(["a"] * 48))
        stream = engine.stream(np.zeros(48))
        for wrong in (np.zeros(11), np.zeros((1, 12)), np.zeros((12, 1)), np.zeros(13), 1.0, "x"):
            with pytest.raises(gatestream.InputError):
                stream.push(wrong)
        first = stream.push(x[0, 0]).result()
        np.testing.assert_array_equal(first, gatestream.Session(model).run(x[:1, 0]).output[0])
        with pytest.raises(gatestream.InputError):
            engine.submit(x[:, 0], outputs="some")
    with gatestream.Engine(gatestream.Model.from_state_dict(both)) as engine, pytest.raises(gatestream.InputError):
        engine.stream()
    with pytest.raises(gatestream.InputError):
        gatestream.Session(gatestream.Model.from_state_dict(both)).stream()


def test_lengths_that_are_none(model: gatestream.Model, x: np.ndarray) -> None:
    session = gatestream.Session(model)
    for lengths in ([1.5, 1, 1], [-1, 1, 1], [31, 1, 1], [1, 1], [[1, 1, 1]], "abc", [2**70, 1, 1], [None] * 3, 3, [[1], 2, 3]):
        with pytest.raises(gatestream.InputError):
            session.run(x, lengths=lengths)
    for mask in (np.array([True, False, True]), np.ones((3, len(x)), bool)):
        with pytest.raises(gatestream.InputError, match=r"lengths is a mask; give .*mask\.sum over the axis of steps"):
            session.run(x, lengths=mask)
    y = session.run(x).output
    for dtype in (np.uint8, ">i8", np.int16):
        found = session.run(x, lengths=np.array([30, 7, 0], dtype)).output
        np.testing.assert_array_equal(found[:7, :2], y[:7, :2])
        assert not found[7:, 1].any() and not found[:, 2].any()


def test_files_are_written_under_names_by_which_they_are_read(model: gatestream.Model, tmp_path: Path) -> None:
    for name in ("x.onnx", "x.pt", "x", "x.plan", "safetensors"):
        with pytest.raises(gatestream.InputError, match="safetensors"):
            model.save(tmp_path / name)
    with pytest.raises(gatestream.InputError, match=r"\.onnx"):
        gatestream.quantize(sorted(CASES.glob("*.onnx"))[0], tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())
    model.save(tmp_path / "x.SafeTensors")
    model.save(str(tmp_path / "x.safetensors"))
    assert gatestream.Model.open(tmp_path / "x.safetensors") == model
    with pytest.raises(gatestream.GatestreamError):
        model.save(tmp_path / "absent" / "x.safetensors")


def test_state_dicts_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.GRU(5, 7)
    x = torch.randn(6, 2, 5)
    with torch.no_grad():
        expected = layer(x)[0].numpy()
    for state in (dict(layer.named_parameters()), layer.state_dict()):
        model = gatestream.Model.from_state_dict(state)
        np.testing.assert_allclose(gatestream.Session(model).run(x.numpy()).output, expected, atol=1e-5)
    rounded = {name: value.bfloat16() for name, value in layer.state_dict().items()}
    same = {name: value.float() for name, value in rounded.items()}
    assert gatestream.Model.from_state_dict(rounded) == gatestream.Model.from_state_dict(same)


def test_tensors_of_pytorch_are_arrays(model: gatestream.Model, x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    session = gatestream.Session(model)
    y = session.run(x).output
    tensor = torch.from_numpy(x)
    for same in (tensor, tensor.clone().requires_grad_(), tensor.double().requires_grad_()):
        np.testing.assert_array_equal(session.run(same).output, y)
    rounded = tensor.bfloat16()
    np.testing.assert_array_equal(session.run(rounded).output, session.run(rounded.float().numpy()).output)
    assert session.run(tensor.int()).output.shape == y.shape
    for wrong in (tensor.to(torch.complex64), tensor.to_sparse(), tensor.to("meta")):
        with pytest.raises(gatestream.InputError, match="^x is no array of numbers"):
            session.run(wrong)
    path = CASES / "07_unsorted_pack_LSTM_batch_firstTrue_enforce_sortedFalse_biTrue_lastFalse_script.onnx"
    recorded = np.load(path.with_suffix(".npz"))
    given = {name[3:]: torch.from_numpy(recorded[name]) for name in recorded.files if name.startswith("in:")}
    network = gatestream.Network.open(path, threads=1)
    for name, value in network.run({**given, "X": given["X"].requires_grad_()}).items():
        np.testing.assert_allclose(value, recorded[f"out:{name}"], atol=1e-5)
    with pytest.raises(gatestream.InputError, match='^input "X" is no array'):
        network.run({**given, "X": given["X"].bfloat16()})


def test_an_engine_without_a_name_answers_its_requests(tensors: dict, model: gatestream.Model, x: np.ndarray) -> None:
    expected = lstm(tensors, x)[:, 0]
    one = np.ascontiguousarray(x[:, 0])
    ticket = gatestream.Engine(model).submit(one, outputs="each")
    gc.collect()
    np.testing.assert_allclose(ticket.result(timeout=60), expected, atol=1e-5)
    steps = gatestream.Engine(model).stream()
    tickets = [steps.push(row) for row in one]
    del steps
    gc.collect()
    np.testing.assert_allclose([ticket.result(timeout=60) for ticket in tickets], expected, atol=1e-5)

    async def main() -> np.ndarray:
        return await gatestream.Engine(model).submit(one, outputs="each")

    np.testing.assert_allclose(asyncio.run(main()), expected, atol=1e-5)


def test_a_stream_without_a_name_computes_its_steps_and_frees_its_place(model: gatestream.Model, x: np.ndarray) -> None:
    y = gatestream.Session(model).run(x).output
    with gatestream.Engine(model, max_streams=1) as engine:

        def opened() -> gatestream.Stream:
            # The place is free when the last step of the stream before has been answered.
            for _ in range(1000):
                try:
                    return engine.stream()
                except gatestream.OverloadedError:
                    time.sleep(0.01)
            raise AssertionError("the place is not freed")

        for _ in range(20):
            stream = opened()
            tickets = [stream.push(row) for row in x[:8, 0]]
            del stream
            np.testing.assert_array_equal(np.stack([ticket.result(timeout=60) for ticket in tickets]), y[:8, 0])


def test_requests_of_a_closed_engine_end_in_words(model: gatestream.Model) -> None:
    engine = gatestream.Engine(model)
    stream = engine.stream()
    ticket = engine.submit(np.zeros((200_000, 12), np.float32))
    engine.close()
    engine.close()
    with pytest.raises(gatestream.RequestError):
        ticket.result(timeout=60)
    with pytest.raises(gatestream.RequestError):
        stream.push(np.zeros(12)).result(timeout=60)
    for call in (engine.stats, engine.stream, lambda: engine.submit(np.zeros((1, 12)))):
        with pytest.raises(gatestream.RequestError):
            call()
    del stream, engine
    gc.collect()


def test_engines_and_streams_that_are_left_at_the_end_of_the_program() -> None:
    program = """
import numpy as np, gatestream
model = gatestream.Model.from_state_dict({"weight_ih_l0": np.zeros((96, 8)), "weight_hh_l0": np.zeros((96, 24))})
engine = gatestream.Engine(model)
stream = engine.stream()
left = [engine.submit(np.zeros((200_000, 8), np.float32)) for _ in range(3)] + [stream.push(np.zeros(8))]
cycle = [engine]
cycle.append(cycle)
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
