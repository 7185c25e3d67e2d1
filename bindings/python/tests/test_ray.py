"""The Ray Serve application, on a local cluster of several nodes, against sessions in this process."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Iterator

import numpy as np
import pytest

import gatestream
from conftest import weights

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")

import gatestream.ray  # noqa: E402
from gatestream.ray import SequenceError  # noqa: E402
from gatestream.ray import _protocol  # noqa: E402
from gatestream.ray._cores import Cores  # noqa: E402
from gatestream.ray._scaling import ByLoad  # noqa: E402
from gatestream.ray._states import Saved, States  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

FEATURES = 12
PORT = 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    global PORT
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        PORT = free.getsockname()[1]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes(timeout=120)
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": PORT})
    yield cluster
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


def a_model(seed: int = 0) -> gatestream.Model:
    return gatestream.Model.from_state_dict(weights("lstm", FEATURES, 24, seed))


def expected(model: gatestream.Model, x: np.ndarray) -> np.ndarray:
    return gatestream.Session(model).run(x[:, None]).output[:, 0]


def inputs(steps: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, FEATURES)).astype(np.float32)


def deployed(model: gatestream.Model, **options: Any) -> Any:
    """Runs an application of one model, or updates it; its handle."""
    # A quarter of a core: several replicas share the two cores of a test machine.
    options = {"num_replicas": 2, "num_cpus": 0.25, "engine": {"workers": "one-over-all"}, **options}
    serve.run(gatestream.ray.application({"m": model}, **options), name="test")
    return serve.get_deployment_handle("m", "test")


def post(body: bytes, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    connection.request("POST", "/v2/models/m/infer", body, headers or {})
    response = connection.getresponse()
    data = response.read()
    length = int(response.headers.get(_protocol.HEADER_LENGTH, len(data)))
    return response.status, json.loads(data[:length]), data[length:]


def infer(x: np.ndarray, **parameters: Any) -> tuple[int, Any]:
    """A request in JSON over HTTP: its status, and the output or the error."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, *x.shape], "data": x.ravel().tolist()}
    status, message, _ = post(json.dumps({"inputs": [tensor], "parameters": parameters}).encode())
    if status != 200:
        return status, message.get("error", message)
    output = message["outputs"][0]
    return status, np.asarray(output["data"], np.float32).reshape(output["shape"])[0]


