"""Soak test of the server: clients that disconnect, cancel, lie, are slow or late; panics and reloads meanwhile.

    cargo build --release --bin gatestream --features faults
    pip install numpy "tritonclient[grpc]"
    python benches/server/soak.py --minutes 30 [--record]

Every request must end once, with the answer that it has on a quiet server or with an error of the protocol. A probe
sends a small request every 50 ms: none may take a second. The memory of the server, after a warm-up of a sixth of the
time, may not grow by more than 1 MB an hour.

With --graphs, two tenants, each with a token of its own, send graphs of changing shapes meanwhile, and both number
their sequences from 1.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Awaitable, Callable

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benches"), str(ROOT / "benches" / "server")]

from report import records  # noqa: E402
from wire import FEATURES, HIDDEN, save  # noqa: E402

PROGRAM = Path(os.environ.get("GATESTREAM", ROOT / "target" / "release" / "gatestream"))
STEPS = 12
HEADERS = {"authorization": "Bearer all"}
MODEL = "small"
# The graph of `--graphs`: both axes before the features have any size.
GRAPH = ROOT / "crates" / "network" / "tests" / "cases" / "05_manual_bidirectional_t_dense_behind_dynamo.onnx"
GRAPH_FEATURES = 4
LONGEST = 60
# Tokens of all clients, and of the tenants with the models that they may use.
TOKENS = {"all": "", "tenant-a": " graph,frames", "tenant-b": " graph,frames"}
# A good client's request may end so beside its answer: a batch of it panicked, and with it its sequence.
EXPECTED = re.compile(r"a fault of the soak test|sequence \d+ (is not open|has ended)")


class Failure(Exception):
    """The server did what it must not do."""


class Soak:
    """The clients, and what they have seen."""

    def __init__(self, http: str, rpc: str, graphs: bool) -> None:
        host, port = http.split(":")
        self.http, self.rpc = (host, int(port)), rpc
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0
        self.random = random.Random(1)
        values = np.random.default_rng(1)
        self.x = values.normal(size=(1, STEPS, FEATURES[MODEL])).astype(np.float32)
        self.expected = np.zeros(0)
        # The tenants have the same numbers.
        self.sequences = 0
        self.rounds = itertools.count()
        self.graphs = graphs
        self.graph_x = values.normal(size=(1, LONGEST, GRAPH_FEATURES)).astype(np.float32)
        self.graph_expected: dict[int, bytes] = {}

    # Clients that behave.

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.http)

    def body(self, x: np.ndarray, name: str = "input", **parameters: Any) -> tuple[bytes, int]:
        data = x.tobytes()
        tensor = {"name": name, "datatype": "FP32", "shape": x.shape, "parameters": {"binary_data_size": len(data)}}
        head = {"inputs": [tensor], "parameters": {"binary_data_output": True, **parameters}}
        text = json.dumps(head).encode()
        return text + data, len(text)

    def request(self, x: np.ndarray, model: str = MODEL, token: str = "all", **parameters: Any) -> bytes:
        body, length = self.body(x, **parameters)
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += f"authorization: Bearer {token}\r\n"
        return f"{head}inference-header-content-length: {length}\r\n\r\n".encode() + body

    async def response(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, Any], bytes]:
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode().lower()
        status = int(head.split(" ", 2)[1])
        length = int(re.findall(r"content-length: (\d+)", head)[-1])
        body = await asyncio.wait_for(reader.readexactly(length), 30)
        found = re.findall(r"inference-header-content-length: (\d+)", head)
        text = body[: int(found[0])] if found else body
        return status, json.loads(text or b"{}"), body[len(text) :]

    def check(self, status: int, message: dict[str, Any], data: bytes, expected: np.ndarray, allowed: set[int]) -> bool:
        """Whether the answer is right; an error must be of the protocol."""
        if status == 200:
            offset = sum(
                int(np.prod(output["shape"])) * 4
                for output in message["outputs"][: [o["name"] for o in message["outputs"]].index("output")]
            )
            found = np.frombuffer(data[offset : offset + 4 * expected.size], np.float32)
            if not np.array_equal(found, expected.ravel()):
                raise Failure("an answer differs from that of the quiet server")
            return True
        if status not in allowed and not EXPECTED.search(message.get("error", "")):
            raise Failure(f"status {status}: {message}")
        return False

    async def well(self) -> None:
        reader, writer = await self.connection()
        try:
            for _ in range(50):
                steps = self.random.randint(1, STEPS)
                writer.write(self.request(self.x[:, :steps]))
                answer = await self.response(reader)
                ended = self.check(*answer, self.expected[:, :steps], set())
                self.counts["http answered" if ended else "http refused"] += 1
        finally:
            writer.close()

    async def late(self) -> None:
        reader, writer = await self.connection()
        try:
            for _ in range(50):
                writer.write(self.request(self.x, timeout=self.random.randint(1, 2000)))
                ended = self.check(*(await self.response(reader)), self.expected, {504})
                self.counts["late answered" if ended else "late refused"] += 1
        finally:
            writer.close()

    async def grpc_well(self) -> None:
        async with triton.InferenceServerClient(self.rpc) as client:
            for _ in range(50):
                try:
                    timeout = self.random.choice([None, None, None, 0.0005])
                    result = await client.infer(MODEL, [self.tensor(self.x)], client_timeout=timeout, headers=HEADERS)
                    if not np.array_equal(result.as_numpy("output"), self.expected):
                        raise Failure("an answer over gRPC differs from that of the quiet server")
                    self.counts["grpc answered"] += 1
                except InferenceServerException as why:
                    if "deadline" not in str(why).lower() and not EXPECTED.search(str(why)):
                        raise Failure(f"gRPC: {why}") from why
                    self.counts["grpc refused"] += 1

    async def grpc_cancels(self) -> None:
        async with triton.InferenceServerClient(self.rpc) as client:
            for _ in range(20):
                call = asyncio.ensure_future(client.infer(MODEL, [self.tensor(self.x)], headers=HEADERS))
                await asyncio.sleep(self.random.random() * 0.002)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                self.counts["grpc cancelled"] += 1

    def tensor(self, x: np.ndarray) -> triton.InferInput:
        tensor = triton.InferInput("input", list(x.shape), "FP32")
        tensor.set_data_from_numpy(np.ascontiguousarray(x))
        return tensor

    async def sequence(self) -> None:
        """Step by step; a third of them stops without an end, some of these with an open request."""
        self.sequences += 1
        sequence, fate = self.sequences, self.random.random()
        reader, writer = await self.connection()
        try:
            for at in range(STEPS):
                step = self.x[:, at : at + 1]
                options = {"sequence_id": sequence, "sequence_start": at == 0, "sequence_end": at == STEPS - 1}
                writer.write(self.request(step, model="frames", **options))
                if fate < 0.15 and at == 7:
                    self.counts["sequence left within a step"] += 1
                    return
                answer = await self.response(reader)
                # A batch of it may panic, which ends it.
                if not self.check(*answer, self.expected[:, at : at + 1], set()):
                    self.counts["sequence ended by a fault"] += 1
                    return
                if fate > 0.85 and at == 5:
                    self.counts["sequence left"] += 1
                    return
                await asyncio.sleep(0.02)
            self.counts["sequence ended"] += 1
        finally:
            writer.close()

    async def stream(self) -> None:
        """A stream of gRPC with several sequences, left open at the end now and then."""
        self.sequences += 1
        first, fate = self.sequences * 1000, self.random.random()

        async def requests() -> Any:
            for at in range(STEPS):
                for sequence in range(first, first + 5):
                    yield {
                        "model_name": "frames",
                        "inputs": [self.tensor(self.x[:, at : at + 1])],
                        "request_id": f"{sequence}.{at}",
                        "sequence_id": sequence,
                        "sequence_start": at == 0,
                        "sequence_end": at == STEPS - 1,
                    }
                await asyncio.sleep(0.02)

        async with triton.InferenceServerClient(self.rpc) as client:
            seen: set[str] = set()
            left = 5 * STEPS
            async for result, error in client.stream_infer(requests(), headers=HEADERS):
                left -= 1
                if error is not None:
                    if not EXPECTED.search(str(error)):
                        raise Failure(f"stream: {error}")
                    self.counts["stream step refused"] += 1
                else:
                    identity = result.get_response().id
                    if identity in seen:
                        raise Failure(f"{identity} was answered twice")
                    seen.add(identity)
                    at = int(identity.split(".")[1])
                    if not np.array_equal(result.as_numpy("output"), self.expected[:, at : at + 1]):
                        raise Failure("an answer of a stream differs from that of the quiet server")
                    self.counts["stream step answered"] += 1
                if fate < 0.3 and left < 20:
                    self.counts["stream left"] += 1
                    return
                if not left:
                    break

    async def graph(self, length: int, token: str) -> bytes:
        reader, writer = await self.connection()
        try:
            writer.write(self.request(self.graph_x[:, :length], "graph", token, name="X"))
            status, message, data = await self.response(reader)
            if status != 200:
                raise Failure(f"graph of length {length}: {status} {message}")
            return data
        finally:
            writer.close()

    async def graph_shapes(self, token: str) -> None:
        """Another length each time, so that the plans of one tenant are not those of the other."""
        for _ in range(50):
            length = self.random.randint(1, LONGEST)
            if await self.graph(length, token) != self.graph_expected[length]:
                raise Failure(f"the graph's answer of length {length} differs from that of the quiet server")
            self.counts["graph answered"] += 1

    async def tenant_sequence(self, token: str, sequence: int) -> None:
        """Steps of a sequence whose number the other tenant has at the same time."""
        reader, writer = await self.connection()
        try:
            for at in range(STEPS):
                step = self.x[:, at : at + 1]
                options = {"sequence_id": sequence, "sequence_start": at == 0, "sequence_end": at == STEPS - 1}
                writer.write(self.request(step, "frames", token, **options))
                answer = await self.response(reader)
                if not self.check(*answer, self.expected[:, at : at + 1], set()):
                    self.counts["tenant's sequence refused"] += 1
                    return
                await asyncio.sleep(0.01)
            self.counts["tenant's sequence ended"] += 1
        finally:
            writer.close()

    async def tenant_a(self) -> None:
        await self.graph_shapes("tenant-a")

    async def tenant_b(self) -> None:
        await self.graph_shapes("tenant-b")

    async def sequences_of_tenants(self) -> None:
        first = 1 + 5 * next(self.rounds)
        numbers = range(first, first + 5)
        both = [self.tenant_sequence(token, number) for number in numbers for token in ("tenant-a", "tenant-b")]
        await asyncio.gather(*both)

    # Clients that do not.

    async def disconnects(self) -> None:
        for _ in range(20):
            _, writer = await self.connection()
            message = self.request(self.x)
            writer.write(message[: self.random.randint(1, len(message))])
            await asyncio.sleep(self.random.random() * 0.003)
            writer.transport.abort()
            self.counts["disconnected"] += 1

    async def slow(self) -> None:
        """Sends a byte now and then."""
        reader, writer = await self.connection()
        message = self.request(self.x)
        sent = self.random.choice([0, len(message) - 8])
        writer.write(message[:sent])
        try:
            for at in range(sent, len(message)):
                writer.write(message[at : at + 1])
                await asyncio.sleep(0.5 if at < len(message) - 8 else 0.1)
                if reader.at_eof() or writer.is_closing():
                    break
            await asyncio.wait_for(reader.read(10), 5)
            self.counts["slow"] += 1
        except (ConnectionError, asyncio.TimeoutError):
            self.counts["slow, cut off"] += 1
        finally:
            writer.transport.abort()

    async def lies(self) -> None:
        body, length = self.body(self.x)
        choices = [
            (len(body) + 100, length, body),  # and then closes
            (len(body), len(body) + 5, body),
            (len(body), length - 3, body),
            (len(body) - 50, length, body[:-50]),
            (10, 10, os.urandom(10)),
            (1 << 40, length, body),
        ]
        for _ in range(20):
            said, head, data = self.random.choice(choices)
            reader, writer = await self.connection()
            text = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {said}\r\n"
            text += "authorization: Bearer all\r\n"
            writer.write(f"{text}inference-header-content-length: {head}\r\n\r\n".encode() + data)
            if said > len(data):
                writer.write_eof()
            try:
                status, message, _ = await self.response(reader)
                if status == 200 or status >= 500 or "error" not in message:
                    raise Failure(f"a lie was answered with {status}: {message}")
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.transport.abort()
            self.counts["lied"] += 1

    async def garbage(self) -> None:
        host, port = self.rpc.split(":")
        for _ in range(20):
            for address in (self.http, (host, int(port))):
                _, writer = await asyncio.open_connection(*address)
                preface = self.random.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n"])
                writer.write(preface + os.urandom(self.random.randint(1, 4000)))
                await asyncio.sleep(self.random.random() * 0.01)
                writer.transport.abort()
            self.counts["garbage"] += 1
        async with grpc.aio.insecure_channel(self.rpc) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(20):
                try:
                    await call(os.urandom(self.random.randint(0, 300)), timeout=30, metadata=list(HEADERS.items()))
                    raise Failure("garbage was answered")
                except grpc.aio.AioRpcError as why:
                    if why.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED):
                        raise Failure(f"garbage: {why.code()}") from why
                self.counts["garbage protobuf"] += 1

    # What happens meanwhile.

    async def reloads(self) -> None:
        await asyncio.sleep(self.random.random() * 4)
        verb, model = self.random.choice([("load", MODEL), ("load", "frames"), ("unload", "spare"), ("load", "spare")])
        status, message, _ = await self.get("POST", f"/v2/repository/models/{model}/{verb}")
        if status != 200 and "is not loaded" not in message.get("error", ""):
            raise Failure(f"{verb} {model}: {status} {message}")
        self.counts["reloaded"] += 1

    async def get(self, method: str, path: str) -> tuple[int, dict[str, Any], bytes]:
        reader, writer = await self.connection()
        try:
            head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer all\r\n"
            writer.write(f"{head}content-length: 0\r\n\r\n".encode())
            return await self.response(reader)
        finally:
            writer.close()

    async def probe(self) -> None:
        reader, writer = await self.connection()
        try:
            for _ in range(100):
                begun = time.perf_counter()
                writer.write(self.request(self.x[:, :1]))
                self.check(*(await self.response(reader)), self.expected[:, :1], set())
                self.slowest = max(self.slowest, time.perf_counter() - begun)
                self.counts["probe"] += 1
                await asyncio.sleep(0.05)
        finally:
            writer.close()

    async def forever(self, what: Callable[[], Awaitable[None]], end: float) -> None:
        while time.monotonic() < end:
            try:
                await what()
            except Failure:
                raise
            except (ConnectionError, asyncio.IncompleteReadError) as why:
                raise Failure(f"{what.__name__}: the server closed a good connection: {why!r}") from why

    async def run(self, minutes: float) -> None:
        answer = await self.get("GET", f"/v2/models/{MODEL}/ready")
        assert answer[0] == 200, answer
        reader, writer = await self.connection()
        for _ in range(20):
            writer.write(self.request(self.x))
            status, message, data = await self.response(reader)
            if status == 200:
                break
        sizes = {output["name"]: int(np.prod(output["shape"])) for output in message["outputs"]}
        assert next(iter(sizes)) == "output", sizes
        self.expected = np.frombuffer(data[: 4 * sizes["output"]], np.float32).reshape(1, STEPS, -1)
        writer.close()
        clients = [self.well, self.well, self.late, self.grpc_well, self.grpc_cancels, self.disconnects, self.lies]
        clients += [self.garbage, self.reloads, self.probe] + 4 * [self.stream] + 20 * [self.sequence] + 4 * [self.slow]
        if self.graphs:
            self.graph_expected = {at: await self.graph(at, "tenant-a") for at in range(1, LONGEST + 1)}
            clients += 2 * [self.tenant_a, self.tenant_b] + [self.sequences_of_tenants]
        end = time.monotonic() + 60 * minutes
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(self.forever(client, end))


def resident(process: int) -> float:
    """Resident memory in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) / 1e3


