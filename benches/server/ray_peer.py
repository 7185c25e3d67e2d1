"""ONNX Runtime behind Ray Serve with dynamic batching, as a server of the Open Inference Protocol to compare with.

    python benches/server/ray_peer.py model.onnx   # HTTP on port 8100; model `m`
    cellstream load lstm --server http://127.0.0.1:8100 --model m --rates 20,40

The model takes `input` `[batch, steps, features]` and returns `output`, as an exported `nn.LSTM(batch_first=True)`.
Sequences of a batch are padded to the longest. Needs `pip install "ray[serve]" onnxruntime`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from fastapi import FastAPI, Request, Response
from ray import serve

LENGTH = "inference-header-content-length"
application = FastAPI()


@serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 0})
@serve.ingress(application)
class Model:
    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.features = self.session.get_inputs()[0].shape[2]

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def run(self, sequences: list[np.ndarray]) -> list[np.ndarray]:
        steps = max(map(len, sequences))
        batch = np.zeros((len(sequences), steps, self.features), np.float32)
        for row, sequence in zip(batch, sequences):
            row[: len(sequence)] = sequence
        (output,) = self.session.run(["output"], {"input": batch})
        return [row[: len(sequence)] for row, sequence in zip(output, sequences)]

    @application.get("/v2/models/m")
    def metadata(self) -> dict:
        tensor = {"name": "input", "datatype": "FP32", "shape": [-1, -1, self.features]}
        return {"name": "m", "inputs": [tensor], "outputs": []}

    @application.post("/v2/models/m/infer")
    async def infer(self, request: Request) -> Response:
        body = await request.body()
        length = int(request.headers[LENGTH])
        shape = json.loads(body[:length])["inputs"][0]["shape"]
        y = await self.run(np.frombuffer(body[length:], np.float32).reshape(shape)[0])
        raw = y.tobytes()
        parameters = {"binary_data_size": len(raw)}
        output = {"name": "output", "datatype": "FP32", "shape": [1, *y.shape], "parameters": parameters}
        head = json.dumps({"model_name": "m", "outputs": [output]}).encode()
        return Response(head + raw, headers={LENGTH: str(len(head))}, media_type="application/octet-stream")


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": 8100})
    serve.run(Model.bind(str(Path(sys.argv[1]).resolve())), blocking=True)
