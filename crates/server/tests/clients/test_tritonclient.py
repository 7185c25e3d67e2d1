"""Triton's clients of Python, unmodified."""

from __future__ import annotations

import queue
import threading
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from conftest import FEATURES, Addresses, Lstm
from tritonclient.utils import InferenceServerException

both = pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])


def client(module: ModuleType, server: Addresses):  # type: ignore[no-untyped-def]
    return module.InferenceServerClient(server.http if module is tritonclient.http else server.grpc)


def tensor(module: ModuleType, name: str, values: np.ndarray, datatype: str = "FP32"):  # type: ignore[no-untyped-def]
    given = module.InferInput(name, values.shape, datatype)
    given.set_data_from_numpy(values)
    return given


def steps(batch: int, count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(batch, count, FEATURES)).astype(np.float32)


@both
def test_answers_are_those_of_the_formula(module: ModuleType, server: Addresses, lstm: Lstm) -> None:
    triton = client(module, server)
    assert triton.is_server_live() and triton.is_server_ready() and triton.is_model_ready("lstm")
    x = steps(3, 8)
    answer = triton.infer("lstm", [tensor(module, "input", x)], request_id="7")
    np.testing.assert_allclose(answer.as_numpy("output"), lstm.run(x), rtol=1e-5, atol=1e-6)
    lengths = np.array([[8], [2], [5]])
    given = [tensor(module, "input", x), tensor(module, "lengths", lengths, "INT64")]
    output = triton.infer("lstm", given).as_numpy("output")
    np.testing.assert_allclose(output[1, :2], lstm.run(x[1:2, :2])[0], rtol=1e-5, atol=1e-6)
    assert not output[1, 2:].any()


@both
def test_all_that_is_told(module: ModuleType, server: Addresses) -> None:
    triton = client(module, server)
    triton.get_server_metadata()
    triton.get_model_metadata("lstm", "1")
    triton.get_model_config("frames")
    triton.get_inference_statistics("lstm")
    triton.get_inference_statistics()
    triton.get_model_repository_index()


def test_json_and_compressed_bodies(server: Addresses, lstm: Lstm) -> None:
    triton = client(tritonclient.http, server)
    x = steps(1, 4)
    given = tritonclient.http.InferInput("input", x.shape, "FP32")
    given.set_data_from_numpy(x, binary_data=False)
    wanted = tritonclient.http.InferRequestedOutput("output", binary_data=False)
    for algorithm in (None, "gzip", "deflate"):
        answer = triton.infer(
            "lstm", [given], outputs=[wanted],
            request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
        )  # fmt: skip
        np.testing.assert_allclose(answer.as_numpy("output"), lstm.run(x), rtol=1e-5, atol=1e-6)


@both
@pytest.mark.parametrize("identifier", [3, "three"])
def test_sequences(module: ModuleType, server: Addresses, identifier: int | str) -> None:
    triton = client(module, server)
    x = steps(1, 6)
    whole = triton.infer("lstm", [tensor(module, "input", x)]).as_numpy("output")
    parts = [
        triton.infer(
            "frames", [tensor(module, "input", x[:, step : step + 1])],
            sequence_id=identifier, sequence_start=step == 0, sequence_end=step == 5,
        ).as_numpy("output")
        for step in range(6)
    ]  # fmt: skip
    assert (np.concatenate(parts, axis=1) == whole).all()


@both
def test_errors(module: ModuleType, server: Addresses) -> None:
    triton = client(module, server)
    with pytest.raises(InferenceServerException, match="START flag"):
        triton.infer("frames", [tensor(module, "input", steps(1, 1))], sequence_id=99)
    with pytest.raises(InferenceServerException, match="deadline"):
        triton.infer("lstm", [tensor(module, "input", steps(1, 1))], timeout=1)
    with pytest.raises(InferenceServerException, match="not loaded"):
        triton.infer("none", [tensor(module, "input", steps(1, 1))])


def test_many_at_once(server: Addresses, lstm: Lstm) -> None:
    triton = client(tritonclient.grpc, server)
    all_steps = [steps(1, 1 + index % 9) for index in range(200)]
    answers: queue.Queue = queue.Queue()
    for index, x in enumerate(all_steps):
        given = [tensor(tritonclient.grpc, "input", x)]
        triton.async_infer("lstm", given, lambda result, error, i=index: answers.put((i, result, error)))
    for _ in all_steps:
        index, result, error = answers.get(timeout=60)
        assert error is None
        expected = lstm.run(all_steps[index])
        np.testing.assert_allclose(result.as_numpy("output"), expected, rtol=1e-5, atol=1e-6)


def test_a_stream_of_symbols(server: Addresses) -> None:
    triton = client(tritonclient.grpc, server)
    parts, ended = [], threading.Event()

    def receive(result, error) -> None:  # type: ignore[no-untyped-def]
        assert error is None
        if result.get_response().parameters["triton_final_response"].bool_param:
            ended.set()
        else:
            parts.append(result.as_numpy("target")[0].decode())

    triton.start_stream(receive)
    letters = np.array(list("hippopotamus"), dtype=object)
    given = [tensor(tritonclient.grpc, "source", letters, "BYTES")]
    triton.async_stream_infer("g2p", given, enable_empty_final_response=True)
    assert ended.wait(60)
    triton.stop_stream()
    assert parts == "HH IH P AH P AA T AH M AH S".split()
