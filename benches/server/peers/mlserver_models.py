"""ONNX Runtime behind MLServer, as a server of the Open Inference Protocol to compare with.

    python benches/server/peers/mlserver_models.py FOLDER PORT   # models `lstm` and `g2p` of `onnx_models.py`

MLServer's adaptive batching joins requests of equal shapes only, so each request runs alone. Needs
`pip install mlserver onnxruntime`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from onnx_models import MODELS


class Runtime(MLModel):
    """A model of `onnx_models.py`."""

    async def load(self) -> bool:
        self.model = MODELS[self.name](Path(self.settings.parameters.uri))
        self.inputs = [MetadataTensor(name=self.model.name, datatype=self.model.datatype, shape=self.model.shape)]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        (y,) = self.model([NumpyCodec.decode_input(given).reshape(given.shape)])
        output = NumpyCodec.encode_output("output", np.ascontiguousarray(y))
        return InferenceResponse(model_name=self.name, outputs=[output])


def main() -> None:
    folder, port = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    # Workers are processes; a model is in one of them either way.
    settings |= {"parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in MODELS:
        (folder / name).mkdir(exist_ok=True)
        model = {"name": name, "implementation": "mlserver_models.Runtime", "parameters": {"uri": str(folder)}}
        (folder / name / "model-settings.json").write_text(json.dumps(model))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    os.execv(Path(sys.executable).parent / "mlserver", ["mlserver", "start", str(folder)])


if __name__ == "__main__":
    main()
