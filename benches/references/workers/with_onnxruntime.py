"""ONNX Runtime: its CPU provider, input and output bound once, so that a call moves no arrays.

In int8 its quantizer's DynamicQuantizeLSTM, with a scale for each gate of each unit or one for each matrix,
whichever is faster here: the first is faster at larger batches, the second a little with one sequence.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from protocol import Request, quick_median, serve


class Bound:
    """A session of one file."""

    def __init__(self, request: Request, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = onnxruntime.OrtValue.ortvalue_from_numpy
        row = request.row
        self.result = given(np.zeros((row["steps"], row["batch"], row["output"]), np.float32))
        self.binding = self.session.io_binding()
        self.binding.bind_ortvalue_input("input", given(request.values))
        if request.lengths is not None:
            self.binding.bind_ortvalue_input("lengths", given(np.array(request.lengths, np.int32)))
        self.binding.bind_ortvalue_output("output", self.result)

    def call(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def output(self) -> np.ndarray:
        return self.result.numpy()


def load(request: Request) -> Bound:
    if request.precision != "int8":
        return Bound(request, request.file("onnx"))
    # One after the other: the pool of one would spin beside the other's calls.
    kinds = ("onnx-int8", "onnx-int8-per-tensor")
    fastest = min(kinds, key=lambda kind: quick_median(Bound(request, request.file(kind)).call))
    chosen = Bound(request, request.file(fastest))
    chosen.facts = {"weights": "scale per matrix" if fastest.endswith("tensor") else "scale per gate and unit"}
    return chosen


if __name__ == "__main__":
    serve(onnxruntime.__version__, load)
