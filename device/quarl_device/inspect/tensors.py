"""Tensors and operators of a file as plain JSON values, and what they add up to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarl_device.flatbuffer import Graph, Operator, Tensor

_BITS: Mapping[str, int] = {
    "float64": 64, "int64": 64, "float32": 32, "int32": 32, "float16": 16, "int16": 16, "int8": 8, "uint8": 8,
    "bool": 8, "type-17": 4, "type-19": 2,
}  # fmt: skip
_SHOWN_TYPES: Mapping[str, str] = {"type-17": "int4", "type-19": "int2"}
_GRID: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
_ACTIVATIONS: Mapping[int, str] = {0: "none", 1: "relu", 2: "relu_n1_to_1", 3: "relu6", 4: "tanh", 5: "sign_bit"}
# Slot of the fused activation in an operator's options.
_FUSED_SLOT: Mapping[str, int] = {
    "ADD": 0, "SUB": 0, "MUL": 0, "FULLY_CONNECTED": 0, "CONCATENATION": 1, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 4,
    "AVERAGE_POOL_2D": 5, "MAX_POOL_2D": 5,
}  # fmt: skip
WEIGHTED = ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D")


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a file holds and costs.

    Attributes:
        parameters: constant numbers that are multiplied or added, biases included.
        parameter_bytes: their bytes.
        multiply_adds: of the dense and convolution operators, for one call.
        peak_activation_bytes: most that is alive at once when operators run in file order; a lower bound of the arena.
    """

    parameters: int
    parameter_bytes: int
    multiply_adds: int
    peak_activation_bytes: int


def shown(text: str, limit: int = 60) -> str:
    """Return a name of a foreign file for a terminal: no control characters, at most `limit` long."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def type_name(tensor: Tensor) -> str:
    """Return the tensor's type as people call it."""
    return _SHOWN_TYPES.get(tensor.dtype, tensor.dtype)


def fused_activation(operator: Operator) -> str:
    """Return the activation that the operator applies itself, "none" for most."""
    slot = _FUSED_SLOT.get(operator.name)
    if slot is None or slot >= len(operator.options):
        return "none"
    value = operator.options[slot]
    return "none" if value is None else _ACTIVATIONS.get(int(value), f"activation-{value}")  # type: ignore[arg-type]


def grid_range(tensor: Tensor) -> tuple[float, float] | None:
    """Return the smallest and largest value that a per-tensor quantized tensor can hold, `None` for any other."""
    quantization = tensor.quantization
    if quantization is None or quantization.scales.size != 1 or tensor.dtype not in _GRID:
        return None
    if quantization.zero_points.size != 1:
        return None
    low, high = _GRID[tensor.dtype]
    scale, zero = float(quantization.scales[0]), int(quantization.zero_points[0])
    return scale * (low - zero), scale * (high - zero)


