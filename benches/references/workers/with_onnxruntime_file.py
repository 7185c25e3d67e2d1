"""ONNX Runtime on a whole file, as published: its CPU provider, its default optimisations."""

from __future__ import annotations

import numpy as np
import onnxruntime
from protocol import File, serve


class Network:
    """A session and its inputs."""

    def __init__(self, file: File) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = file.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(file.model, options, providers=["CPUExecutionProvider"])
        self.inputs = file.inputs
        self.names = [tensor.name for tensor in self.session.get_outputs()]
        self.call()
        self.facts = {
            "outputs": [
                {"name": name, "type": str(result.dtype), "shape": list(result.shape)}
                for name, result in zip(self.names, self.results, strict=True)
            ]
        }

    def call(self) -> None:
        self.results = [np.asarray(result) for result in self.session.run(self.names, self.inputs)]

    def output(self) -> list[np.ndarray]:
        return self.results


if __name__ == "__main__":
    serve(onnxruntime.__version__, Network, File)
