"""Recurrent networks (LSTM, GRU, RNN) on CPUs at the lowest latency, exact to the last bit.

>>> import numpy as np, gatestream
>>> model = gatestream.Model.open("speech.safetensors")        # or .onnx, .pt
>>> session = gatestream.Session(model)                        # packs the weights
>>> y, hn, cn = session.run(np.zeros((100, 1, model.input_size), np.float32))

``gatestream.torch`` replaces the recurrent layers of PyTorch modules, and
``gatestream.onnxruntime`` those of models that ONNX Runtime runs.
"""

from ._native import (
    Engine,
    Model,
    Network,
    Plan,
    Session,
    Stream,
    StreamState,
    Ticket,
    __version__,
    quantize,
    tune,
)
from ._types import Port, Result
from .errors import (
    GatestreamError,
    DeadlineError,
    ForkedError,
    InputError,
    ModelError,
    OverloadedError,
    PlanError,
    RequestCancelledError,
    RequestError,
    TooLargeError,
)

__all__ = [
    "GatestreamError",
    "DeadlineError",
    "Engine",
    "ForkedError",
    "InputError",
    "Model",
    "ModelError",
    "Network",
    "OverloadedError",
    "Plan",
    "PlanError",
    "Port",
    "RequestCancelledError",
    "RequestError",
    "Result",
    "Session",
    "Stream",
    "StreamState",
    "Ticket",
    "TooLargeError",
    "__version__",
    "quantize",
    "tune",
]
