"""OpenVINO: its CPU device, tuned for latency, in the precision that is asked for (its own choice in f32
would be bf16 where the CPU has it).

Its int8 is static: ranges of inputs and states are fixed beforehand, by FakeQuantize operations that a
quantising tool puts into the graph. Here they go by the row's own input and what f32 makes of it, the best
calibration there can be. Weights have a scale for each gate of each unit.
"""

from __future__ import annotations

import numpy as np
import openvino
from openvino import opset13 as operations
from protocol import Request, quick_median, serve

CORE = openvino.Core()


class Network:
    def __init__(self, request: Request) -> None:
        self.row, self.lengths, self.states = request.row, None, []
        # The tensors share these arrays; a call copies nothing.
        self.values = request.values
        if request.lengths is not None:
            self.lengths = np.array(request.lengths, np.int32)
        self.settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": request.threads,
            "INFERENCE_PRECISION_HINT": "bf16" if request.precision == "bf16" else "f32",
        }
        graph = CORE.read_model(request.file("onnx"))
        if request.precision == "int8":
            self.quantize(graph)
        model = self.compile(graph)
        self.facts = {"runs_in": runs_in(model)}
        if request.precision == "int8" and not set(self.facts["runs_in"]) & {"u8", "i8"}:
            # It falls back without a word, and its output has the error of int8 all the same.
            raise ValueError("it runs this row in f32, FakeQuantize or not")
        # Short networks are faster run by the calling thread, some long ones by OpenVINO's own pinned
        # threads: it gets whichever is faster here.
        self.call = min((self.infer, self.start_and_wait), key=quick_median)

    def compile(self, graph: openvino.Model) -> openvino.CompiledModel:
        """Makes the request that calls use."""
        model = CORE.compile_model(graph, "CPU", self.settings)
        self.request = model.create_infer_request()
        self.request.set_tensor("input", openvino.Tensor(self.values, shared_memory=True))
        if self.lengths is not None:
            self.request.set_tensor("lengths", openvino.Tensor(self.lengths, shared_memory=True))
        for name in self.states:
            self.request.get_tensor(name).data[:] = 0.0
        return model

    def quantize(self, graph: openvino.Model) -> None:
        """Says of every sequence's input, state and weights that they go through 8 bits."""
        layers = [op for op in graph.get_ordered_ops() if op.get_type_name() == "LSTMSequence"]
        # What goes into each layer, and its states, come as outputs of the whole.
        seen = [port for layer in layers for port in (layer.input(0).get_source_output(), layer.output(0))]
        calibration = self.compile(openvino.Model(seen, graph.get_parameters()))
        self.request.infer()
        # One for all: it has but one scale for a layer's input, state and output, and with a range for each
        # layer two of them in a row came out wrong (2026.4.1).
        most = np.float32(max(np.abs(self.request.get_tensor(port).data).max() for port in calibration.outputs))
        names = [f"state {index}" for index in range(len(layers))]
        for name, layer in zip(names, layers, strict=True):
            # A state of zeros would be folded into something that has no range, and the layer left in f32.
            state = operations.parameter([self.row["batch"], *layer.output(1).get_partial_shape().to_shape()[1:]])
            state.output(0).get_tensor().set_names({name})
            graph.add_parameters([state])
            sources = {0: (layer.input(0).get_source_output(), most), 1: (state.output(0), most)}
            for weights in (4, 5):
                source = layer.input(weights).get_source_output()
                sources[weights] = (source, np.abs(constant(source)).max(axis=2, keepdims=True))
            for index, (source, reach) in sources.items():
                through = operations.fake_quantize(source, -reach, reach, -reach, reach, 255)
                layer.input(index).replace_source_output(through.output(0))
        graph.validate_nodes_and_infer_types()
        self.states = names

    def infer(self) -> None:
        self.request.infer(share_outputs=True)

    def start_and_wait(self) -> None:
        self.request.start_async()
        self.request.wait()

    def output(self) -> np.ndarray:
        return np.array(self.request.get_tensor("output").data)


def constant(port: openvino.Output) -> np.ndarray:
    """The values of what depends on nothing."""
    graph = openvino.Model([port], [])
    return CORE.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([])[0]


def runs_in(model: openvino.CompiledModel) -> list[str]:
    """The precisions of the recurrent layers as they were compiled."""
    facts = [op.get_rt_info() for op in model.get_runtime_model().get_ops()]
    kinds = {str(f["runtimePrecision"].value) for f in facts if "RNN" in str(f["layerType"].value)}
    return sorted(kinds)


if __name__ == "__main__":
    serve(openvino.get_version().split("-")[0], Network)
