"""The Open Inference Protocol's bodies of requests and answers, for one tensor of each."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

HEADER_LENGTH = "inference-header-content-length"


@dataclass
class Inference:
    """A request to a model."""

    id: Optional[str]
    input: NDArray[np.float32]
    """``[steps, features]``, or with an axis of sequences before."""
    sequence: Optional[str]
    start: bool
    end: bool
    priority: int
    timeout: Optional[float]
    """Seconds."""
    is_binary: bool
    """Whether the answer is wanted as bytes after the JSON."""


def read(body: bytes, header_length: Optional[str]) -> Inference:
    """Reads the body of a request.

    :param header_length: the header of that name: where binary data begins.
    :raises InputError: if it is not of the protocol.
    """
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or not 0 < int(header_length) <= length:
            raise InputError(f"{HEADER_LENGTH} is {header_length!r}; it must be the length of the JSON, up to {length}")
        length = int(header_length)
    try:
        request = json.loads(body[:length])
    except (ValueError, RecursionError) as why:
        raise InputError(f"the body is not JSON: {why}") from None
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise InputError("inputs must be a list of one tensor, input")
    if inputs[0].get("name") != "input":
        raise InputError(f"the input {inputs[0].get('name')!r} is unknown; the name is input")
    parameters = _object(request, "parameters")
    sequence = parameters.get("sequence_id", 0)
    if isinstance(sequence, bool) or not isinstance(sequence, (int, str)):
        raise InputError("sequence_id must be a number or a string")
    outputs = request.get("outputs") or [{}]
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise InputError("outputs must be a list of tensors")
    if {output.get("name", "output") for output in outputs} != {"output"}:
        raise InputError("the only output is output")
    is_binary = _object(outputs[0], "parameters").get("binary_data", parameters.get("binary_data_output", False))
    # Of the protocol, 1 is the highest and 0 the default, which is in the middle; of engines, 255 is the highest.
    priority = _number(parameters, "priority")
    return Inference(
        id=request.get("id"),
        input=_tensor(inputs[0], body[length:]),
        sequence=str(sequence) if sequence else None,
        start=bool(parameters.get("sequence_start", False)),
        end=bool(parameters.get("sequence_end", False)),
        priority=max(256 - priority, 0) if priority else 128,
        timeout=_number(parameters, "timeout") / 1e6 or None,
        is_binary=bool(is_binary),
    )


def answer(model: str, asked: Inference, output: NDArray[np.float32]) -> tuple[bytes, Optional[int]]:
    """The body of an answer, and the length of its JSON if binary data follows."""
    tensor: dict[str, Any] = {"name": "output", "datatype": "FP32", "shape": list(output.shape)}
    message: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": [tensor]}
    if asked.id is not None:
        message["id"] = asked.id
    if not asked.is_binary:
        tensor["data"] = [float(value) for value in output.ravel()]
        return json.dumps(message).encode(), None
    tensor["parameters"] = {"binary_data_size": output.nbytes}
    head = json.dumps(message).encode()
    return head + output.tobytes(), len(head)


def _object(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name) or {}
    if not isinstance(found, dict):
        raise InputError(f"{name} must be an object")
    return found


def _number(parameters: dict[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{name} must be a number of at least 0")
    return value


def _tensor(tensor: dict[str, Any], binary: bytes) -> NDArray[np.float32]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise InputError("the shape of input must be a list of sizes above 0")
    if tensor.get("datatype") != "FP32":
        raise InputError(f"the datatype of input is {tensor.get('datatype')!r}; it must be FP32")
    count = math.prod(shape)
    size = _object(tensor, "parameters").get("binary_data_size")
    if size is not None:
        if size != len(binary) or size != 4 * count:
            raise InputError(f"input {shape} has {4 * count} bytes; {size} are said, {len(binary)} are there")
        return np.frombuffer(binary, "<f4").reshape(shape)
    try:
        data = np.asarray(tensor.get("data"), np.float32)
    except (TypeError, ValueError):
        raise InputError("the data of input must be numbers") from None
    if data.size != count:
        raise InputError(f"input {shape} has {count} values; {data.size} are there")
    return data.reshape(shape)
