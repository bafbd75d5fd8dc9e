"""Operations on Keras tensors (arithmetic, means, activations), which Keras files as layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from quarl_device.errors import UnsupportedModel
from quarl_export.importers.builder import Builder, reshape, with_constant
from quarl_export.importers.functional import Operand, SourceNode
from quarl_export.ir.layers import Kind


def _arithmetic(kind: Kind) -> Callable[[Builder, SourceNode, list[Operand]], str]:
    def lower_arithmetic(builder: Builder, node: SourceNode, operands: list[Operand]) -> str:
        left, right = operands
        if isinstance(left, str) and isinstance(right, str):
            return builder.layer(kind, node.name, [left, right])
        return with_constant(builder, node.name, kind, left, right)

    return lower_arithmetic


def _divide(builder: Builder, node: SourceNode, operands: list[Operand]) -> str:
    left, right = operands
    return with_constant(builder, node.name, "divide", left, right)


def _single(operands: list[Operand]) -> str:
    tensor = operands[0]
    if not isinstance(tensor, str):
        raise ValueError("an operation on a constant")
    return tensor


def _mean(builder: Builder, node: SourceNode, operands: list[Operand]) -> str:
    settings, tensor = {**node.config, **node.settings}, _single(operands)
    axis, rank = settings.get("axis"), len(builder.shapes[tensor])
    axes = sorted(one % (rank + 1) for one in ([axis] if isinstance(axis, int) else axis or []))
    if rank == 1 and axes == [1] and settings.get("keepdims"):
        return builder.layer("mean", node.name, [tensor])
    if rank == 3 and axes == [1, 2] and not settings.get("keepdims"):
        return builder.layer("global_average_pool2d", node.name, [tensor])
    raise UnsupportedModel(
        f"layer {node.name!r} takes a mean over axes {axis} of {builder.shapes[tensor]}",
        hint="take it over the last axis of a vector with keepdims=True, or over height and width of an image",
    )


def _function(name: str) -> Callable[[Builder, SourceNode, list[Operand]], str]:
    return lambda builder, node, operands: builder.activation(node.name, _single(operands), name)


def _concatenation(builder: Builder, node: SourceNode, operands: list[Operand]) -> str:
    return concatenate(builder, node, [item for item in operands if isinstance(item, str)])


def _reshaping(builder: Builder, node: SourceNode, operands: list[Operand]) -> str:
    target = node.config.get("newshape") or node.settings.get("shape") or node.settings.get("newshape")
    if target is None and len(operands) > 1:
        target = np.asarray(operands[1]).ravel().tolist()
    sizes = [int(size) if size is not None else -1 for size in target or []]
    return reshape(builder, node.name, _single(operands), sizes[1:])


def concatenate(builder: Builder, node: SourceNode, tensors: list[str]) -> str:
    """Add a concatenation along the last axis."""
    axis, rank = int(node.config.get("axis", node.settings.get("axis", -1))), len(builder.shapes[tensors[0]])
    if axis % (rank + 1) != rank:
        raise UnsupportedModel(f"layer {node.name!r} concatenates along axis {axis}, not the last")
    return tensors[0] if len(tensors) == 1 else builder.layer("concatenate", node.name, tensors)


OPERATIONS: Mapping[str, Callable[[Builder, SourceNode, list[Operand]], str]] = {
    "add": _arithmetic("add"),
    "subtract": _arithmetic("subtract"),
    "multiply": _arithmetic("multiply"),
    "divide": _divide,
    "mean": _mean,
    "concatenate": _concatenation,
    "reshape": _reshaping,
    "identity": lambda _builder, _node, operands: _single(operands),
    **{name: _function(name) for name in ("relu", "relu6", "tanh", "sigmoid", "softmax")},
}
