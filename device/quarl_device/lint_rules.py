"""What each operator that policies use takes, and the shape that its kernel will compute; see `lint`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from quarl_device.flatbuffer import Graph, Operator, Tensor

MAX_WINDOW = 1024
# Kernels keep the ratio of input to output scales as a multiplier with a shift, and some abort at this ratio.
MAX_RESCALE = 256.0
MAX_FACTOR = 1000.0

_INTEGERS = ("int8", "uint8", "int16")
_VALUES = ("float32", *_INTEGERS)
_Rule = Callable[[Operator, list[Tensor | None], Graph], "tuple[int, ...] | None"]


class Misfit(Exception):
    """Why an operator does not fit."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What one operator takes: its options, how many inputs, and the shape that it computes."""

    rule: _Rule
    options_type: int = 0
    least: int = 1
    most: int = 1
    values: int = 1
    """How many of the first inputs are values of the output's type; 0: all."""

    takes: tuple[str, ...] = _VALUES
    """Types of its values."""

    gives: tuple[str, ...] = ()
    """Types of its output; empty: the type of its values."""

    def check_types(self, inputs: list[Tensor | None], output: Tensor) -> None:
        """Refuse types that its kernel lacks, and mixed ones, which kernels reinterpret or abort on."""
        if output.dtype not in (self.gives or self.takes):
            raise Misfit(f"its output is {output.dtype}")
        for tensor in inputs[: self.values or None]:
            if tensor is None or tensor.dtype not in self.takes:
                raise Misfit(f"an input is {'missing' if tensor is None else tensor.dtype}")
            if not self.gives and tensor.dtype != output.dtype:
                raise Misfit(f"an input is {tensor.dtype}, its output {output.dtype}")
        self._check_scales([_need(tensor) for tensor in inputs if tensor is not None], output)

    def _check_scales(self, inputs: list[Tensor], output: Tensor) -> None:
        scales = []
        for position, tensor in enumerate(inputs):
            value = not self.values or position < self.values
            if tensor.dtype not in ("int8", "uint8", "int16") or tensor.quantization is None:
                continue
            if value and tensor.quantization.scales.size != 1:
                raise Misfit("a value tensor has more than one scale")
            scales.append(float(tensor.quantization.scales.max()))
        if output.quantization is None or output.dtype == "float32" or not scales:
            return
        if output.quantization.scales.size != 1:
            raise Misfit("its output has more than one scale")
        # The scales of values and weights multiply, and only their product meets the output's: a head whose actions
        # hardly differ yet has a tiny output scale. Others multiply (MUL) or stand side by side (ADD, CONCATENATION).
        weighed = self.values == 1 and len(scales) == 2
        largest = math.prod(scales) if weighed else max(*scales, math.prod(scales)) if len(scales) == 2 else max(scales)
        rescale = largest / float(output.quantization.scales[0])
        if rescale >= MAX_RESCALE:
            raise Misfit(f"its input scales are {rescale:g} times its output's, allowed is less than {MAX_RESCALE:g}")


