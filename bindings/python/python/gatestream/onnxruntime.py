"""Recurrent layers of models that ONNX Runtime runs, on gatestream.

>>> import onnxruntime, gatestream.onnxruntime
>>> session = onnxruntime.InferenceSession("model.onnx", gatestream.onnxruntime.session_options())

The execution provider claims the nodes LSTM, GRU, RNN and DynamicQuantizeLSTM of any model, also
inside the branches of an ``If`` or the body of a ``Loop``, and leaves all others to ONNX Runtime.
It computes on the threads of ONNX Runtime's session, so no option of the session has to change.
ONNX Runtime 1.24 or newer is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import onnxruntime

from . import _native
from .errors import GatestreamError

__all__ = [
    "PROVIDER",
    "claimed_nodes",
    "library_path",
    "register",
    "session_options",
    "unregister",
]

PROVIDER = "GatestreamExecutionProvider"
"""The name of the execution provider."""

_REGISTRATION = "gatestream"

_MARK = "gatestream.registration"
"""The entry of options that have the provider: the number of its registration."""

_ended = 0
"""Registrations that have ended. Options have the devices of theirs."""


def library_path() -> str:
    """The path of the shared library, for ``RegisterExecutionProviderLibrary`` of a Python process.

    Programs without Python load ``libgatestream_onnxruntime.so`` instead, which
    ``cargo build --release -p gatestream-onnxruntime`` makes.
    """
    return str(Path(_native.__file__).resolve())


def _devices() -> list[onnxruntime.OrtEpDevice]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]


def register() -> None:
    """Registers the execution provider with ONNX Runtime, if that has not been done yet.

    :raises GatestreamError: if ONNX Runtime is older than 1.24.
    """
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    if version < (1, 24):
        raise GatestreamError(
            f"ONNX Runtime {onnxruntime.__version__} is too old for the execution provider; "
            "install onnxruntime 1.24 or newer"
        )
    if not _devices():
        onnxruntime.register_execution_provider_library(_REGISTRATION, library_path())


def unregister() -> None:
    """Takes the execution provider back. End all sessions that use it before.

    Options of :func:`session_options` cannot be used any more then: a session made of them is an error.
    """
    global _ended
    if _devices():
        _ended += 1
        onnxruntime.unregister_execution_provider_library(_REGISTRATION)


def session_options(
    options: Optional[onnxruntime.SessionOptions] = None,
) -> onnxruntime.SessionOptions:
    """Options of a session whose recurrent nodes run on gatestream.

    :param options: options to which the provider is added, unless they have it. By default new ones, which log
        errors only: ONNX Runtime warns of each model that has nodes for other providers, too.
    :raises GatestreamError: if the provider was added before :func:`unregister`.
    """
    register()
    if options is None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
    try:
        registration = options.get_session_config_entry(_MARK)
    except RuntimeError:  # there is no such entry
        registration = None
    if registration == str(_ended):
        return options
    if registration is not None:
        raise GatestreamError("these options got the provider before it was unregistered; make new ones")
    options.add_session_config_entry(_MARK, str(_ended))
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_provider_for_devices(_devices(), {})
    return options


def claimed_nodes(session: onnxruntime.InferenceSession) -> list[str]:
    """The names of the nodes that a session of :func:`session_options` computes on gatestream."""
    parts = session.get_provider_graph_assignment_info()
    return [node.name for part in parts if part.ep_name == PROVIDER for node in part.get_nodes()]
