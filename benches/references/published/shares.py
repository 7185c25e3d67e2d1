"""The share of a file's time that ONNX Runtime spends in recurrent nodes, by its own profiler."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import onnxruntime
from inputs import Arrays

RECURRENT = {"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}
# Nodes whose bodies are counted by the nodes within.
CONTAINERS = {"If", "Loop", "Scan"}


def recurrent(model: Path, arrays: Arrays, seconds: float = 0.3) -> float:
    """With one thread. Loops and Scans that hold an LSTM written out are not counted as recurrent."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        begin, runs = time.perf_counter(), 0
        while runs < 3 or time.perf_counter() - begin < seconds:
            session.run(None, arrays)
            runs += 1
        events = json.loads(Path(session.end_profiling()).read_text())
    spent = {True: 0.0, False: 0.0}
    for event in events:
        operator = event.get("args", {}).get("op_name")
        if operator and event["name"].endswith("_kernel_time") and operator not in CONTAINERS:
            spent[operator in RECURRENT] += event["dur"]
    return spent[True] / max(sum(spent.values()), 1e-9)