def _need(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise Misfit("an input is missing")
    return tensor


def _number(operator: Operator, slot: int, default: int) -> int:
    value = operator.options[slot] if slot < len(operator.options) else None
    return default if value is None else int(value)  # type: ignore[arg-type]


def _same(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    # The slope of LEAKY_RELU and the beta of SOFTMAX are multiplied into scales.
    if any(isinstance(value, float) and not abs(value) <= MAX_FACTOR for value in operator.options):
        raise Misfit(f"its factor {operator.options} is not in -{MAX_FACTOR:g}..{MAX_FACTOR:g}")
    return _need(inputs[0]).shape


def _softmax(operator: Operator, inputs: list[Tensor | None], graph: Graph) -> tuple[int, ...]:
    shape = _same(operator, inputs, graph)
    if not 1 <= len(shape) <= 4:
        raise Misfit(f"its input has shape {shape}")
    return shape


def _broadcast(_: Operator, inputs: list[Tensor | None], __: Graph) -> tuple[int, ...]:
    shapes = [_need(tensor).shape for tensor in inputs]
    if any(len(shape) > 4 for shape in shapes):
        raise Misfit(f"its inputs have more than 4 dimensions: {shapes}")
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise Misfit(f"its inputs have shapes {shapes}") from None


def _weights(inputs: list[Tensor | None], rank: int, axis: int) -> Tensor:
    """Return constant weights after checking their rank, types and bias against their output channels."""
    source, weights = _need(inputs[0]), _need(inputs[1])
    if len(inputs) != 3:
        raise Misfit(f"it has {len(inputs)} inputs, expected input, weights and bias (-1 for none)")
    bias = inputs[2]
    if len(weights.shape) != rank or not weights.size:
        raise Misfit(f"its weights have shape {weights.shape}" + ("" if weights.size else " and are not constant"))
    if (source.dtype, weights.dtype) not in {
        ("float32", "float32"),
        ("float32", "int8"),  # hybrid: the kernel quantizes its input itself
        ("int8", "int8"),
        ("uint8", "uint8"),
        ("int16", "int8"),
    }:
        raise Misfit(f"its input is {source.dtype}, its weights {weights.dtype}")
    if weights.quantization is not None and weights.quantization.scales.size != 1 and weights.quantization.axis != axis:
        raise Misfit(f"its weights have scales on axis {weights.quantization.axis}, expected {axis}")
    if weights.dtype == "int8" and weights.quantization is not None and weights.quantization.zero_points.any():
        raise Misfit("its weights have a zero point that is not 0")
    if bias is not None:
        wanted = {"float32": "float32", "int16": "int64"}.get(source.dtype, "int32")
        if bias.dtype != wanted or bias.shape != (weights.shape[axis],) or not bias.size:
            raise Misfit(f"its bias is {bias.dtype} {bias.shape}, expected constant {wanted} ({weights.shape[axis]},)")
    return weights


def _dense(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    source, (units, width) = _need(inputs[0]).shape, _weights(inputs, 2, 0).shape
    if _number(operator, 1, 0) != 0:
        raise Misfit("its weights are shuffled")
    if _number(operator, 2, 0):
        if not source or source[-1] != width:
            raise Misfit(f"its input has shape {source}, its weights {(units, width)}")
        return (*source[:-1], units)
    # A batch that is not the first dimension would be read across rows.
    if not source or math.prod(source[1:]) != width:
        raise Misfit(f"its input has shape {source}, its weights {(units, width)}")
    return (source[0], units)


def _window(size: int, window: int, stride: int, dilation: int, padding: int) -> int:
    if not (1 <= window <= MAX_WINDOW and 1 <= stride <= MAX_WINDOW and 1 <= dilation <= MAX_WINDOW):
        raise Misfit(f"its window {window}, stride {stride} or dilation {dilation} is not in 1..{MAX_WINDOW}")
    reach = (window - 1) * dilation + 1
    length = {0: -(-size // stride), 1: -(-(size - reach + 1) // stride)}.get(padding, 0)
    if length < 1:
        raise Misfit(f"its window of {reach} on {size} elements with padding {padding} leaves nothing")
    return length


def _image(inputs: list[Tensor | None]) -> tuple[int, ...]:
    shape = _need(inputs[0]).shape
    if len(shape) != 4:
        raise Misfit(f"its input has shape {shape}, expected [batch, height, width, channels]")
    return shape


def _conv(operator: Operator, inputs: list[Tensor | None], _: Graph) -> tuple[int, ...]:
    batch, height, width, channels = _image(inputs)
    out, rows, columns, depth = _weights(inputs, 4, 0).shape
    if depth != channels:
        raise Misfit(f"its input has {channels} channels, its weights {depth}")
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
        raise Misfit(f"its weights give {out} channels from {channels} times {_number(operator, 3, 0)}")
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
        raise Misfit(f"it joins shapes {shapes} on axis {axis}")
    axis %= rank
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1:
        raise Misfit(f"it joins shapes {shapes} on axis {axis}")
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _constant_integers(tensor: Tensor, graph: Graph) -> list[int]:
    if tensor.dtype != "int32" or not tensor.size or len(tensor.shape) > 1:
        raise Misfit(f"its axes or shape are {tensor.dtype} {tensor.shape}, expected constant int32")
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
        raise Misfit(f"it makes {shape} of {source.shape}")
    shape = [total // given if n == -1 else n for n in shape]
    if math.prod(shape) != total:
        raise Misfit(f"it makes {shape} of {source.shape}")
    return tuple(shape)


def _reduce(operator: Operator, inputs: list[Tensor | None], graph: Graph) -> tuple[int, ...]:
    shape, axes = _need(inputs[0]).shape, _constant_integers(_need(inputs[1]), graph)
    if not axes or len(axes) > len(shape) or any(not -len(shape) <= axis < len(shape) for axis in axes):
        raise Misfit(f"it reduces axes {axes} of {shape}")
    gone = {axis % len(shape) for axis in axes}
    kept = (1 if n in gone else size for n, size in enumerate(shape))
    return tuple(kept) if _number(operator, 0, 0) else tuple(s for n, s in enumerate(shape) if n not in gone)


KINDS: Mapping[str, Kind] = {
    "ADD": Kind(rule=_broadcast, options_type=11, least=2, most=2, values=0),
    "SUB": Kind(rule=_broadcast, options_type=28, least=2, most=2, values=0),
    "MUL": Kind(rule=_broadcast, options_type=21, least=2, most=2, values=0),
    "MAXIMUM": Kind(rule=_broadcast, options_type=39, least=2, most=2, values=0),
    "MINIMUM": Kind(rule=_broadcast, options_type=39, least=2, most=2, values=0),
    "FULLY_CONNECTED": Kind(rule=_dense, options_type=8, least=2, most=3),
    "CONV_2D": Kind(rule=_conv, options_type=1, least=3, most=3),
    "DEPTHWISE_CONV_2D": Kind(rule=_depthwise, options_type=2, least=3, most=3),
    "MAX_POOL_2D": Kind(rule=_pool, options_type=5),
    "AVERAGE_POOL_2D": Kind(rule=_pool, options_type=5),
    "CONCATENATION": Kind(rule=_concatenation, options_type=10, least=1, most=64, values=0),
    "RESHAPE": Kind(rule=_reshape, options_type=17, least=1, most=2),
    "MEAN": Kind(rule=_reduce, options_type=27, least=2, most=2),
    "SUM": Kind(rule=_reduce, options_type=27, least=2, most=2),
    "SOFTMAX": Kind(rule=_softmax, options_type=9),
    "LOG_SOFTMAX": Kind(rule=_softmax, options_type=36),
    "TANH": Kind(rule=_same),
    "LOGISTIC": Kind(rule=_same),
    "RELU": Kind(rule=_same),
    "RELU6": Kind(rule=_same),
    "LEAKY_RELU": Kind(rule=_same, options_type=75),
    "GELU": Kind(rule=_same, options_type=116),
    "ELU": Kind(rule=_same, takes=("float32", "int8")),
    "RSQRT": Kind(rule=_same, takes=("float32",)),
    "QUANTIZE": Kind(rule=_same, options_type=89, gives=_INTEGERS),
    "DEQUANTIZE": Kind(rule=_same, options_type=38, takes=("float16", *_INTEGERS), gives=("float32",)),
}
