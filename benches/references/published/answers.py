"""Inputs of workers as files, and the answers that they are compared with."""

from __future__ import annotations

from pathlib import Path

import dequantized
import exports
import numpy as np
import onnxruntime
import packages
from inputs import Arrays


def reference_of(
    file: packages.File, model: Path, arrays: Arrays, theirs: Arrays, cache: Path, folder: Path
) -> list[np.ndarray] | None:
    """What both are compared with where they differ by more than rounding."""
    if file.int8:
        twin = folder / "twin.onnx"
        dequantized.write(model, twin)
        session = onnxruntime.InferenceSession(str(twin), providers=["CPUExecutionProvider"])
        return session.run(list(theirs), arrays)
    if file.export is not None:
        return exports.exactly(file.export, packages.member(file.package, file.member, cache), arrays)
    return None


def in_order(ours: Arrays, theirs: Arrays) -> list[np.ndarray]:
    """Our outputs in the order of theirs."""
    return [ours[name] for name in theirs]


def write_input(path: Path, name: str, array: np.ndarray) -> dict:
    """Where a worker finds an input."""
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return {"name": name, "type": str(array.dtype), "shape": list(array.shape), "file": str(path)}


def read_outputs(path: Path, tensors: list[dict]) -> Arrays:
    """The outputs that a worker wrote one after the other."""
    values, at, found = path.read_bytes(), 0, {}
    for tensor in tensors:
        kind = np.dtype(tensor["type"])
        count = int(np.prod(tensor["shape"], dtype=np.int64))
        found[tensor["name"]] = np.frombuffer(values, kind, count, at).reshape(tensor["shape"])
        at += count * kind.itemsize
    return found
