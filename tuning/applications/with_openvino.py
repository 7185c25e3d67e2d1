"""OpenVINO on an application's ONNX file: its CPU device, tuned for latency, in f32."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino

sys.path.append(str(Path(__file__).resolve().parents[2] / "benches" / "references" / "workers"))

from protocol import File, quick_median, serve  # noqa: E402

CORE = openvino.Core()


class Network:
    """A compiled model and its inputs, which a call does not copy."""

    def __init__(self, file: File) -> None:
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": file.threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self.model = CORE.compile_model(file.model, "CPU", settings)
        self.request = self.model.create_infer_request()
        self.inputs = file.inputs
        for name, values in self.inputs.items():
            self.request.set_tensor(name, openvino.Tensor(values, shared_memory=True))
        # The calling thread, or OpenVINO's own: the faster of them here.
        self.call = min((self.infer, self.start_and_wait), key=quick_median)

    def infer(self) -> None:
        self.request.infer()

    def start_and_wait(self) -> None:
        self.request.start_async()
        self.request.wait()

    def output(self) -> list[np.ndarray]:
        return [self.request.get_tensor(port).data for port in self.model.outputs]


if __name__ == "__main__":
    serve(openvino.__version__.split("-")[0], Network, File)