async def watch(process: int, samples: list[tuple[float, float]]) -> None:
    begun = time.monotonic()
    while True:
        samples.append((time.monotonic() - begun, resident(process)))
        await asyncio.sleep(1)


def slope(samples: list[tuple[float, float]]) -> float:
    """MB an hour, by the line with the least squares."""
    seconds, memory = np.array(samples).T
    return float(np.polyfit(seconds, memory, 1)[0] * 3600)


def metrics(http: str, name: str) -> float:
    asked = urllib.request.Request(f"http://{http}/metrics", headers=HEADERS)
    text = urllib.request.urlopen(asked).read().decode()
    values = re.findall(rf"^gatestream_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values))


async def soaked(
    http: str, rpc: str, process: int, options: argparse.Namespace
) -> tuple[Soak, list[tuple[float, float]]]:
    soak = Soak(http, rpc, options.graphs)
    samples: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch(process, samples))
    await soak.run(options.minutes)
    watching.cancel()
    return soak, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--graphs", action="store_true", help="two tenants send graphs of changing shapes, too")
    parser.add_argument("--record", action="store_true", help="write benches/record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in (MODEL, "frames", "spare"):
            save(Path(folder) / name / "1" / "model.safetensors", FEATURES[MODEL], HIDDEN[MODEL])
        (Path(folder) / "frames" / "config.toml").write_text("[sequences]\nidle_seconds = 3\n")
        if arguments.graphs:
            (Path(folder) / "graph" / "1").mkdir(parents=True)
            shutil.copy(GRAPH, Path(folder) / "graph" / "1" / "model.onnx")
            # Room for some of the lengths.
            (Path(folder) / "graph" / "config.toml").write_text("plan_bytes = 100000\n")
        tokens = Path(folder) / ".tokens"
        tokens.write_text("".join(f"{token}{models}\n" for token, models in TOKENS.items()))
        command = [str(PROGRAM), "serve", folder, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model-control"]
        command += ["--tokens", str(tokens)]
        log = open("/tmp/soak.log", "w") if os.environ.get("SOAK_LOG") else subprocess.DEVNULL
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            for line in server.stdout:
                if line.startswith("http://"):
                    break
            http, rpc = line.strip().removeprefix("http://").rstrip(")").split(" (gRPC ")
            soak, samples = asyncio.run(soaked(http, rpc, server.pid, arguments))
            # Sequences that were left end after a while.
            time.sleep(8)
            left = {name: metrics(http, name) for name in ("unanswered_requests", "open_sequences", "ready_rows")}
            evicted = metrics(http, "evicted_plans_total")
            server.send_signal(signal.SIGTERM)
            ended = server.wait(60)
        finally:
            server.kill()
    for name, count in sorted(soak.counts.items()):
        print(f"{name:<30} {count:>10}")
    warm = [sample for sample in samples if sample[0] >= 10 * arguments.minutes]
    growth = slope(warm)
    memory = [sample[1] for sample in warm]
    print(f"slowest probe {soak.slowest:.3f} s; memory {min(memory):.1f} to {max(memory):.1f} MB, {growth:+.2f} MB/h")
    print(f"left: {left}; exit status {ended}")
    if any(left.values()) or ended or soak.slowest > 1:
        raise SystemExit("the server did what it must not do")
    if arguments.graphs and not evicted:
        raise SystemExit("no plan of the graph was given up for another")
    if arguments.record:
        row = {
            "minutes": arguments.minutes,
            "requests": sum(soak.counts.values()),
            "slowest_probe_s": round(soak.slowest, 4),
            "least_mb": round(min(memory), 2),
            "most_mb": round(max(memory), 2),
            "slope_mb_per_hour": round(growth, 3),
            **{name.replace(",", "").replace(" ", "_"): count for name, count in sorted(soak.counts.items())},
        }
        graphs = " --graphs" if arguments.graphs else ""
        stamp = records.stamp(f"benches/server/soak.py --minutes {arguments.minutes:g}{graphs}")
        records.write(records.folder() / "soak.csv", stamp, [row])


if __name__ == "__main__":
    try:
        main()
    except* Failure as failures:
        traceback.print_exc()
        raise SystemExit("; ".join(str(failure) for failure in failures.exceptions)) from None
