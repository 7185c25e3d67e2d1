"""The server beside Python servers of the same protocol on ONNX Runtime: Ray Serve with dynamic batching, and MLServer.

    python benches/server/peers/compare.py --ray RAY/bin/python --mlserver MLSERVER/bin/python [--record]

The models are an LSTM of 1024 units with lengths of sentences, and g2p.safetensors with lengths of words. For each
server: one request after the other, 32 at once, and Poisson arrivals at the highest rate whose p99 is at most four
times that of the lone request. Needs NumPy, onnx, and `cargo build --release --bin gatestream`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "benches"), str(HERE.parent), str(HERE)]

from onnx_models import WIDTH, export  # noqa: E402
from report import records  # noqa: E402
from wire import PROGRAM, save  # noqa: E402

PORTS = {"gatestream": 8600, "ray-serve": 8610, "mlserver": 8620}
# Parts of the rate of 32 requests at once.
STEPS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def load(server: str, model: str, lengths: list[str], *options: str) -> dict:
    """The row of `gatestream load`."""
    kind = "lstm" if model == "lstm" else "seq2seq"
    # MLServer takes binary tensors over gRPC only.
    address = f"grpc://127.0.0.1:{PORTS[server] + 1}" if server == "mlserver" else f"http://127.0.0.1:{PORTS[server]}"
    command = [str(PROGRAM), "load", kind, "--server", address, "--model", model, *lengths, *options, "--json"]
    ended = subprocess.run([*command, "--seconds", "4", "--warm-up", "1"], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{server}: {ended.stderr}")
    row = json.loads(ended.stdout.strip().splitlines()[-1])
    if not row["completed"]:
        raise SystemExit(f"{server} answers nothing: {row['errors']}")
    return row


def wait(server: str) -> None:
    for model in ("lstm", "g2p"):
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORTS[server]}/v2/models/{model}").read()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray", required=True, metavar="PYTHON")
    parser.add_argument("--mlserver", required=True, metavar="PYTHON")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    found = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models, examples = folder / "models", ROOT / "examples" / "models"
        save(models / "lstm" / "1" / "model.safetensors", WIDTH, WIDTH)
        (models / "g2p" / "1").mkdir(parents=True)
        shutil.copy(examples / "g2p.safetensors", models / "g2p" / "1" / "model.safetensors")
        shutil.copy(examples / "config.toml", models / "g2p" / "config.toml")
        for peer in ("ray", "mlserver"):
            (folder / peer).mkdir()
            export(models / "lstm" / "1" / "model.safetensors", examples / "g2p.safetensors", folder / peer)
        words = (examples / "held_out_sample.tsv").read_text().splitlines()[1:]
        pairs = [(len(word), len(phonemes.split())) for word, _, phonemes in (line.split("\t") for line in words)]
        (folder / "words.csv").write_text("source,target\n" + "".join(f"{s},{max(t, 1)}\n" for s, t in pairs))
        lengths = {
            "lstm": ["--lengths", "paper"],
            "g2p": ["--lengths", f"{folder}/words.csv:source,target", "--vocabulary", "29"],
        }
        addresses = ["--http", f"127.0.0.1:{PORTS['gatestream']}", "--grpc", "127.0.0.1:0"]
        servers = {
            "gatestream": [str(PROGRAM), "serve", str(models), *addresses],
            "ray-serve": [given.ray, "ray_serve.py", str(folder / "ray"), str(PORTS["ray-serve"])],
            "mlserver": [given.mlserver, "mlserver_models.py", str(folder / "mlserver"), str(PORTS["mlserver"])],
        }
        for server, command in servers.items():
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            running = stack.enter_context(subprocess.Popen(command, cwd=HERE, **quiet))
            stack.callback(running.terminate)
            wait(server)
        for model in lengths:
            lone, full = {}, {}
            for server in servers:
                lone[server] = load(server, model, lengths[model], "--closed", "1")
                full[server] = load(server, model, lengths[model], "--closed", "32")
            best = {server: lone[server] for server in servers}
            open_servers = set(servers)
            for step in STEPS:
                for server in sorted(open_servers):
                    rate = step * full[server]["throughput"]
                    row = load(server, model, lengths[model], "--rates", f"{rate:.2f}")
                    is_good = not any(row["errors"].values())
                    if is_good and row["latency_ms"]["p99"] <= 4 * lone[server]["latency_ms"]["p99"]:
                        best[server] = row
                    else:
                        open_servers.discard(server)
            for server in servers:
                for case, rows in (("one at a time", lone), ("32 at once", full), ("p99 within 4 of the lone", best)):
                    row = rows[server]
                    latency = row["latency_ms"]
                    found.append({
                        "model": model, "server": server, "case": case, "answered_s": f"{row['throughput']:.1f}",
                        "p50_ms": f"{latency['p50']:.2f}", "p99_ms": f"{latency['p99']:.2f}",
                    })  # fmt: skip
                    print(*found[-1].values(), sep="  ", flush=True)
    if given.record:
        command = "benches/server/peers/compare.py (Ray 2.60, MLServer 1.7.1, ONNX Runtime 1.27)"
        records.write(records.folder() / "wire-peers.csv", records.stamp(command), found)


if __name__ == "__main__":
    main()
