"""Who takes part: how each library's worker is started, and why one cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from precisions import WITHOUT, Precision

HERE = Path(__file__).resolve().parent
OURS = "gatestream"
# In runs of a reduced precision: what that brings is measured in the same rounds.
OURS_F32 = "gatestream f32"


@dataclass(frozen=True)
class Peer:
    """A library and the program that speaks for it."""

    name: str
    command: tuple[str, ...]
    module: str | None = None  # what its Python must be able to import
    environment: dict[str, str] = field(default_factory=dict)
    reads: str = "onnx"  # a kind of models.FILES
    left_out: str | None = None  # why it is not asked for, whatever is installed
    precision: str = "f32"

    @property
    def ours(self) -> bool:
        return self.name in (OURS, OURS_F32)

    def lacks(self, cell: str) -> str | None:
        """Why it has no such cell in its precision, if it has others."""
        return WITHOUT.get((self.precision, self.name, cell))

    def missing(self) -> str | None:
        """Why it cannot take part, in words; None if it can."""
        if why := WITHOUT.get((self.precision, self.name)) or self.left_out:
            return why
        if self.module is None:
            if Path(self.command[0]).exists():
                return None
            return f"{self.command[0]} is not built (cargo build --release in {HERE.name}/rust-peers)"
        python = self.command[0]
        # A module that is found may still not load, e.g. for a library of the system's.
        tried = subprocess.run([python, "-c", f"import {self.module}"], capture_output=True, text=True)
        if tried.returncode == 0:
            return None
        return (tried.stderr.strip().splitlines() or [f"{python} ended with {tried.returncode}"])[-1]


def known(
    threads: int, rust: Path, tensorflow_python: str | None, rust_peers: bool, precision: Precision
) -> list[Peer]:
    """All libraries that there is a worker for, ours last. Each gets `threads` by its own setting; those
    that read it from the environment get it here, the others in their workers."""
    many = {"RAYON_NUM_THREADS": str(threads), "RTEN_NUM_THREADS": str(threads)}
    # oneDNN's and PyTorch's pool.
    openmp = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    # OpenVINO's int8 is made of the f32 file, in its worker.
    quantized = "onnx-int8" if precision.name == "int8" else "onnx"

    # Programs of an earlier build may still lie there, of other versions: they are not timed.
    left_out = None if rust_peers else "not built: --no-rust-peers"

    def python(name: str, module: str, reads: str, interpreter: str = sys.executable) -> Peer:
        worker = str(HERE / "workers" / f"with_{name}.py")
        return Peer(name, (interpreter, worker), module, openmp, reads, precision=precision.name)

    def program(name: str, reads: str) -> Peer:
        return Peer(name, (str(rust / name),), None, many, reads, left_out, precision.name)

    peers = [
        python("pytorch", "torch, safetensors", "safetensors"),
        python("onnxruntime", "onnxruntime", quantized),
        python("openvino", "openvino", "onnx"),
        program("tract", "onnx"),
        program("rten", quantized),
        program("candle", "safetensors"),
    ]
    if tensorflow_python:
        modules = "tensorflow, safetensors"
        peers.append(python("tensorflow", modules, "safetensors", tensorflow_python))
    ours = (str(rust / "ours"),)
    if precision.reduced:
        peers.append(Peer(OURS_F32, ours, reads="safetensors"))
    return [*peers, Peer(OURS, ours, reads="safetensors", precision=precision.name)]


def cores(threads: int) -> set[int]:
    """The first `threads` cores this process may use, one logical CPU of each: two siblings of one core
    would share its arithmetic."""
    chosen: set[int] = set()
    taken: set[str] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = path.read_text().strip() if path.exists() else str(cpu)
        if core not in taken and len(chosen) < threads:
            taken.add(core)
            chosen.add(cpu)
    if len(chosen) < threads:
        raise SystemExit(f"--threads {threads}: this machine lets us use {len(chosen)} cores; ask for at most these")
    return chosen
