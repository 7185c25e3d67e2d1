"""The server over the wire: one client, many clients, and streams of 20 ms frames; beside the engine in one process.

    python benches/server/wire.py [--record]

Needs NumPy and `cargo build --release --bin gatestream`. Client and server share the machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benches")]

from report import records  # noqa: E402

PROGRAM = ROOT / "target" / "release" / "gatestream"
FEATURES = {"small": 100, "tiny": 16}
HIDDEN = {"small": 64, "tiny": 32}


def save(path: Path, features: int, hidden: int) -> None:
    """A safetensors file of an LSTM with random weights."""
    random = np.random.default_rng(1)
    shapes = {
        "weight_ih_l0": (4 * hidden, features),
        "weight_hh_l0": (4 * hidden, hidden),
        "bias_ih_l0": (4 * hidden,),
        "bias_hh_l0": (4 * hidden,),
    }
    header, data = {}, b""
    for name, shape in shapes.items():
        raw = random.uniform(-0.1, 0.1, shape).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@contextmanager
def busy_core() -> Iterator[None]:
    """Another program that takes all it can get of one core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()


def load(*options: str) -> dict:
    """The row of `gatestream load`."""
    command = [str(PROGRAM), "load", "lstm", *options, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.strip().splitlines()[-1])


def blocking(address: str, seconds: float) -> list[float]:
    """Milliseconds of requests of 1,000 floats, by one thread on one connection."""
    x = np.zeros(1000, "<f4").tobytes()
    given = {"name": "input", "datatype": "FP32", "shape": [1, 10, 100], "parameters": {"binary_data_size": len(x)}}
    text = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/small/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text) + len(x)}\r\n"
        f"inference-header-content-length: {len(text)}\r\n\r\n"
    )
    request = head.encode() + text + x
    host, port = address.split(":")
    times, end = [], time.perf_counter() + seconds
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.perf_counter() < end:
            begun = time.perf_counter()
            connection.sendall(request)
            answer = connection.recv(1 << 16)
            head_end = answer.index(b"\r\n\r\n")
            headers = answer[:head_end].lower()
            length = int(headers.split(b"content-length: ")[-1].split(b"\r\n")[0])
            while len(answer) < head_end + 4 + length:
                answer += connection.recv(1 << 16)
            times.append(1e3 * (time.perf_counter() - begun))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="R")
    parser.add_argument("--seconds", type=float, default=3, metavar="S")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    found: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}

    def add(case: str, client: str, row: dict) -> None:
        latency = row["latency_ms"]
        assert not any(row["errors"].values()), row
        figures = (row["throughput"], latency["p50"], latency["p99"], latency["p999"])
        found.setdefault((case, client), []).append(figures)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for model, features in FEATURES.items():
            save(folder / "models" / model / "1" / "model.safetensors", features, HIDDEN[model])
        # The sequences of a run must not count in the next one.
        (folder / "models" / "tiny" / "config.toml").write_text("[sequences]\nidle_seconds = 1\n")
        paced = folder / "paced.txt"
        # A frame of one of 200 streams every 0.1 ms: one of each in 20 ms.
        paced.write_text("".join(f"{at / 10_000}\n" for at in range(int(10_000 * (given.seconds + 3)))))
        any_port = "127.0.0.1:0"
        command = [str(PROGRAM), "serve", str(folder / "models"), "--http", any_port, "--grpc", any_port]
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("http://"))
        http, grpc = line.strip().removeprefix("http://").rstrip(")").split(" (gRPC ")
        seconds = ["--seconds", str(given.seconds), "--warm-up", "1"]
        for _ in range(given.rounds):
            shape = ["--input", "100", "--hidden", "64", "--policies", "cellular", "--workers", "2"]
            add("one client, 1000 floats", "engine in process", load(*shape, "--lengths", "10", "--closed", "1", *seconds))
            times = blocking(http, given.seconds)
            found.setdefault(("one client, 1000 floats", "http, blocking"), []).append(
                (len(times) / given.seconds, *np.percentile(times, [50, 99, 99.9]))
            )
            clients = {
                "http": ["--server", f"http://{http}"],
                "grpc": ["--server", f"grpc://{grpc}"],
                "grpc, streaming": ["--server", f"grpc://{grpc}", "--streaming"],
            }
            frames = ["--model", "tiny", "--lengths", "1", "--sequences", "200", "--trace", str(paced), *seconds]
            for name, client in clients.items():
                if "--streaming" not in client:
                    one = ["--model", "small", "--lengths", "10", "--closed", "1"]
                    add("one client, 1000 floats", name, load(*client, *one, *seconds))
                    many = ["--model", "tiny", "--lengths", "1", "--closed", "32"]
                    add("32 clients, 16 floats", name, load(*client, *many, *seconds))
                add("200 streams of 20 ms", name, load(*client, *frames))
            # Over HTTP 1, where each step in flight has a connection, the connections overflow there.
            del clients["http"]
            with busy_core():
                for name, client in clients.items():
                    add("200 streams of 20 ms, beside a busy core", name, load(*client, *frames))
    rows = []
    for (case, client), rounds in found.items():
        rate, p50, p99, p999 = (statistics.median(values) for values in zip(*rounds))
        rows.append({
            "case": case, "client": client, "rounds": str(len(rounds)), "requests_s": f"{rate:.0f}",
            "p50_ms": f"{p50:.3f}", "p99_ms": f"{p99:.3f}", "p999_ms": f"{p999:.3f}",
        })  # fmt: skip
        print(*rows[-1].values(), sep="  ", flush=True)
    if given.record:
        records.write(records.folder() / "wire.csv", records.stamp("benches/server/wire.py"), rows)


if __name__ == "__main__":
    main()
