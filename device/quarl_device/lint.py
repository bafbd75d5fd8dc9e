"""Whether a graph is safe to hand to the interpreter, which checks little itself and dies where it does not.

`read_graph` has shown that every offset lies in the file. This lint shows that the parts fit each other: constants
fill their shapes, each operator has the inputs, types and shapes that its kernel takes for granted, and the declared
shapes are those that the runtime will compute, so that no file makes it allocate more than the caps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import Graph, Operator, Tensor

MAX_TENSOR_ELEMENTS = 16 * 1024 * 1024
MAX_ACTIVATION_BYTES = 256 * 1024 * 1024
MAX_WINDOW = 1024
# XNNPACK dies on scales that are not normal numbers.
MIN_SCALE = 1e-12
MAX_SCALE = 1e12
# Kernels keep the ratio of input to output scales as a multiplier with a shift, and some abort at this ratio.
MAX_RESCALE = 256.0
MAX_FACTOR = 1000.0

_ITEM_BYTES: Mapping[str, int] = {"float32": 4, "int32": 4, "int64": 8, "int8": 1, "uint8": 1, "int16": 2, "bool": 1}
_VALUES = ("float32", "int8", "uint8", "int16")
_Rule = Callable[[Operator, list[Tensor | None], Graph], "tuple[int, ...] | None"]


class _Misfit(Exception):  # noqa: N818 - becomes a ModelFileError that names the operator
    """Why an operator does not fit."""


def check_runnable(graph: Graph) -> None:
    """Refuse a graph that an interpreter could crash on, or that needs more memory than any policy of ours.

    Raises:
        ModelFileError: naming the tensor or operator and what does not fit.
    """
    for tensor in graph.tensors:
        _check_tensor(tensor)
    activations = sum(_bytes(tensor) for tensor in graph.tensors if not tensor.size)
    if activations > MAX_ACTIVATION_BYTES:
        raise ModelFileError(
            f"the model needs {activations:,} bytes of activations, allowed are {MAX_ACTIVATION_BYTES:,}"
        )
    known = {tensor.index for tensor in graph.tensors if tensor.size}
    for index in graph.inputs:
        if index in known:
            raise ModelFileError(f"input {graph.tensors[index].name!r} is a constant")
        known.add(index)
    for operator in graph.operators:
        _check_order(operator, known)
        _check_operator(operator, graph)
        known.update(operator.outputs)
    for index in graph.outputs:
        if index not in known:
            raise ModelFileError(f"output {graph.tensors[index].name!r} is computed by no operator")


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]


def _check_tensor(tensor: Tensor) -> None:
    where = f"tensor {tensor.index} ({tensor.name[:80]!r})"
    if not tensor.plain:
        raise ModelFileError(f"{where} is sparse, variable, external or custom-quantized, which policies are not")
    if tensor.dtype not in _ITEM_BYTES:
        raise ModelFileError(f"{where} has a type that policies do not use: {tensor.dtype}")
    if any(n < 1 for n in tensor.shape) or math.prod(tensor.shape) > MAX_TENSOR_ELEMENTS:
        raise ModelFileError(f"{where} has shape {tensor.shape}, allowed are 1 to {MAX_TENSOR_ELEMENTS:,} elements")
    if len(tensor.shape_signature) != len(tensor.shape):
        raise ModelFileError(f"{where} has shape {tensor.shape} but signature {tensor.shape_signature}")
    if any(s not in (-1, n) for s, n in zip(tensor.shape_signature, tensor.shape, strict=True)):
        raise ModelFileError(f"{where} has shape {tensor.shape} but signature {tensor.shape_signature}")
    if tensor.size and tensor.size != _bytes(tensor):
        raise ModelFileError(f"{where} holds {tensor.size} bytes, its shape and type need {_bytes(tensor)}")
    if tensor.start % min(4, _ITEM_BYTES[tensor.dtype]):
        raise ModelFileError(f"{where} has misaligned constants at byte {tensor.start}")
    _check_quantization(tensor, where)


def _check_quantization(tensor: Tensor, where: str) -> None:
    quantization = tensor.quantization
    if quantization is None:
        if tensor.dtype in ("int8", "int16", "uint8"):
            raise ModelFileError(f"{where} is {tensor.dtype} without a scale")
        return
    channels = quantization.scales.size
    if channels != quantization.zero_points.size:
        raise ModelFileError(f"{where} has {channels} scales but {quantization.zero_points.size} zero points")
    if channels != 1 and not (
        0 <= quantization.axis < len(tensor.shape) and tensor.shape[quantization.axis] == channels
    ):
        raise ModelFileError(f"{where} has {channels} scales on axis {quantization.axis} of shape {tensor.shape}")
    # Written so that NaN fails too. A bias has the product of two scales.
    low_scale = MIN_SCALE**2 if tensor.dtype in ("int32", "int64") else MIN_SCALE
    if not ((quantization.scales >= low_scale) & (quantization.scales <= MAX_SCALE)).all():
        raise ModelFileError(f"{where} has a scale outside of {low_scale:g}..{MAX_SCALE:g}")
    low, high = {"uint8": (0, 255), "int8": (-128, 127)}.get(tensor.dtype, (0, 0))
    if quantization.zero_points.min() < low or quantization.zero_points.max() > high:
        raise ModelFileError(f"{where} has a zero point outside of {low}..{high}")


def _check_order(operator: Operator, known: set[int]) -> None:
    for index in operator.inputs:
        if index >= 0 and index not in known:
            raise ModelFileError(
                f"operator {operator.index} ({operator.name}) reads tensor {index} before it is computed"
            )
    if len(operator.outputs) != 1 or operator.outputs[0] in known:
        raise ModelFileError(f"operator {operator.index} ({operator.name}) must compute one new tensor")


def _check_operator(operator: Operator, graph: Graph) -> None:
    where = f"operator {operator.index} ({operator.name})"
    kind = _KINDS.get(operator.name)
    if kind is None or not operator.plain:
        raise ModelFileError(f"{where} is not among the operators that policies use: {', '.join(sorted(_KINDS))}")
    inputs = [graph.tensors[n] if n >= 0 else None for n in operator.inputs]
    output = graph.tensors[operator.outputs[0]]
    if operator.options_type not in (0, kind.options_type):
        raise ModelFileError(f"{where} has options of another operator")
    if not kind.least <= len(inputs) <= kind.most or any(tensor is None for tensor in inputs[: kind.least]):
        raise ModelFileError(f"{where} has {len(inputs)} inputs, expected {kind.least} to {kind.most}")
    try:
        shape = kind.rule(operator, inputs, graph)
        if shape != output.shape:
            raise _Misfit(f"it gives shape {shape}, the file says {output.shape}")
        kind.check_types(inputs, output)
    except _Misfit as misfit:
        raise ModelFileError(f"{where} does not fit: {misfit}") from None


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What one operator takes: its options, how many inputs, and the shape that it computes."""

    rule: _Rule
    options_type: int = 0
    least: int = 1
    most: int = 1
    values: int = 1
    """How many of the first inputs are values of the output's type; 0: all."""

    casts: bool = False

    def check_types(self, inputs: list[Tensor | None], output: Tensor) -> None:
        """Refuse mixed types, which kernels reinterpret or abort on."""
        if output.dtype not in _VALUES:
            raise _Misfit(f"its output is {output.dtype}")
        for tensor in inputs[: self.values or None]:
            if tensor is None or tensor.dtype not in _VALUES:
                raise _Misfit("an input is not a number array")
            if not self.casts and tensor.dtype != output.dtype:
                raise _Misfit(f"an input is {tensor.dtype}, its output {output.dtype}")
        self._check_scales([_need(tensor) for tensor in inputs if tensor is not None], output)

    def _check_scales(self, inputs: list[Tensor], output: Tensor) -> None:
        scales = []
        for position, tensor in enumerate(inputs):
            value = not self.values or position < self.values
            if tensor.dtype not in ("int8", "uint8", "int16") or tensor.quantization is None:
                continue
            if value and tensor.quantization.scales.size != 1:
                raise _Misfit("a value tensor has more than one scale")
            scales.append(float(tensor.quantization.scales.max()))
        if output.quantization is None or output.dtype == "float32" or not scales:
            return
        if output.quantization.scales.size != 1:
            raise _Misfit("its output has more than one scale")
        # Two scales multiply (weights, MUL) or stand beside each other (ADD); more only stand (CONCATENATION).
        largest = max(*scales, math.prod(scales)) if len(scales) == 2 else max(scales)
        rescale = largest / float(output.quantization.scales[0])
        if rescale >= MAX_RESCALE:
            raise _Misfit(f"its input scales are {rescale:g} times its output's, allowed is less than {MAX_RESCALE:g}")