def test_answers_are_those_of_a_session(cluster: Cluster) -> None:
    model = a_model()
    handle = deployed(model)
    sequences = [inputs(steps, steps) for steps in (1, 5, 40, 17)]
    pending = [handle.infer.remote(x) for x in sequences]
    for x, response in zip(sequences, pending):
        np.testing.assert_array_equal(response.result(), expected(model, x))
        status, output = infer(x)
        assert status == 200
        np.testing.assert_array_equal(output, expected(model, x))

    x = inputs(6)
    head = {
        "id": "7",
        "inputs": [
            {
                "name": "input",
                "datatype": "FP32",
                "shape": [2, 3, FEATURES],
                "parameters": {"binary_data_size": x.nbytes},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(head).encode()
    status, message, data = post(text + x.tobytes(), {_protocol.HEADER_LENGTH: str(len(text))})
    assert (status, message["id"], message["outputs"][0]["shape"]) == (200, "7", [2, 3, 24])
    both = np.concatenate([expected(model, x[:3]), expected(model, x[3:])])
    np.testing.assert_array_equal(np.frombuffer(data, np.float32).reshape(6, 24), both)


@serve.deployment
class Caller:
    """A deployment that sends several requests while it answers one."""

    def __init__(self, model: Any) -> None:
        self._model = model

    async def __call__(self, sequences: list[np.ndarray]) -> list[np.ndarray]:
        return list(await asyncio.gather(*[self._model.infer.remote(x) for x in sequences]))


def test_other_deployments_send_several_requests_at_once(cluster: Cluster) -> None:
    model = a_model()
    handle = deployed(model)
    caller = serve.run(Caller.options(ray_actor_options={"num_cpus": 0}).bind(handle), name="caller", route_prefix=None)
    sequences = [inputs(steps, steps) for steps in range(1, 17)]
    for _ in range(20):
        for x, output in zip(sequences, caller.remote(sequences).result(timeout_s=60)):
            np.testing.assert_array_equal(output, expected(model, x))
    serve.delete("caller")


def test_sequences_go_on_over_the_wire_and_refusals_are_typed(cluster: Cluster) -> None:
    model = a_model()
    handle = deployed(model)
    x = inputs(9)
    outputs = []
    for at, part in enumerate(np.split(x, [2, 3, 7])):
        status, output = infer(part, sequence_id=5, sequence_start=at == 0, sequence_end=at == 3)
        assert status == 200, output
        outputs.append(output)
    np.testing.assert_array_equal(np.concatenate(outputs), expected(model, x))

    status, why = infer(x, sequence_id=5)
    assert (status, "it was ended" in why) == (400, True), why
    assert infer(x, sequence_id="six", sequence_start=True)[0] == 200
    status, why = infer(x, sequence_id="six", sequence_start=True)
    assert (status, "9 steps" in why) == (409, True), why
    # Nothing is lost by it.
    np.testing.assert_array_equal(infer(x, sequence_id="six")[1], expected(model, np.concatenate([x, x]))[9:])
    assert infer(x[:, :5])[0] == 400
    assert infer(x, timeout=1)[0] == 504
    assert post(b"no JSON")[0] == 400
    with pytest.raises(gatestream.InputError, match="12"):
        handle.infer.remote(x[:, :5]).result()
    with pytest.raises(SequenceError, match="not started"):
        handle.options(session_id="none").step.remote(x, "none").result()


def replicas() -> list[str]:
    """The names of the actors that run the model."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(actor["name"] for actor in actors if "#test#m#" in actor["name"])


def stepped(x: np.ndarray, sequence: int, pause: float) -> np.ndarray:
    """Sends the steps one by one, as a caller who speaks."""
    outputs = []
    for at, row in enumerate(x):
        status, output = infer(row[None], sequence_id=sequence, sequence_start=at == 0, sequence_end=at == len(x) - 1)
        assert status == 200, output
        outputs.append(output)
        time.sleep(pause)
    return np.concatenate(outputs)


def test_sequences_survive_the_death_of_replicas_and_nodes(cluster: Cluster) -> None:
    model = a_model()
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes(timeout=120)
    deployed(model, num_replicas=6, num_cpus=1)
    with ThreadPoolExecutor(16) as callers:
        sequences = [inputs(60, seed) for seed in range(16)]
        pending = [callers.submit(stepped, x, 100 + number, 0.15) for number, x in enumerate(sequences)]
        # Replicas die without a word, then a node with all that runs on it, while requests are under way.
        for name in replicas()[:2]:
            time.sleep(2)
            ray.kill(ray.get_actor(name, namespace="serve"), no_restart=True)
        time.sleep(2)
        cluster.remove_node(node, allow_graceful=False)
        for x, outputs in zip(sequences, pending):
            np.testing.assert_array_equal(outputs.result(), expected(model, x))


def test_a_rolling_update_keeps_sequences_of_the_same_weights(cluster: Cluster) -> None:
    model = a_model()
    deployed(model)
    before = replicas()
    with ThreadPoolExecutor(4) as callers:
        sequences = [inputs(100, seed) for seed in range(4)]
        pending = [callers.submit(stepped, x, 200 + number, 0.05) for number, x in enumerate(sequences)]
        # Other options: each replica is replaced. Steps go on meanwhile.
        deployed(model, engine={"workers": "one-over-all", "max_batch": 7})
        for x, outputs in zip(sequences, pending):
            np.testing.assert_array_equal(outputs.result(), expected(model, x))
    assert not set(before) & set(replicas())

    x = inputs(9)
    assert infer(x, sequence_id=1, sequence_start=True)[0] == 200
    deployed(a_model(seed=1))
    status, why = infer(x, sequence_id=1)
    assert (status, "its model was replaced" in why) == (400, True), why
    np.testing.assert_array_equal(infer(x)[1], expected(a_model(seed=1), x))


def test_replicas_are_added_under_load(cluster: Cluster) -> None:
    model = gatestream.Model.from_state_dict(weights("lstm", FEATURES, 256))
    scaling = gatestream.ray.autoscaling(
        max_replicas=2, target_load=0.2, upscale_delay_s=1, look_back_period_s=2, metrics_interval_s=0.5
    )
    handle = deployed(model, num_replicas=scaling)
    x = inputs(400)
    deadline = time.monotonic() + 60
    pending = []
    while time.monotonic() < deadline:
        pending = [handle.infer.remote(x) for _ in range(16)]
        [response.result() for response in pending]
        if serve.status().applications["test"].deployments["m"].replica_states.get("RUNNING") == 2:
            return
    pytest.fail("no second replica in 60 s")


def saved(steps: int, request: str = "r", weights: str = "w") -> Saved:
    return Saved(weights, steps, np.zeros(2, np.float32), request, np.zeros((1, 1), np.float32))


def test_a_state_is_written_once_and_only_after_its_predecessor() -> None:
    clock = SimpleNamespace(now=0.0)
    states = States(limit=2, idle_seconds=10, clock=lambda: clock.now)
    with pytest.raises(SequenceError, match="not started"):
        states.read("a", "w")
    states.start("a", saved(1, "first"))
    states.start("a", saved(1, "first"))  # the same request, after the death of its replica
    with pytest.raises(SequenceError, match="is open") as error:
        states.start("a", saved(1, "second"))
    assert error.value.steps == 1
    assert states.write("a", "first", saved(2, "next")) and not states.write("a", "first", saved(2))
    assert states.read("a", "w").steps == 2

    states.start("b", saved(1))
    with pytest.raises(gatestream.OverloadedError):
        states.start("c", saved(1))
    clock.now = 9
    states.write("a", "next", saved(3, "last"))
    clock.now = 11
    assert states.count() == 1
    with pytest.raises(SequenceError, match="no request came for 10 s"):
        states.read("b", "w")
    assert not states.end("a", "next", "w") and states.end("a", "last", "w")
    with pytest.raises(SequenceError, match="it was ended"):
        states.write("a", "last", saved(4))
    states.start("a", saved(1))
    with pytest.raises(SequenceError, match="its model was replaced"):
        states.read("a", "other weights")


def test_the_policy_aims_at_the_load() -> None:
    def wanted(current: int, *loads: float) -> float:
        metrics = {"load": {number: load for number, load in enumerate(loads)}}
        context = SimpleNamespace(aggregated_metrics=metrics, current_num_replicas=current, target_num_replicas=current)
        return ByLoad(target_load=0.5)(context)[0]

    assert wanted(2, 0.5, 0.5) == 2 and wanted(2, 1.0, 2.0) == 6 and wanted(4, 0.1, 0.1, 0.1, 0.1) < 1
    assert wanted(3) == 3
    with pytest.raises(ValueError, match="target_load"):
        gatestream.ray.autoscaling(target_load=0)


def test_replicas_of_a_machine_share_no_core(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    allowed = sorted(os.sched_getaffinity(0))
    taken = Cores(1)
    assert taken.numbers == allowed[:1]
    with taken.only():
        assert os.sched_getaffinity(0) == set(allowed[:1])
    assert os.sched_getaffinity(0) == set(allowed)
    assert Cores(len(allowed)).numbers == []
    child = os.fork()
    if not child:
        os._exit(0 if Cores(1).numbers == allowed[1:2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del taken
    gc.collect()
    assert Cores(len(allowed)).numbers == allowed


def test_applications_that_cannot_be_are_refused() -> None:
    with pytest.raises(gatestream.InputError, match="no models"):
        gatestream.ray.application({})
    with pytest.raises(gatestream.InputError, match="ingress"):
        gatestream.ray.application({"ingress": a_model()})


def test_bodies_that_are_not_of_the_protocol_are_refused() -> None:
    def tensor(**changes: Any) -> bytes:
        good = {"name": "input", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        return json.dumps({"inputs": [{**good, **changes}]}).encode()

    assert _protocol.read(tensor(), None).input.tolist() == [[1, 2]]
    for body in (b"", b"[]", b"\xff", b"[" * 100_000, b"{}", json.dumps({"inputs": [1]}).encode()):
        with pytest.raises(gatestream.InputError):
            _protocol.read(body, None)
    for changes in (
        {"name": "x"},
        {"datatype": "FP64"},
        {"shape": [1, 3]},
        {"shape": [-1, -2]},
        {"shape": [True, 2]},
        {"shape": 2},
        {"data": ["a", "b"]},
        {"data": None},
        {"parameters": 1},
        {"parameters": {"binary_data_size": 8}},
    ):
        with pytest.raises(gatestream.InputError):
            _protocol.read(tensor(**changes), None)
    for length in ("-1", "x", "0", "1000"):
        with pytest.raises(gatestream.InputError, match="inference-header"):
            _protocol.read(tensor(), length)
