"""Runs of `gatestream load`, for the scripts beside this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release" / "gatestream"
sys.path.append(str(ROOT / "benches" / "report"))

import records  # noqa: E402, F401


def build() -> None:
    """Builds the program."""
    command = ["cargo", "build", "--release", "--quiet", "--manifest-path", ROOT / "Cargo.toml"]
    subprocess.run(command, check=True)


def run(*arguments: str) -> dict:
    """The run that `gatestream load` reports."""
    printed = subprocess.run([PROGRAM, "load", *arguments, "--json"], capture_output=True, text=True)
    if printed.returncode != 0:
        sys.exit(printed.stderr)
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    return next(line for line in lines if line["kind"] == "run")
