"""Each example of the README runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = re.findall(r"## ([^\n]+)\n\n```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.S)


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_example(title: str, code: str, tmp_path: Path) -> None:
    if "torch" in code:
        pytest.importorskip("torch")
    if "onnxruntime" in code:
        pytest.importorskip("onnxruntime")
    if "from ray" in code:
        pytest.importorskip("ray.serve")
    (tmp_path / "example.py").write_text(code)
    ended = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_there_are_examples() -> None:
    assert {title for title, _ in EXAMPLES} >= {"NumPy", "PyTorch", "ONNX Runtime", "Ray Serve: many machines"}
