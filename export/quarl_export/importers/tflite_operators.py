"""TFLite's float operators as layers of a policy graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, UnsupportedModel
from quarl_device.flatbuffer import Graph, Operator, Tensor
from quarl_export.importers.builder import Builder, reshape, with_constant
from quarl_export.importers.layer_norms import LayerNorm, find_layer_norms
from quarl_export.ir.draft import Draft
from quarl_export.ir.layers import Kind, Shape

Operand = str | NDArray[np.float64]

_FUSED = ("linear", "relu", "relu_n1_to_1", "relu6", "tanh")
_PADDING = ("same", "valid")
_INDICES = ("int32", "int64")
_RECURRENT = "a policy file has no memory between calls: stack frames and train a feed-forward network"
_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("UNIDIRECTIONAL_SEQUENCE_LSTM", "LSTM", "RNN", "UNIDIRECTIONAL_SEQUENCE_RNN"), _RECURRENT),
    **dict.fromkeys(("WHILE", "CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"), _RECURRENT),
    **dict.fromkeys(
        ("NEG", "RSQRT", "SQUARED_DIFFERENCE"),
        "where it is part of a LayerNormalization, import the Keras file: its layer is known there",
    ),
    **dict.fromkeys(("GATHER", "SLICE", "STRIDED_SLICE"), "give the part of the observation a key of its own"),
}


def lower_operators(graph: Graph, *, inputs: Mapping[str, Tensor], outputs: Mapping[str, int]) -> Draft:
    """Return the operators of `graph` as a draft.

    Args:
        graph: of a float file.
        inputs: name to input tensor.
        outputs: name to tensor index.

    Raises:
        UnsupportedModel: an operator, or a use of one, that is not read; names it.
        ModelFileError: operators that do not fit their tensors.
        UsageError: shapes that do not fit.
    """
    norms = find_layer_norms(graph)
    ends = {norm.end.index: norm for norm in norms}
    inside = {index for norm in norms for index in norm.inside}
    lowering = _Lowering(graph, inputs)
    for operator in graph.operators:
        try:
            if operator.index in ends:
                lowering.add_norm(ends[operator.index])
            elif operator.index not in inside:
                lowering.add(operator)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise ModelFileError(f"operator {operator.index} ({operator.name}) does not hold: {error}") from error
    return lowering.builder.draft({name: lowering.tensor(index) for name, index in outputs.items()})


def _without_batch(tensor: Tensor) -> Shape:
    if len(tensor.shape) < 2 or tensor.shape[0] != 1 or any(size < 1 for size in tensor.shape):
        raise UnsupportedModel(
            f"tensor {tensor.name[:80]!r} has the shape {tensor.shape}, expected a batch of 1 and at least one axis",
            hint="convert the model with a fixed batch of 1",
        )
    return tensor.shape[1:]


class _Lowering:
    def __init__(self, graph: Graph, inputs: Mapping[str, Tensor]) -> None:
        self._graph = graph
        self.builder = Builder({name: _without_batch(tensor) for name, tensor in inputs.items()})
        self._tensors = {tensor.index: name for name, tensor in inputs.items()}
        self._constants: dict[int, NDArray[np.float64]] = {}

    def tensor(self, index: int) -> str:
        """Return the name under which a tensor is known."""
        if index not in self._tensors:
            raise UnsupportedModel(f"tensor {self._graph.tensors[index].name[:80]!r} is a constant or not computed")
        return self._tensors[index]

    def operand(self, operator: Operator, place: int) -> Operand:
        """Return a tensor's name or a constant's values."""
        index = operator.inputs[place]
        return self._tensors[index] if index in self._tensors else self.constant(operator, place)

    def constant(self, operator: Operator, place: int) -> NDArray[np.float64]:
        """Return the values of a constant input."""
        index = operator.inputs[place]
        if index in self._tensors:
            raise UnsupportedModel(f"operator {operator.index} ({operator.name}) takes weights that are computed")
        if index not in self._constants:
            tensor = self._graph.tensors[index]
            if tensor.dtype not in ("float32", "float16", *_INDICES):
                raise UnsupportedModel(f"constant {tensor.name[:80]!r} is {tensor.dtype}")
            with np.errstate(invalid="ignore"):  # NaN is refused by name where the policy is made
                self._constants[index] = np.asarray(self._graph.constant(tensor), np.float64)
        return self._constants[index]

    def add(self, operator: Operator) -> None:
        """Read one operator."""
        usual = operator.plain and len(operator.outputs) == 1
        known = self._known(operator) if usual else None
        if known is not None:
            self._constants[operator.outputs[0]] = known
            return
        if operator.name not in _OPERATORS or not usual:
            raise UnsupportedModel(
                f"operator {operator.index} ({operator.name}) of the TFLite file is not read",
                hint=_ADVICE.get(operator.name, "import the model that the file was made of"),
            )
        (output,) = operator.outputs
        name = _OPERATORS[operator.name](self, operator)
        tensor = self._graph.tensors[output]
        # Behind a shape that the file computes nothing is stated.
        stated = -1 not in tensor.shape_signature[1:]
        if stated and math.prod(tensor.shape) != math.prod(self.builder.shapes[name]):
            raise ModelFileError(f"operator {operator.index} ({operator.name}) gives {tensor.shape}, which it cannot")
        self._tensors[output] = name

    def add_norm(self, norm: LayerNorm) -> None:
        """Read the operators of a LayerNormalization as one layer."""
        tensor, name = self.tensor(norm.source), norm.name or f"layer_norm_{norm.end.index}"
        if norm.flattens:
            tensor = self.builder.layer("flatten", f"{name}_flatten", [tensor])
        width = self.builder.shapes[tensor][-1]
        arrays = {part: np.broadcast_to(values, (width,)) for part, values in norm.arrays.items()}
        made = self.builder.layer("layer_norm", name, [tensor], arrays=arrays, epsilon=norm.epsilon)
        self._tensors[norm.end.outputs[0]] = self.activated(norm.end, made, 0) if norm.end.options else made

    def _known(self, operator: Operator) -> NDArray[np.float64] | None:
        """Return what an operator gives whatever the observation is, `None` if it depends on that.

        Beside weights to be widened that is the shape which Keras 3 computes before a Flatten for any size of batch:
        SHAPE, one element of it, PACK.
        """
        if operator.name == "DEQUANTIZE" and operator.inputs[0] not in self._tensors:
            return self.constant(operator, 0)
        if operator.name == "SHAPE":
            return np.asarray((1, *self.builder.shapes[self.tensor(operator.inputs[0])]), np.float64)
        if operator.name == "STRIDED_SLICE" and operator.inputs[0] in self._constants:
            return self._element(operator)
        if operator.name == "PACK":
            parts = [self.constant(operator, place) for place in range(len(operator.inputs))]
            if all(part.ndim == 0 for part in parts):
                return np.stack(parts)
        return None

    def _element(self, operator: Operator) -> NDArray[np.float64] | None:
        """Return the one element that a STRIDED_SLICE of a vector takes, `None` if it takes more."""
        vector, begin = self.constant(operator, 0), self.constant(operator, 1)
        # An axis is only taken off where one element is asked for, whatever the masks.
        one = vector.ndim == 1 and begin.shape == (1,) and self._graph.tensors[operator.outputs[0]].shape == ()
        return vector[int(begin[0])] if one else None

    def number(self, operator: Operator, slot: int, default: int = 0) -> int:
        """Return an integer option."""
        value = operator.options[slot] if slot < len(operator.options) else None
        return default if value is None else int(value)  # type: ignore[arg-type]

    def activated(self, operator: Operator, tensor: str, slot: int) -> str:
        """Add the activation that an operator computes too."""
        code = self.number(operator, slot)
        function = _FUSED[code] if 0 <= code < len(_FUSED) else f"activation {code}"
        if function == "relu_n1_to_1" and self.builder.cut(tensor, low=-1.0, high=1.0):
            return tensor
        return self.builder.activation(f"{_name(operator)}_{function}", tensor, function)

    def bias(self, operator: Operator) -> NDArray[np.float64] | None:
        """Return the third input, `None` if absent."""
        present = len(operator.inputs) > 2 and operator.inputs[2] >= 0
        return self.constant(operator, 2) if present else None


def _name(operator: Operator) -> str:
    return f"{operator.name.lower()}_{operator.index}"


def _single(low: _Lowering, operator: Operator) -> str:
    return low.tensor(operator.inputs[0])


def _dense(low: _Lowering, operator: Operator) -> str:
    tensor, kernel = _single(low, operator), low.constant(operator, 1)
    if low.number(operator, 1):
        raise UnsupportedModel(f"operator {operator.index} has shuffled weights")
    if len(low.builder.shapes[tensor]) != 1:
        # TFLite flattens on its own.
        if low.number(operator, 2):
            raise UnsupportedModel(f"operator {operator.index} ({operator.name}) keeps the axes of its input")
        tensor = low.builder.layer("flatten", f"{_name(operator)}_flatten", [tensor])
    made = low.builder.layer("dense", _name(operator), [tensor], kernel=kernel.T, bias=low.bias(operator))
    return low.activated(operator, made, 0)


def _check_dilation(low: _Lowering, operator: Operator, slots: tuple[int, int]) -> None:
    if any(low.number(operator, slot, 1) != 1 for slot in slots):
        raise UnsupportedModel(f"operator {operator.index} ({operator.name}) is dilated", hint="use strides")


def _windows(low: _Lowering, operator: Operator) -> dict[str, Any]:
    padding = low.number(operator, 0)
    return {
        "padding": _PADDING[padding],
        "strides": (low.number(operator, 2, 1), low.number(operator, 1, 1)),
    }


def _conv(low: _Lowering, operator: Operator) -> str:
    _check_dilation(low, operator, (4, 5))
    kernel = low.constant(operator, 1).transpose(1, 2, 3, 0)
    windows = _windows(low, operator)
    made = low.builder.layer(
        "conv2d", _name(operator), [_single(low, operator)], kernel=kernel, bias=low.bias(operator), **windows
    )
    return low.activated(operator, made, 3)


def _depthwise(low: _Lowering, operator: Operator) -> str:
    _check_dilation(low, operator, (5, 6))
    tensor, given = _single(low, operator), low.constant(operator, 1)
    channels = low.builder.shapes[tensor][-1]
    kernel = given.reshape(*given.shape[1:3], channels, given.shape[3] // channels)
    windows = _windows(low, operator)
    made = low.builder.layer(
        "depthwise_conv2d", _name(operator), [tensor], kernel=kernel, bias=low.bias(operator), **windows
    )
    return low.activated(operator, made, 4)


def _pool(kind: Kind) -> Callable[[_Lowering, Operator], str]:
    def lower_pool(low: _Lowering, operator: Operator) -> str:
        window = (low.number(operator, 4), low.number(operator, 3))
        made = low.builder.layer(
            kind, _name(operator), [_single(low, operator)], pool_size=window, **_windows(low, operator)
        )
        return low.activated(operator, made, 5)

    return lower_pool


def _reshape(low: _Lowering, operator: Operator) -> str:
    stated = low._graph.tensors[operator.outputs[0]]
    target = [int(size) for size in stated.shape]
    if -1 in stated.shape_signature[1:]:
        target = [int(size) for size in low.constant(operator, 1).ravel()]
        if target[:1] not in ([1], [-1]):
            raise UnsupportedModel(f"operator {operator.index} (RESHAPE) mixes the batch with other axes")
    return reshape(low.builder, _name(operator), _single(low, operator), target[1:])


def _arithmetic(kind: Kind, operation: str, fused: int = 0) -> Callable[[_Lowering, Operator], str]:
    def lower_arithmetic(low: _Lowering, operator: Operator) -> str:
        left, right = low.operand(operator, 0), low.operand(operator, 1)
        if isinstance(left, str) and isinstance(right, str):
            made = low.builder.layer(kind, _name(operator), [left, right])
        else:
            made = with_constant(low.builder, _name(operator), operation, left, right)
        return low.activated(operator, made, fused)

    return lower_arithmetic


def _divide(low: _Lowering, operator: Operator) -> str:
    left, right = low.operand(operator, 0), low.operand(operator, 1)
    return with_constant(low.builder, _name(operator), "divide", left, right)


def _concatenate(low: _Lowering, operator: Operator) -> str:
    tensors = [low.tensor(index) for index in operator.inputs]
    rank = len(low.builder.shapes[tensors[0]])
    if low.number(operator, 0) % (rank + 1) != rank:
        raise UnsupportedModel(f"operator {operator.index} ({operator.name}) joins along another axis than the last")
    if len(tensors) == 1:
        return tensors[0]
    return low.activated(operator, low.builder.layer("concatenate", _name(operator), tensors), 1)


def _mean(low: _Lowering, operator: Operator) -> str:
    tensor = _single(low, operator)
    rank, keeps = len(low.builder.shapes[tensor]), bool(low.number(operator, 0))
    axes = sorted(int(axis) % (rank + 1) for axis in low.constant(operator, 1).ravel())
    if rank == 1 and axes == [1] and keeps:
        return low.builder.layer("mean", _name(operator), [tensor])
    if rank == 3 and axes == [1, 2] and not keeps:
        return low.builder.layer("global_average_pool2d", _name(operator), [tensor])
    raise UnsupportedModel(f"operator {operator.index} (MEAN) over axes {axes} of {rank + 1} is not read")


def _softmax(low: _Lowering, operator: Operator) -> str:
    if operator.options and operator.options[0] not in (None, 1.0):
        raise UnsupportedModel(f"operator {operator.index} (SOFTMAX) has a temperature of its own")
    return low.builder.activation(_name(operator), _single(low, operator), "softmax")


def _cut(low: _Lowering, operator: Operator) -> str:
    """Take a limit behind a normaliser; see `Builder.cut`."""
    operands = [low.operand(operator, place) for place in (0, 1)]
    tensors = [operand for operand in operands if isinstance(operand, str)]
    limits = [operand for operand in operands if not isinstance(operand, str)]
    alone = len(tensors) == 1 and sum(operator.inputs[0] in other.inputs for other in low._graph.operators) == 1
    even = len(limits) == 1 and limits[0].size > 0 and bool((limits[0] == limits[0].flat[0]).all())
    side = "low" if operator.name == "MAXIMUM" else "high"
    if not (alone and even and low.builder.cut(tensors[0], **{side: float(limits[0].flat[0])})):
        raise UnsupportedModel(
            f"operator {operator.index} ({operator.name}) of the TFLite file is not read here",
            hint="clipping is read right behind the normalisation of an input, to one pair of limits ±c",
        )
    return tensors[0]


def _activation(function: str) -> Callable[[_Lowering, Operator], str]:
    return lambda low, operator: low.builder.activation(_name(operator), _single(low, operator), function)


_OPERATORS: Mapping[str, Callable[[_Lowering, Operator], str]] = {
    "FULLY_CONNECTED": _dense,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "MAX_POOL_2D": _pool("max_pool2d"),
    "AVERAGE_POOL_2D": _pool("average_pool2d"),
    "RESHAPE": _reshape,
    "ADD": _arithmetic("add", "add"),
    "SUB": _arithmetic("subtract", "subtract"),
    "MUL": _arithmetic("multiply", "multiply"),
    "DIV": _divide,
    "CONCATENATION": _concatenate,
    "MEAN": _mean,
    "RELU": _activation("relu"),
    "RELU6": _activation("relu6"),
    "MAXIMUM": _cut,
    "MINIMUM": _cut,
    "TANH": _activation("tanh"),
    "LOGISTIC": _activation("sigmoid"),
    "SOFTMAX": _softmax,
    "ELU": _activation("elu"),
    "DEQUANTIZE": _single,
}