def _need(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise _Misfit("an input is missing")
    return tensor


def _number(operator: Operator, slot: int, default: int) -> int:
    value = operator.options[slot] if slot < len(operator.options) else None
    return default if value is None else int(value)  # type: ignore[arg-type]


def _same(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    # The slope of LEAKY_RELU and the beta of SOFTMAX are multiplied into scales.
    if any(isinstance(value, float) and not abs(value) <= MAX_FACTOR for value in operator.options):
        raise _Misfit(f"its factor {operator.options} is not in -{MAX_FACTOR:g}..{MAX_FACTOR:g}")
    return _need(inputs[0]).shape


def _softmax(operator: Operator, inputs: list[Tensor | None], graph: Graph) -> tuple[int, ...]:
    shape = _same(operator, inputs, graph)
    if not 1 <= len(shape) <= 4:
        raise _Misfit(f"its input has shape {shape}")
    return shape


def _broadcast(_: Operator, inputs: list[Tensor | None], __: Graph) -> tuple[int, ...]:
    shapes = [_need(tensor).shape for tensor in inputs]
    if any(len(shape) > 4 for shape in shapes):
        raise _Misfit(f"its inputs have more than 4 dimensions: {shapes}")
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise _Misfit(f"its inputs have shapes {shapes}") from None


def _weights(inputs: list[Tensor | None], rank: int, axis: int) -> Tensor:
    """Return constant weights after checking their rank, types and bias against their output channels."""
    source, weights = _need(inputs[0]), _need(inputs[1])
    if len(inputs) != 3:
        raise _Misfit(f"it has {len(inputs)} inputs, expected input, weights and bias (-1 for none)")
    bias = inputs[2]
    if len(weights.shape) != rank or not weights.size:
        raise _Misfit(f"its weights have shape {weights.shape}" + ("" if weights.size else " and are not constant"))
    if (source.dtype, weights.dtype) not in {
        ("float32", "float32"),
        ("int8", "int8"),
        ("uint8", "uint8"),
        ("int16", "int8"),
    }:
        raise _Misfit(f"its input is {source.dtype}, its weights {weights.dtype}")
    if weights.quantization is not None and weights.quantization.scales.size != 1 and weights.quantization.axis != axis:
        raise _Misfit(f"its weights have scales on axis {weights.quantization.axis}, expected {axis}")
    if bias is not None:
        wanted = {"float32": "float32", "int16": "int64"}.get(source.dtype, "int32")
        if bias.dtype != wanted or bias.shape != (weights.shape[axis],) or not bias.size:
            raise _Misfit(f"its bias is {bias.dtype} {bias.shape}, expected constant {wanted} ({weights.shape[axis]},)")
    return weights


def _dense(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    source, (units, width) = _need(inputs[0]).shape, _weights(inputs, 2, 0).shape
    if _number(operator, 1, 0) != 0:
        raise _Misfit("its weights are shuffled")
    if _number(operator, 2, 0):
        if not source or source[-1] != width:
            raise _Misfit(f"its input has shape {source}, its weights {(units, width)}")
        return (*source[:-1], units)
    # A batch that is not the first dimension would be read across rows.
    if not source or math.prod(source[1:]) != width:
        raise _Misfit(f"its input has shape {source}, its weights {(units, width)}")
    return (source[0], units)


def _window(size: int, window: int, stride: int, dilation: int, padding: int) -> int:
    if not (1 <= window <= MAX_WINDOW and 1 <= stride <= MAX_WINDOW and 1 <= dilation <= MAX_WINDOW):
        raise _Misfit(f"its window {window}, stride {stride} or dilation {dilation} is not in 1..{MAX_WINDOW}")
    reach = (window - 1) * dilation + 1
    length = {0: -(-size // stride), 1: -(-(size - reach + 1) // stride)}.get(padding, 0)
    if length < 1:
        raise _Misfit(f"its window of {reach} on {size} elements with padding {padding} leaves nothing")
    return length


def _image(inputs: list[Tensor | None]) -> tuple[int, ...]:
    shape = _need(inputs[0]).shape
    if len(shape) != 4:
        raise _Misfit(f"its input has shape {shape}, expected [batch, height, width, channels]")
    return shape


def _conv(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    batch, height, width, channels = _image(inputs)
    out, rows, columns, depth = _weights(inputs, 4, 0).shape
    if depth != channels:
        raise _Misfit(f"its input has {channels} channels, its weights {depth}")
    padding = _number(operator, 0, 0)
    return (
        batch,
        _window(height, rows, _number(operator, 2, 0), _number(operator, 5, 1), padding),
        _window(width, columns, _number(operator, 1, 0), _number(operator, 4, 1), padding),
        out,
    )


def _depthwise(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    batch, height, width, channels = _image(inputs)
    one, rows, columns, out = _weights(inputs, 4, 3).shape
    if one != 1 or out != channels * _number(operator, 3, 0):
        raise _Misfit(f"its weights give {out} channels from {channels} times {_number(operator, 3, 0)}")
    padding = _number(operator, 0, 0)
    return (
        batch,
        _window(height, rows, _number(operator, 2, 0), _number(operator, 6, 1), padding),
        _window(width, columns, _number(operator, 1, 0), _number(operator, 5, 1), padding),
        out,
    )


def _pool(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    batch, height, width, channels = _image(inputs)
    padding = _number(operator, 0, 0)
    return (
        batch,
        _window(height, _number(operator, 4, 0), _number(operator, 2, 0), 1, padding),
        _window(width, _number(operator, 3, 0), _number(operator, 1, 0), 1, padding),
        channels,
    )


def _concatenation(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    shapes = [_need(tensor).shape for tensor in inputs]
    axis = _number(operator, 0, 0)
    rank = len(shapes[0])
    if not -rank <= axis < rank or any(len(shape) != rank for shape in shapes) or rank > 5:
        raise _Misfit(f"it joins shapes {shapes} on axis {axis}")
    axis %= rank
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1:
        raise _Misfit(f"it joins shapes {shapes} on axis {axis}")
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _constant_integers(tensor: Tensor, graph: Graph) -> list[int]:
    if tensor.dtype != "int32" or not tensor.size or len(tensor.shape) > 1:
        raise _Misfit(f"its axes or shape are {tensor.dtype} {tensor.shape}, expected constant int32")
    return [int(n) for n in graph.constant(tensor).ravel()]


def _reshape(operator: Operator, inputs: list[Tensor | None], graph: Graph) -> tuple[int, ...]:
    source = _need(inputs[0])
    if len(inputs) == 2:
        shape = _constant_integers(_need(inputs[1]), graph)
    else:
        value = operator.options[0] if operator.options else None
        shape = list(value) if isinstance(value, tuple) else []
    total, given = math.prod(source.shape), math.prod(n for n in shape if n != -1)
    if any(n < -1 or n == 0 for n in shape) or shape.count(-1) > 1 or not shape or len(shape) > 8 or total % given:
        raise _Misfit(f"it makes {shape} of {source.shape}")
    shape = [total // given if n == -1 else n for n in shape]
    if math.prod(shape) != total:
        raise _Misfit(f"it makes {shape} of {source.shape}")
    return tuple(shape)


def _reduce(operator: Operator, inputs: list[Tensor | None], graph: Graph) -> tuple[int, ...]:
    shape, axes = _need(inputs[0]).shape, _constant_integers(_need(inputs[1]), graph)
    if not axes or len(axes) > len(shape) or any(not -len(shape) <= axis < len(shape) for axis in axes):
        raise _Misfit(f"it reduces axes {axes} of {shape}")
    gone = {axis % len(shape) for axis in axes}
    kept = (1 if n in gone else size for n, size in enumerate(shape))
    return tuple(kept) if _number(operator, 0, 0) else tuple(s for n, s in enumerate(shape) if n not in gone)


_KINDS: Mapping[str, _Kind] = {
    "ADD": _Kind(rule=_broadcast, options_type=11, least=2, most=2, values=0),
    "SUB": _Kind(rule=_broadcast, options_type=28, least=2, most=2, values=0),
    "MUL": _Kind(rule=_broadcast, options_type=21, least=2, most=2, values=0),
    "MAXIMUM": _Kind(rule=_broadcast, options_type=39, least=2, most=2, values=0),
    "MINIMUM": _Kind(rule=_broadcast, options_type=39, least=2, most=2, values=0),
    "FULLY_CONNECTED": _Kind(rule=_dense, options_type=8, least=2, most=3),
    "CONV_2D": _Kind(rule=_conv, options_type=1, least=3, most=3),
    "DEPTHWISE_CONV_2D": _Kind(rule=_depthwise, options_type=2, least=3, most=3),
    "MAX_POOL_2D": _Kind(rule=_pool, options_type=5),
    "AVERAGE_POOL_2D": _Kind(rule=_pool, options_type=5),
    "CONCATENATION": _Kind(rule=_concatenation, options_type=10, least=1, most=64, values=0),
    "RESHAPE": _Kind(rule=_reshape, options_type=17, least=1, most=2),
    "MEAN": _Kind(rule=_reduce, options_type=27, least=2, most=2),
    "SUM": _Kind(rule=_reduce, options_type=27, least=2, most=2),
    "SOFTMAX": _Kind(rule=_softmax, options_type=9),
    "LOG_SOFTMAX": _Kind(rule=_softmax, options_type=36),
    "TANH": _Kind(rule=_same),
    "LOGISTIC": _Kind(rule=_same),
    "RELU": _Kind(rule=_same),
    "RELU6": _Kind(rule=_same),
    "LEAKY_RELU": _Kind(rule=_same, options_type=75),
    "GELU": _Kind(rule=_same, options_type=116),
    "QUANTIZE": _Kind(rule=_same, options_type=89, casts=True),
    "DEQUANTIZE": _Kind(rule=_same, options_type=38, casts=True),
}
