"""ONNX Runtime on a whole file at its default settings, without and with gatestream's execution provider."""

from __future__ import annotations

import os

import numpy as np
import onnxruntime
from protocol import File, serve

PROVIDER = "GatestreamExecutionProvider"


def devices() -> list:
    """Those of the provider; none before its library is registered."""
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]


class Network:
    """A session and its inputs. The variable GATESTREAM_PROVIDER names the library, if it takes part."""

    def __init__(self, file: File) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # The default is one thread for each core.
        options.intra_op_num_threads = 0 if file.threads > 1 else 1
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        library = os.environ.get("GATESTREAM_PROVIDER")
        if library:
            if not devices():
                onnxruntime.register_execution_provider_library("gatestream", library)
            options.add_provider_for_devices(devices(), {})
        self.session = onnxruntime.InferenceSession(file.model, options)
        assigned = self.session.get_provider_graph_assignment_info()
        claimed = sum(len(part.get_nodes()) for part in assigned if part.ep_name == PROVIDER)
        self.inputs = file.inputs
        self.names = [tensor.name for tensor in self.session.get_outputs()]
        self.call()
        self.facts = {
            "claimed": claimed,
            "outputs": [
                {"name": name, "type": str(result.dtype), "shape": list(result.shape)}
                for name, result in zip(self.names, self.results, strict=True)
            ],
        }

    def call(self) -> None:
        self.results = [np.asarray(result) for result in self.session.run(self.names, self.inputs)]

    def output(self) -> list[np.ndarray]:
        return self.results


if __name__ == "__main__":
    serve(onnxruntime.__version__, Network, File)
