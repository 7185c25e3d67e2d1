"""The Open Inference Protocol over HTTP, in front of the replicas of all models."""

# Ray copies the class with what it finds at its definition: annotations must not be strings, because FastAPI reads
# them later, and functions that the class calls come before it.
import asyncio
import logging
import os
from typing import Any

import numpy as np
import ray
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from ray import serve
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from .._native import __version__
from ..errors import GatestreamError, DeadlineError, InputError, OverloadedError
from . import _protocol
from ._states import SequenceError

http = FastAPI(title="gatestream", version=__version__)
# A request whose replica dies is sent to others as often.
RETRIES = 3
log = logging.getLogger("ray.serve")


async def _retried(send: Any) -> Any:
    for attempt in range(RETRIES + 1):
        try:
            return await send()
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError):
            if attempt == RETRIES:
                raise
            # Until Ray Serve knows of it.
            await asyncio.sleep(0.1 * 2**attempt)


def _refusal(error: Exception) -> Response:
    """The status of an error, and its message."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    headers = {}
    if isinstance(cause, SequenceError):
        status = 400 if cause.steps is None else 409
    elif isinstance(cause, DeadlineError):
        status = 504
    elif isinstance(cause, (OverloadedError, BackPressureError)):
        status, headers = 429, {"Retry-After": "1"}
    elif isinstance(cause, InputError):
        status = 400
    elif isinstance(cause, GatestreamError):
        status = 503
    else:
        log.error("a request failed: %s", error)
        status, cause = 500, RuntimeError("the request failed; the log of the ingress says why")
    return JSONResponse({"error": str(cause)}, status, headers)


@serve.ingress(http)
class Ingress:
    """Passes requests on to the replicas of their models, those of a sequence to the same replica."""

    def __init__(self, models: dict[str, DeploymentHandle[Any]]) -> None:
        self._models = models

    @http.get("/v2")
    async def server(self) -> Any:
        return {"name": "gatestream", "version": __version__, "extensions": ["binary_tensor_data", "sequence"]}

    @http.get("/v2/health/live")
    async def live(self) -> Any:
        return {"live": True}

    @http.get("/v2/health/ready")
    async def ready(self) -> Any:
        return {"ready": True}

    @http.get("/v2/models/{model}")
    async def metadata(self, model: str) -> Any:
        if model not in self._models:
            return self._unknown(model)
        features, outputs = await self._models[model].sizes.remote()
        tensor = {"datatype": "FP32"}
        return {
            "name": model,
            "versions": ["1"],
            "platform": "gatestream_stack",
            "inputs": [{"name": "input", **tensor, "shape": [-1, -1, features]}],
            "outputs": [{"name": "output", **tensor, "shape": [-1, -1, outputs]}],
        }

    @http.get("/v2/models/{model}/ready")
    async def model_ready(self, model: str) -> Any:
        return {"name": model, "ready": True} if model in self._models else self._unknown(model)

    @http.post("/v2/models/{model}/infer")
    async def infer(self, model: str, request: Request) -> Response:
        if model not in self._models:
            return self._unknown(model)
        try:
            asked = _protocol.read(await request.body(), request.headers.get(_protocol.HEADER_LENGTH))
            output = await self._compute(self._models[model], asked)
        except Exception as why:
            return _refusal(why)
        body, header_length = _protocol.answer(model, asked, output)
        if header_length is None:
            return Response(body, media_type="application/json")
        headers = {_protocol.HEADER_LENGTH: str(header_length)}
        return Response(body, headers=headers, media_type="application/octet-stream")

    async def _compute(self, model: DeploymentHandle[Any], asked: _protocol.Inference) -> NDArray[np.float32]:
        options = {"priority": asked.priority, "timeout": asked.timeout}
        if asked.sequence is None:
            return np.asarray(await _retried(lambda: model.infer.remote(asked.input, **options)))
        if asked.input.ndim == 3 and len(asked.input) != 1:
            raise InputError(f"a request of a sequence has a batch of 1, not of {len(asked.input)}")
        x = asked.input.reshape(asked.input.shape[-2:]) if asked.input.ndim == 3 else asked.input
        # The same for each try, so that the request counts once.
        request = os.urandom(8).hex()
        replica = model.options(session_id=asked.sequence)
        output = await _retried(
            lambda: replica.step.remote(
                x, asked.sequence, start=asked.start, end=asked.end, request=request, **options
            )
        )
        return np.asarray(output).reshape(asked.input.shape[:-1] + output.shape[-1:])

    def _unknown(self, model: str) -> Response:
        return JSONResponse({"error": f"the model {model} is not served"}, 404)
