"""ONNX Runtime behind Ray Serve with dynamic batching, as a server of the Open Inference Protocol to compare with.

    python benches/server/peers/ray_serve.py FOLDER PORT   # models `lstm` and `g2p` of `onnx_models.py`

Needs `pip install "ray[serve]" onnxruntime`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from fastapi import FastAPI, Request, Response
from onnx_models import MODELS
from ray import serve

LENGTH = "inference-header-content-length"
TYPES = {"FP32": np.float32, "INT64": np.int64}
application = FastAPI()


@serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 0})
@serve.ingress(application)
class Models:
    def __init__(self, folder: str, models: dict) -> None:
        self.models = {name: model(Path(folder)) for name, model in models.items()}

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def lstm(self, inputs: list) -> list:
        return self.models["lstm"](inputs)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def g2p(self, inputs: list) -> list:
        return self.models["g2p"](inputs)

    @application.get("/v2/models/{name}")
    def metadata(self, name: str) -> dict:
        model = self.models[name]
        tensor = {"name": model.name, "datatype": model.datatype, "shape": model.shape}
        return {"name": name, "inputs": [tensor], "outputs": []}

    @application.post("/v2/models/{name}/infer")
    async def infer(self, name: str, request: Request) -> Response:
        body = await request.body()
        length = int(request.headers[LENGTH])
        given = json.loads(body[:length])["inputs"][0]
        x = np.frombuffer(body[length:], TYPES[given["datatype"]]).reshape(given["shape"])
        y = await (self.lstm(x) if name == "lstm" else self.g2p(x))
        raw = np.ascontiguousarray(y).tobytes()
        datatype = "FP32" if y.dtype == np.float32 else "INT64"
        parameters = {"binary_data_size": len(raw)}
        output = {"name": "output", "datatype": datatype, "shape": y.shape, "parameters": parameters}
        head = json.dumps({"model_name": name, "outputs": [output]}).encode()
        return Response(head + raw, headers={LENGTH: str(len(head))}, media_type="application/octet-stream")


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(Models.bind(str(Path(sys.argv[1]).resolve()), MODELS), blocking=True)
