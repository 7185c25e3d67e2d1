"""Writes node cases as folders that `examples/node_cases.rs` runs.

    python cases.py onnx FOLDER       those of the installed package onnx
    python cases.py onnxruntime FOLDER   operators of com.microsoft and ai.onnx.ml, with ONNX Runtime's answers

Older packages (`pip download onnx==1.8.1 --no-deps`) have theirs in `onnx/backend/test/data/node`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def of_onnx(folder: Path) -> int:
    from onnx.backend.test.case.node import collect_testcases

    cases = [case for case in collect_testcases(None) if case.model is not None]
    for case in cases:
        write(folder / case.name, case.model, case.data_sets)
    return len(cases)


def write(folder: Path, model: onnx.ModelProto, sets: list) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    for number, values in enumerate(sets):
        place = folder / f"test_data_set_{number}"
        place.mkdir(exist_ok=True)
        for kind, ports, of_kind in zip(("input", "output"), (model.graph.input, model.graph.output), values):
            for at, (port, value) in enumerate(zip(ports, of_kind)):
                if (stored := proto(port.name, value)) is not None:
                    (place / f"{kind}_{at}.pb").write_bytes(stored.SerializeToString())


def proto(name: str, value: object):
    if value is None or isinstance(value, TensorProto):
        return value
    if isinstance(value, dict):
        return numpy_helper.from_dict(value, name)
    if isinstance(value, list):
        return numpy_helper.from_list(value, name)
    return numpy_helper.from_array(np.asarray(value), name)


RANDOM = np.random.default_rng(1)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def microsoft() -> dict:
    """Name: operator, inputs, attributes, number of outputs."""
    x, skip, row = floats(2, 3, 8), floats(2, 3, 8), floats(8)
    cases = {
        "fused_matmul": ("FusedMatMul", [floats(3, 4), floats(4, 5)], {}),
        "fused_matmul_alpha": ("FusedMatMul", [floats(2, 3, 4), floats(2, 4, 5)], {"alpha": 0.25}),
        "fused_matmul_trans_a": ("FusedMatMul", [floats(2, 4, 3), floats(2, 4, 5)], {"transA": 1}),
        "fused_matmul_trans_b": ("FusedMatMul", [floats(2, 3, 4), floats(2, 5, 4)], {"transB": 1, "alpha": 3.0}),
        "fused_matmul_broadcast": ("FusedMatMul", [floats(2, 3, 3, 4), floats(4, 5)], {"alpha": 2.0}),
        "fused_matmul_batch_a": ("FusedMatMul", [floats(3, 2, 4), floats(2, 4, 5)], {"transBatchA": 1}),
        "fused_matmul_batch_b": ("FusedMatMul", [floats(2, 3, 4), floats(4, 2, 5)], {"transBatchB": 1}),
        "fused_matmul_batch_both": (
            "FusedMatMul",
            [floats(3, 2, 6, 4), floats(4, 2, 6, 5)],
            {"transBatchA": 1, "transBatchB": 1, "alpha": 0.5},
        ),
        "fused_matmul_batch_trans": (
            "FusedMatMul",
            [floats(4, 2, 3), floats(5, 2, 4)],
            {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1},
        ),
        "fused_matmul_vector_b": ("FusedMatMul", [floats(2, 3, 4), floats(4)], {"alpha": 2.0}),
        "fused_matmul_vector_a": ("FusedMatMul", [floats(4), floats(2, 4, 5)], {"alpha": 2.0}),
        "skip_layer_norm": ("SkipLayerNormalization", [x, skip, row], {}),
        "skip_layer_norm_small": ("SkipLayerNormalization", [x * 1e-5, skip * 1e-5, row, floats(8)], {}),
        "skip_layer_norm_epsilon": ("SkipLayerNormalization", [x, skip, row, floats(8)], {"epsilon": 0.1}),
        "skip_layer_norm_bias": ("SkipLayerNormalization", [x, skip, row, floats(8), floats(8)], {"epsilon": 1e-5}),
        "skip_layer_norm_flat": ("SkipLayerNormalization", [floats(3, 8), floats(3, 8), row], {"epsilon": 1e-5}),
        "bias_gelu": ("BiasGelu", [x, row], {}),
        "fast_gelu": ("FastGelu", [x], {}),
        "fast_gelu_bias": ("FastGelu", [x, row], {}),
        "quick_gelu": ("QuickGelu", [x], {}),
        "quick_gelu_alpha": ("QuickGelu", [x], {"alpha": 2.0}),
        "gelu": ("Gelu", [x], {}),
        "rotary": (
            "RotaryEmbedding",
            [floats(1, 2, 3, 4), np.zeros((1,), np.int64), floats(8, 2), floats(8, 2)],
            {},
        ),
        "simplified_layer_norm": ("SimplifiedLayerNormalization", [x, row], {"axis": -1, "epsilon": 1e-5}, ""),
        "simplified_layer_norm_defaults": ("SimplifiedLayerNormalization", [x * 1e-3, row], {}, ""),
    }
    return {name: (*case, "com.microsoft")[:4] for name, case in cases.items()}


def ml() -> dict:
    x = floats(5, 6)
    return {
        **{f"normalizer_{norm.lower()}": ("Normalizer", [x], {"norm": norm}, "ai.onnx.ml") for norm in ("MAX", "L1", "L2")},
        "array_feature_extractor": ("ArrayFeatureExtractor", [x, np.array([[0, 3]], np.int64)], {}, "ai.onnx.ml"),
        "linear_regressor": (
            "LinearRegressor",
            [x],
            {"coefficients": floats(12).tolist(), "intercepts": [0.5, -0.25], "targets": 2},
            "ai.onnx.ml",
        ),
        "scaler": ("Scaler", [x], {"offset": floats(6).tolist(), "scale": floats(6).tolist()}, "ai.onnx.ml"),
    }


def standard() -> dict:
    """Attributes of ONNX's operators that none of its cases sets: name: operator, opset, inputs, attributes."""
    image, axes = floats(2, 4, 9, 8), np.array([], np.int64)
    bytes_of = lambda *shape: RANDOM.integers(0, 255, shape).astype(np.uint8)  # noqa: E731
    row = [np.abs(floats(4)) + 0.5 for _ in range(4)]
    nan = np.float32([np.nan, 2.0, -1.0, 0.5, -0.0, np.nan, -3.0] * 3)
    cases = {
        "batch_norm_epsilon": ("BatchNormalization", 15, [image, *row], {"epsilon": 0.25}),
        "batch_norm_7": ("BatchNormalization", 7, [image, *row], {"epsilon": 0.25}),
        "conv_groups": ("Conv", 11, [image, floats(6, 2, 3, 2), floats(6)], {"group": 2, "dilations": [2, 1]}),
        "conv_depthwise": ("Conv", 11, [image, floats(4, 1, 3, 3)], {"group": 4, "strides": [2, 1], "pads": [1, 0, 0, 2]}),
        "conv_same_upper": ("Conv", 11, [image, floats(3, 4, 4, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        "conv_same_lower": ("Conv", 11, [image, floats(3, 4, 4, 3)], {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
        "conv_1d": ("Conv", 11, [floats(2, 4, 9), floats(8, 4, 3)], {"dilations": [3], "pads": [2, 1]}),
        "conv_transpose_groups": (
            "ConvTranspose",
            11,
            [image, floats(4, 3, 3, 2), floats(6)],
            {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
        ),
        "conv_integer_groups": (
            "ConvInteger",
            10,
            [bytes_of(1, 4, 7, 6), bytes_of(6, 2, 3, 2), np.uint8(7), np.uint8(120)],
            {"group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 1, 0, 1]},
        ),
        "gemm_scaled": ("Gemm", 13, [floats(4, 3), floats(5, 4), floats(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 3.0}),
        "gemm_column": ("Gemm", 13, [floats(3, 4), floats(4, 5), floats(3, 1)], {"beta": 0.5}),
        "group_norm_epsilon": ("GroupNormalization", 21, [image, row[0], row[1]], {"num_groups": 2, "epsilon": 0.25}),
        "layer_norm_axis": ("LayerNormalization", 17, [image, floats(9, 8), floats(9, 8)], {"axis": 2, "epsilon": 0.25}),
        "instance_norm_epsilon": ("InstanceNormalization", 7, [image, row[0], row[1]], {"epsilon": 0.25}),
        "lp_norm_1": ("LpNormalization", 7, [image], {"p": 1, "axis": 1}),
        "lrn": ("LRN", 13, [image], {"size": 3, "alpha": 0.5, "beta": 0.7, "bias": 2.0}),
        "mvn_axes": ("MeanVarianceNormalization", 13, [image], {"axes": [1, 3]}),
        "max_pool_ceil": ("MaxPool", 12, [image], {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1, "pads": [1, 0, 0, 1]}),
        "max_pool_dilated": ("MaxPool", 12, [image], {"kernel_shape": [3, 2], "dilations": [2, 2]}),
        "average_pool_pads": (
            "AveragePool",
            11,
            [image],
            {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        ),
        "average_pool_ceil": ("AveragePool", 11, [image], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        "one_hot_axis": ("OneHot", 11, [np.array([[0, 2], [-1, 5]], np.int64), np.int64(3), np.array([2.0, 5.0], np.float32)], {"axis": 1}),
        "top_k_unsorted": ("TopK", 11, [floats(6, 3), np.array([4], np.int64)], {"sorted": 1, "largest": 0, "axis": 0}),
        "scatter_axis": ("Scatter", 9, [floats(3, 5), np.array([[1, 3]], np.int64), floats(1, 2)], {"axis": 1}),
        "split_count": ("Split", 18, [floats(4, 7)], {"num_outputs": 3, "axis": 1}),
        "split_2": ("Split", 11, [floats(4, 6)], {"split": [1, 5], "axis": -1}),
        "resize_cubic": (
            "Resize",
            13,
            [image[:1, :1], np.float32([]), np.float32([1, 1, 1.6, 0.7])],
            {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        ),
        "resize_linear_corners": (
            "Resize",
            13,
            [image, np.float32([]), np.float32([1, 1, 2, 2.5])],
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        ),
        "resize_linear_pytorch": (
            "Resize",
            13,
            [image, np.float32([]), np.float32([1, 1, 0.4, 0.1])],
            {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        ),
        "resize_nearest_ceil": (
            "Resize",
            13,
            [image, np.float32([]), np.float32([1, 1, 1.7, 0.6])],
            {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"},
        ),
        "stft_onesided": (
            "STFT",
            17,
            [floats(1, 64, 1), np.int64(8), np.hanning(16).astype(np.float32), np.int64(16)],
            {"onesided": 1},
        ),
        "stft_both": (
            "STFT",
            17,
            [floats(2, 64, 1), np.int64(8), np.hanning(16).astype(np.float32), np.int64(16)],
            {"onesided": 0},
        ),
        "dft_axis": ("DFT", 17, [floats(2, 6, 5, 1)], {"axis": 2}),
        "softmax_11": ("Softmax", 11, [floats(2, 3, 4)], {}),
        "log_softmax_11": ("LogSoftmax", 11, [floats(2, 3, 4)], {"axis": 2}),
        "hardmax": ("Hardmax", 13, [floats(2, 3, 4)], {"axis": 1}),
        "elu": ("Elu", 7, [floats(9)], {"alpha": 0.3}),
        "selu": ("Selu", 7, [floats(9)], {"alpha": 0.3, "gamma": 2.0}),
        "hard_sigmoid": ("HardSigmoid", 7, [floats(9) * 4], {"alpha": 0.3, "beta": 0.1}),
        "thresholded_relu": ("ThresholdedRelu", 10, [floats(9)], {"alpha": 0.4}),
        "shrink": ("Shrink", 9, [floats(9)], {"lambd": 0.3, "bias": 0.2}),
        "gelu_tanh": ("Gelu", 20, [floats(9)], {"approximate": "tanh"}),
        "cumsum_both": ("CumSum", 14, [floats(3, 4), np.int64(-1)], {"exclusive": 1, "reverse": 1}),
        "arg_max_last": ("ArgMax", 13, [np.float32([[1, 3, 3], [2, 2, 0]])], {"axis": 1, "select_last_index": 1, "keepdims": 0}),
        "depth_to_space_crd": ("DepthToSpace", 13, [floats(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
        "einsum_trace": ("Einsum", 12, [floats(2, 3, 4), floats(2, 4, 5)], {"equation": "...ij,...jk->...ki"}),
        "mod_float": ("Mod", 13, [floats(9) * 4, floats(9)], {"fmod": 1}),
        "trilu_lower": ("Trilu", 14, [floats(2, 4, 5), np.int64(-1)], {"upper": 0}),
        "pad_negative": ("Pad", 13, [floats(3, 5), np.array([0, -1, 2, -2], np.int64), np.float32(7)], {}),
        "pad_reflect": ("Pad", 13, [floats(3, 5), np.array([1, 2, 2, 3], np.int64)], {"mode": "reflect"}),
        "pad_edge": ("Pad", 13, [floats(3, 5), np.array([1, 2, 2, 3], np.int64)], {"mode": "edge"}),
        "pad_2": ("Pad", 7, [floats(3, 5)], {"pads": [1, 0, 0, 2], "value": 3.0}),
        "flatten_0": ("Flatten", 13, [floats(2, 3, 4)], {"axis": 0}),
        "hann": ("HannWindow", 17, [np.int64(9)], {"periodic": 0}),
        "clip_6": ("Clip", 7, [floats(9)], {"min": -0.25, "max": 0.5}),
        "max_nan": ("Max", 13, [nan, nan[::-1]], {}),
        "min_nan": ("Min", 13, [nan, nan[::-1]], {}),
        "relu_nan": ("Relu", 14, [nan], {}),
        "clip_nan": ("Clip", 13, [nan, np.float32(-1), np.float32(1)], {}),
        "clip_nan_7": ("Clip", 7, [nan], {"min": -1.0, "max": 1.0}),
        "celu_nan": ("Celu", 12, [nan], {"alpha": 0.5}),
        "hard_sigmoid_nan": ("HardSigmoid", 7, [nan], {}),
        "upsample_9": ("Upsample", 9, [image, np.float32([1, 1, 2, 3])], {"mode": "nearest"}),
        "dequantize_axis": ("DequantizeLinear", 13, [bytes_of(2, 3, 4), np.abs(floats(4)), bytes_of(4)], {"axis": -1}),
        "quantize_axis": ("QuantizeLinear", 13, [floats(3, 2, 4) * 3, np.abs(floats(3)) + 0.1, bytes_of(3)], {"axis": 0}),
    }
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum"):
        x = np.abs(image[0]) + 0.1
        cases[f"reduce_{name.lower()}_none"] = (f"Reduce{name}", 18, [x, axes], {"noop_with_empty_axes": 1})
        cases[f"reduce_{name.lower()}_all"] = (f"Reduce{name}", 18, [x, axes], {"keepdims": 0})
        cases[f"reduce_{name.lower()}_11"] = (f"Reduce{name}", 11, [x], {"axes": [-1, 0], "keepdims": 0})
    return cases


def of_onnxruntime(folder: Path) -> int:
    cases = {**microsoft(), **ml()}
    for name, (operator, inputs, attributes, domain) in cases.items():
        names = [f"x{at}" for at in range(len(inputs))]
        node = helper.make_node(operator, names, ["y"], name="node", domain=domain, **attributes)
        answered(folder / name, [node], dict(zip(names, inputs)), [])
    of_onnx = standard()
    for name, (operator, opset, inputs, attributes) in of_onnx.items():
        names = [f"x{at}" for at in range(len(inputs))]
        outputs = ["y", "y1", "y2"][: {"TopK": 2, "Split": attributes.get("num_outputs", 2)}.get(operator, 1)]
        node = helper.make_node(operator, names, outputs, name="node", **attributes)
        try:
            answered(folder / f"{operator}_{name}", [node], dict(zip(names, inputs)), [], opset, outputs)
        except Exception as why:  # ONNX Runtime has no kernel.
            print(f"{name}: {str(why)[:100]}")
    between = quantised()
    for name, (node, constants) in between.items():
        x = {"x": floats(2, 3, 4)}
        for kind, zero in (("uint8", np.uint8(100)), ("int8", np.int8(-3))):
            answered(folder / f"quantised_{name}_{kind}", around(node), x, [*constants, *scales(zero)])
    return len(cases) + 2 * len(between) + len(of_onnx)


def quantised() -> dict:
    """Operators from `d` to `m`, which stand between integers, and their constants."""

    def node(operator: str, *more: str, **attributes: object):
        return helper.make_node(operator, ["d", *more], ["m"], name="node", **attributes)

    axis = numpy_helper.from_array(np.int64(1), "axis")
    scale = numpy_helper.from_array(floats(4), "scale")
    return {
        "softmax": (node("Softmax", axis=-1), []),
        "softmax_first": (node("Softmax", axis=0), []),
        "log_softmax": (node("LogSoftmax", axis=-1), []),
        "cumsum": (node("CumSum", "axis"), [axis]),
        "layer_norm": (node("LayerNormalization", "scale", axis=-1), [scale]),
        "l2": (node("LpNormalization", axis=-1), []),
        "sigmoid": (node("Sigmoid"), []),
        "relu": (node("Relu"), []),
    }


def around(node: onnx.NodeProto) -> list:
    return [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node,
        helper.make_node("QuantizeLinear", ["m", "t", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "t", "z"], ["y"]),
    ]


def scales(zero: np.generic) -> list:
    values = {"s": np.float32(0.04), "t": np.float32(0.02), "z": zero}
    return [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]


def answered(folder: Path, nodes: list, inputs: dict, constants: list, opset: int = 17, outputs: tuple = ("y",)) -> None:
    """Writes a case with ONNX Runtime's answer."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    ports = [
        helper.make_tensor_value_info(port, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for port, value in inputs.items()
    ]
    kinds = {"TopK": [TensorProto.FLOAT, TensorProto.INT64], "ArgMax": [TensorProto.INT64], "ConvInteger": [TensorProto.INT32]}
    kinds["QuantizeLinear"] = [TensorProto.UINT8]
    kinds = kinds.get(nodes[-1].op_type, [TensorProto.FLOAT] * len(outputs))
    out = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, kinds)]
    versions = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    graph = helper.make_graph(nodes, folder.name, ports, out, constants)
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    write(folder, model, [(list(inputs.values()), session.run(None, inputs))])


if __name__ == "__main__":
    kind, folder = sys.argv[1:]
    print({"onnx": of_onnx, "onnxruntime": of_onnxruntime}[kind](Path(folder)), "cases")
