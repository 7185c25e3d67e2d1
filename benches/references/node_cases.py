"""ONNX's own test cases of LSTM, GRU and RNN, through `gatestream run`: weights are inputs of their graphs.

Called by benches/references/run node-cases, which installs and builds what it needs. The package onnx makes the cases.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = ("LSTM", "GRU", "RNN")


def main() -> int:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser = argparse.ArgumentParser(prog="benches/references/run node-cases", description=__doc__)
    parser.add_argument("--gatestream", type=Path, default=target / "release" / "gatestream", metavar="FILE")
    program = parser.parse_args().gatestream
    cases = [
        case
        for operator in OPERATORS
        for case in collect_testcases(operator)
        if case.model is not None and any(node.op_type in OPERATORS for node in case.model.graph.node)
    ]
    wrong = [case.name for case in cases if (why := run(case, program)) and not print(f"{case.name}: {why}")]
    print(f"{len(cases) - len(wrong)} of {len(cases)} cases of onnx {onnx.__version__} are right")
    return 1 if wrong or not cases else 0


def run(case: object, program: Path) -> str:
    """Why the case is wrong; nothing if it is right."""
    with tempfile.TemporaryDirectory(prefix="gatestream-node-cases-") as name:
        folder = Path(name)
        onnx.save(case.model, folder / "model.onnx")
        for inputs, outputs in case.data_sets:
            words = [str(program), "run", "model.onnx"]
            given = zip(case.model.graph.input, inputs, strict=True)
            for at, (port, value) in enumerate(given):
                np.save(folder / f"in-{at}.npy", np.asarray(value))
                words += ["--input", f"{port.name}=in-{at}.npy"]
            ports = [port.name for port in case.model.graph.output]
            for at, port in enumerate(ports):
                words += ["--output", f"{port}=out-{at}.npy"]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                return done.stderr.strip()
            for at, (port, expected) in enumerate(zip(ports, outputs, strict=True)):
                found = np.load(folder / f"out-{at}.npy")
                if found.shape != np.shape(expected):
                    return f"{port} has the shape {found.shape}, not {np.shape(expected)}"
                if not np.allclose(found, expected, rtol=case.rtol, atol=max(case.atol, 1e-6)):
                    return f"{port} differs by {np.abs(found - expected).max():.1e}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
