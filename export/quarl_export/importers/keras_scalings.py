"""Normalising and rescaling layers of Keras as `x * scale + shift`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UnsupportedModel
from quarl_export.importers.builder import Builder
from quarl_export.importers.functional import SourceNode

NORMALIZATION_EPSILON = 1e-7
"""What keras.layers.Normalization puts under a standard deviation (`keras.backend.epsilon`)."""


def batch_norm(builder: Builder, node: SourceNode, tensor: str) -> str:
    """Add what a BatchNormalization does when a policy acts."""
    check_last_axis(builder, node, tensor)
    arrays = list(node.weights)
    gamma = arrays.pop(0) if node.config.get("scale", True) else np.ones(1)
    beta = arrays.pop(0) if node.config.get("center", True) else np.zeros(1)
    mean, variance = (np.asarray(array, np.float64) for array in arrays)
    scale = gamma / np.sqrt(variance + float(node.config.get("epsilon", 1e-3)))
    return builder.affine(node.name, tensor, scale, beta - mean * scale)


def check_last_axis(builder: Builder, node: SourceNode, tensor: str) -> None:
    """Refuse a layer that works along another axis than the last; raises UnsupportedModel."""
    given = node.config.get("axis", -1)
    axes = [given] if isinstance(given, int) else list(given)
    rank = len(builder.shapes[tensor])
    if [axis % (rank + 1) for axis in axes] != [rank]:
        raise UnsupportedModel(
            f"layer {node.name!r} ({node.class_name}) normalises along axis {given}, not the last",
            hint="build the model with channels last",
        )


def normalization(builder: Builder, node: SourceNode, tensor: str) -> str:
    """Add a Normalization by its statistics."""
    if node.config.get("invert"):
        raise UnsupportedModel(f"layer {node.name!r} inverts a normalisation", hint="use Rescaling")
    if node.config.get("mean") is not None:
        mean, variance = (np.asarray(node.config[key], np.float64) for key in ("mean", "variance"))
    elif len(node.weights) >= 2:
        mean, variance = (np.asarray(array, np.float64) for array in node.weights[:2])
    else:
        raise UnsupportedModel(
            f"layer {node.name!r} (Normalization) never saw data", hint="call adapt() and save again"
        )
    shape = builder.shapes[tensor]
    mean, variance = (_along_axes(part, node.config.get("axis", -1), shape) for part in (mean, variance))
    # As Keras computes it, in float32 before the maximum.
    deviation = np.maximum(np.sqrt(variance), NORMALIZATION_EPSILON)
    return builder.affine(node.name, tensor, 1 / deviation, -mean / deviation)


def _along_axes(values: NDArray[np.float64], axis: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return statistics in a shape that broadcasts to `shape`: kept along `axis` (batch counted), equal elsewhere."""
    if axis is None:
        return values.reshape(-1)[:1]
    axes = [axis] if isinstance(axis, int) else list(axis)
    kept = {one % (len(shape) + 1) - 1 for one in axes}
    wanted = tuple(size if place in kept else 1 for place, size in enumerate(shape))
    return values.reshape(wanted) if values.size > 1 else values.reshape(-1)[:1]


def rescaling(builder: Builder, node: SourceNode, tensor: str) -> str:
    """Add a Rescaling."""
    scale, offset = node.config.get("scale", 1.0), node.config.get("offset", 0.0)
    return builder.affine(node.name, tensor, np.asarray(scale, np.float64), np.asarray(offset, np.float64))


def layer_norm(builder: Builder, node: SourceNode, tensor: str) -> str:
    """Add a LayerNormalization, a kind that stays in float."""
    check_last_axis(builder, node, tensor)
    if node.config.get("rms_scaling"):
        raise UnsupportedModel(f"layer {node.name!r} (LayerNormalization) scales by RMS", hint="use the default")
    arrays, width = list(node.weights), builder.shapes[tensor][-1]
    gamma = arrays.pop(0) if node.config.get("scale", True) else np.ones(width)
    beta = arrays.pop(0) if node.config.get("center", True) else np.zeros(width)
    epsilon = float(node.config.get("epsilon", 1e-3))
    return builder.layer("layer_norm", node.name, [tensor], arrays={"gamma": gamma, "beta": beta}, epsilon=epsilon)