def describe_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return one tensor as JSON values."""
    return {
        "index": tensor.index,
        "name": tensor.name,
        "shape": list(tensor.shape),
        "shape_signature": list(tensor.shape_signature),
        "dtype": type_name(tensor),
        "constant_bytes": tensor.size,
        "quantization": _describe_quantization(tensor),
    }


def _describe_quantization(tensor: Tensor) -> dict[str, Any] | None:
    quantization = tensor.quantization
    if quantization is None:
        return None
    scales = quantization.scales
    if scales.size != 1:
        return {
            "channels": int(scales.size),
            "axis": quantization.axis,
            "scale_min": float(scales.min()),
            "scale_max": float(scales.max()),
        }
    held = grid_range(tensor)
    zero = int(quantization.zero_points[0]) if quantization.zero_points.size else 0
    return {"scale": float(scales[0]), "zero_point": zero, "range": list(held) if held else None}


def describe_operator(operator: Operator, graph: Graph) -> dict[str, Any]:
    """Return one operator as JSON values, with the types of what it reads and writes."""
    return {
        "index": operator.index,
        "name": operator.name,
        "version": operator.version,
        "activation": fused_activation(operator),
        "inputs": list(operator.inputs),
        "outputs": list(operator.outputs),
        "types": [type_name(graph.tensors[n]) if n >= 0 else "" for n in operator.inputs],
        "output_types": [type_name(graph.tensors[n]) for n in operator.outputs],
        "output_shapes": [list(graph.tensors[n].shape) for n in operator.outputs],
        "multiply_adds": multiply_adds(operator, graph),
    }


def multiply_adds(operator: Operator, graph: Graph) -> int:
    """Return how many multiplications with weights one call of the operator makes."""
    if operator.name not in WEIGHTED or len(operator.inputs) < 2 or not operator.outputs or operator.inputs[1] < 0:
        return 0
    weights, result = graph.tensors[operator.inputs[1]].shape, graph.tensors[operator.outputs[0]].shape
    if not weights or not result:
        return 0
    # A depthwise kernel is [1, height, width, channels], the others have their outputs first.
    each = math.prod(weights[:-1]) if operator.name == "DEPTHWISE_CONV_2D" else math.prod(weights[1:])
    return max(0, each * math.prod(result))


def scheme_of(graph: Graph) -> str:
    """Return the quantization scheme by the weighted operators: int8, int16x8, dynamic, float16, float32 or mixed."""
    kinds = {_kind(operator, graph) for operator in graph.operators if operator.name in WEIGHTED}
    return next(iter(kinds)) if len(kinds) == 1 else ("mixed" if kinds else "none")


def _kind(operator: Operator, graph: Graph) -> str:
    if len(operator.inputs) < 2 or min(operator.inputs[:2]) < 0:
        return "other"
    source, weights = (graph.tensors[n] for n in operator.inputs[:2])
    if source.dtype == "float32" and weights.dtype == "float32":
        return "float32" if weights.size else "float16" if _from_half(weights, graph) else "other"
    names = {("float32", "int8"): "dynamic", ("int16", "int8"): "int16x8", ("int8", "int8"): "int8"}
    return names.get((source.dtype, weights.dtype), f"{type_name(source)}x{type_name(weights)}")


def _from_half(weights: Tensor, graph: Graph) -> bool:
    makers = (op for op in graph.operators if op.name == "DEQUANTIZE" and weights.index in op.outputs)
    return any(graph.tensors[n].dtype == "float16" for op in makers for n in op.inputs if n >= 0)


def is_parameter(tensor: Tensor) -> bool:
    """Return whether a constant takes part in the arithmetic (axes and shapes do not)."""
    return tensor.size > 0 and (tensor.quantization is not None or tensor.dtype not in ("int32", "int64", "bool"))


def measure(graph: Graph) -> Size:
    """Return what the file holds and costs."""
    parameters = [tensor for tensor in graph.tensors if is_parameter(tensor)]
    return Size(
        parameters=sum(math.prod(tensor.shape) for tensor in parameters),
        parameter_bytes=sum({tensor.buffer: tensor.size for tensor in parameters}.values()),
        multiply_adds=sum(multiply_adds(operator, graph) for operator in graph.operators),
        peak_activation_bytes=_peak(graph),
    )


def _peak(graph: Graph) -> int:
    last = {n: operator.index for operator in graph.operators for n in operator.inputs if n >= 0}
    last |= dict.fromkeys(graph.outputs, len(graph.operators))
    alive = set(graph.inputs)
    peak = 0
    for operator in graph.operators:
        alive.update(operator.outputs)
        peak = max(peak, sum(_activation_bytes(graph.tensors[n]) for n in alive))
        alive = {n for n in alive if last.get(n, -1) > operator.index}
    return peak


def _activation_bytes(tensor: Tensor) -> int:
    return 0 if tensor.size else max(0, math.prod(tensor.shape)) * _BITS.get(tensor.dtype, 32) // 8
