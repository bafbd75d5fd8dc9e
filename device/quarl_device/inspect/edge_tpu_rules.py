"""Which operators the Edge TPU has, and each one's documented limit (coral.ai, "Supported operations")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from quarl_device.flatbuffer import Graph, Operator, Tensor
from quarl_device.inspect.tensors import fused_activation

MAX_SOFTMAX = 16_000
# "Large" is not defined; the input of a full-size camera frame is about this.
LARGE_RESHAPE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What is over a limit.

    Attributes:
        message: what was found and what is needed.
        mend: what to do.
        known: false where the documentation names a limit that this check cannot decide.
    """

    message: str
    mend: str = ""
    known: bool = True


_Rule = Callable[[Operator, Graph], Limit | None]


def limit_of(operator: Operator, graph: Graph) -> Limit | None:
    """Return the limit that the operator is over, `None` where it is within all of them."""
    rule = SUPPORTED.get(operator.name)
    return rule(operator, graph) if rule is not None else None


def _inputs(operator: Operator, graph: Graph) -> list[Tensor]:
    return [graph.tensors[n] for n in operator.inputs if n >= 0]


def _option(operator: Operator, slot: int, default: int) -> int:
    value = operator.options[slot] if slot < len(operator.options) else None
    return default if value is None else int(value)  # type: ignore[arg-type]


def _no_activation(operator: Operator, _: Graph) -> Limit | None:
    fused = fused_activation(operator)
    if fused == "none":
        return None
    return Limit(message=f"it has {fused} fused in, which is not supported here", mend="make it a layer of its own")


def _concatenation(operator: Operator, graph: Graph) -> Limit | None:
    constants = [tensor for tensor in _inputs(operator, graph) if tensor.size]
    if constants and (len(operator.inputs) != 2 or any(not _is_zero(tensor, graph) for tensor in constants)):
        return Limit(
            message="a constant may only be joined where there are two inputs and it is all zeros",
            mend="put the constant into the next layer's bias",
        )
    return _no_activation(operator, graph)


def _is_zero(tensor: Tensor, graph: Graph) -> bool:
    zero = 0
    if tensor.quantization is not None and tensor.quantization.zero_points.size:
        zero = int(tensor.quantization.zero_points[0])
    return bool(np.all(graph.constant(tensor) == zero))


def _dense(operator: Operator, graph: Graph) -> Limit | None:
    if _option(operator, 1, 0) != 0:
        return Limit(message="its weights are in another format than the default", mend="convert without shuffling")
    shape = graph.tensors[operator.outputs[0]].shape
    if any(n != 1 for n in shape[:-1]):
        return Limit(message=f"its output {list(shape)} is not one-dimensional", mend="use batch size 1")
    return None


def _dilation(slots: tuple[int, int]) -> _Rule:
    def rule(operator: Operator, _: Graph) -> Limit | None:
        x, y = (_option(operator, slot, 1) for slot in slots)
        if x == y:
            return None
        return Limit(message=f"its dilation is {x} in x and {y} in y", mend="use the same dilation in both")

    return rule


def _axes(operator: Operator, graph: Graph) -> list[int] | None:
    """Return the constant axes of a reduction, counted from the front; `None` where they are not constant."""
    tensors = _inputs(operator, graph)
    if len(tensors) < 2 or not tensors[1].size or tensors[1].dtype != "int32":
        return None
    rank = len(tensors[0].shape)
    return [int(axis) % rank if rank else int(axis) for axis in graph.constant(tensors[1]).ravel()]


def _reduction(operator: Operator, graph: Graph) -> Limit | None:
    axes = _axes(operator, graph)
    if axes is None:
        return Limit(message="its axes are not constant", mend="convert with constant axes")
    shape = _inputs(operator, graph)[0].shape
    if 0 in axes and len(shape) > 1:
        return Limit(message="it reduces the batch dimension", mend="reduce other axes")
    if operator.name in ("MEAN", "SUM") and len(shape) - 1 in axes and shape[-1] % 4:
        return Limit(
            message=f"it reduces the innermost dimension of {shape[-1]}, which must be a multiple of 4",
            mend="in a dueling head: pad the advantages to a multiple of 4, or fold the mean into the dense layer",
        )
    return None


def _softmax(operator: Operator, graph: Graph) -> Limit | None:
    shape = _inputs(operator, graph)[0].shape
    if any(n != 1 for n in shape[:-1]) or (shape and shape[-1] > MAX_SOFTMAX):
        return Limit(
            message=f"its input {list(shape)} is not one-dimensional with at most {MAX_SOFTMAX:,} elements",
            mend="export logits; the device takes the softmax",
        )
    return None


def _reshape(operator: Operator, graph: Graph) -> Limit | None:
    shape = graph.tensors[operator.outputs[0]].shape
    if int(np.prod(shape, dtype=np.int64)) > LARGE_RESHAPE:
        return Limit(message=f"reshaping {list(shape)} may not be mapped: it is large", known=False)
    return None


def _pad(operator: Operator, graph: Graph) -> Limit | None:
    tensors = _inputs(operator, graph)
    if len(tensors) < 2 or not tensors[1].size:
        return Limit(message="its padding is not constant", mend="convert with constant padding")
    padding = graph.constant(tensors[1]).ravel()
    if np.any(padding[:2] != 0) and len(tensors[0].shape) > 1:
        return Limit(message="it pads the batch dimension", mend="pad other dimensions")
    return None


def _unseen(what: str) -> _Rule:
    return lambda _operator, _graph: Limit(message=f"a static check cannot see whether {what}", known=False)


SUPPORTED: Mapping[str, _Rule | None] = {
    "ADD": None,
    "AVERAGE_POOL_2D": _no_activation,
    "CONCATENATION": _concatenation,
    "CONV_2D": _dilation((4, 5)),
    "DEPTHWISE_CONV_2D": _dilation((5, 6)),
    "EXPAND_DIMS": None,
    "FULLY_CONNECTED": _dense,
    "L2_NORMALIZATION": None,
    "LOGISTIC": None,
    "LSTM": _unseen("it is unidirectional"),
    "MAXIMUM": None,
    "MAX_POOL_2D": _no_activation,
    "MEAN": _reduction,
    "MINIMUM": None,
    "MUL": None,
    "PACK": _unseen("it packs the batch dimension"),
    "PAD": _pad,
    "PRELU": _unseen("its alpha broadcasts over the channels alone"),
    "QUANTIZE": None,
    "REDUCE_MAX": _reduction,
    "REDUCE_MIN": _reduction,
    "RELU": None,
    "RELU6": None,
    "RELU_N1_TO_1": None,
    "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _unseen("its sizes keep their precision"),
    "RESIZE_NEAREST_NEIGHBOR": _unseen("its sizes keep their precision"),
    "RSQRT": None,
    "SLICE": None,
    "SOFTMAX": _softmax,
    "SPACE_TO_DEPTH": None,
    "SPLIT": _unseen("it splits the batch dimension"),
    "SQUARED_DIFFERENCE": None,
    "SQUEEZE": _unseen("only leading ones are squeezed"),
    "STRIDED_SLICE": _unseen("every stride is 1 and no mask is set"),
    "SUB": None,
    "SUM": _reduction,
    "TANH": None,
    "TRANSPOSE": None,
    "TRANSPOSE_CONV": None,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": None,
}
