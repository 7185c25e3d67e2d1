"""ONNX Runtime: its CPU provider, input and output bound once, so that a call moves no arrays."""

from __future__ import annotations

import numpy as np
import onnxruntime
from protocol import Request, serve


class Network:
    def __init__(self, request: Request) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            request.onnx, options, providers=["CPUExecutionProvider"]
        )
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


if __name__ == "__main__":
    serve(onnxruntime.__version__, Network)
