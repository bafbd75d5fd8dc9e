"""Turns single calls of Keras layers into the layers of a policy graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, QuarlError, UnsupportedModel
from quarl_export.importers.builder import Builder, reshape
from quarl_export.importers.functional import FlatModel, Operand, SourceNode
from quarl_export.importers.keras_classes import DROPPED
from quarl_export.importers.keras_config import OPERATION
from quarl_export.importers.keras_operations import OPERATIONS, concatenate
from quarl_export.importers.keras_scalings import batch_norm, check_last_axis, layer_norm, normalization, rescaling
from quarl_export.ir.draft import Draft
from quarl_export.ir.layers import Kind, Shape

WeightMaker = Callable[[SourceNode, Shape], tuple[NDArray[Any], ...]]


def lower(model: FlatModel, *, weights: WeightMaker | None = None) -> Draft:
    """Return a flattened Keras model as a draft.

    Args:
        model: flattened.
        weights: what takes the place of the nodes' own weights, given a node and the shape that it reads.

    Raises:
        UnsupportedModel: a layer that has no place in a policy graph; names it and says what to do instead.
        UsageError: shapes that do not fit.
        ModelFileError: settings or weights that no such layer has.
    """
    builder = Builder(model.inputs)
    tensors: dict[str, str] = {name: name for name in model.inputs}
    for node in model.nodes:
        operands = [tensors[item] if isinstance(item, str) else item for item in node.operands]
        try:
            if weights is not None and isinstance(operands[0], str):
                node = replace(node, weights=weights(node, builder.shapes[operands[0]]))  # noqa: PLW2901
            tensors[node.name] = _layer(builder, node, operands)
        except QuarlError:
            raise
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise ModelFileError(
                f"layer {node.name!r} ({node.class_name}) does not hold: {type(error).__name__}: {str(error)[:200]}"
            ) from error
    return builder.draft({name: tensors[node] for name, node in model.outputs.items()})


def _layer(builder: Builder, node: SourceNode, operands: list[Operand]) -> str:
    if node.class_name.startswith(OPERATION):
        return OPERATIONS[node.class_name.removeprefix(OPERATION)](builder, node, operands)
    tensors = [item for item in operands if isinstance(item, str)]
    if len(tensors) != len(operands) or not tensors:
        raise UnsupportedModel(f"layer {node.name!r} is called with a constant, which is read in arithmetic alone")
    if node.class_name in DROPPED:
        return tensors[0]
    if node.class_name in _MERGES:
        return _MERGES[node.class_name](builder, node, tensors)
    if len(tensors) != 1:
        raise UnsupportedModel(f"layer {node.name!r} ({node.class_name}) is called with {len(tensors)} tensors")
    return _LAYERS[node.class_name](builder, node, tensors[0])


# Weighted layers


def _channels_last(node: SourceNode) -> None:
    if node.config.get("data_format") == "channels_first":
        raise UnsupportedModel(
            f"layer {node.name!r} takes channels first, which TFLite does not compute",
            hint="build the model with data_format='channels_last' and observations of height, width, channels",
        )


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def _kernel_bias(node: SourceNode) -> tuple[NDArray[Any], NDArray[Any] | None]:
    bias = bool(node.config.get("use_bias", True))
    if len(node.weights) != 1 + bias:
        raise ValueError(f"{len(node.weights)} weights, expected {1 + bias}")
    _check_size(node, "units", node.weights[0].shape[-1])
    _check_size(node, "depth_multiplier", node.weights[0].shape[-1])
    _check_size(node, "filters", node.weights[0].shape[-1])
    return node.weights[0], node.weights[1] if bias else None


def _check_size(node: SourceNode, setting: str, found: int) -> None:
    # The layer is built of its settings for the comparison: they must not say more than the file holds.
    if setting in node.config and int(node.config[setting]) != found:
        raise ValueError(f"{setting} {node.config[setting]}, but weights for {found}")


def _activated(builder: Builder, node: SourceNode, tensor: str) -> str:
    function = str(node.config.get("activation", "linear"))
    return builder.activation(f"{node.name}_{function}", tensor, function)


def _dense(builder: Builder, node: SourceNode, tensor: str) -> str:
    kernel, bias = _kernel_bias(node)
    rank = len(builder.shapes[tensor])
    if rank == 3:
        # The same at every pixel: a 1x1 convolution.
        made = builder.layer("conv2d", node.name, [tensor], kernel=kernel[None, None], bias=bias)
    elif rank == 1:
        made = builder.layer("dense", node.name, [tensor], kernel=kernel, bias=bias)
    else:
        raise UnsupportedModel(
            f"layer {node.name!r} (Dense) reads a tensor of shape {builder.shapes[tensor]}",
            hint="put a Flatten before it",
        )
    return _activated(builder, node, made)


def _window_settings(node: SourceNode) -> dict[str, Any]:
    _channels_last(node)
    if _pair(node.config.get("dilation_rate", 1)) != (1, 1) or node.config.get("groups", 1) != 1:
        raise UnsupportedModel(f"layer {node.name!r} is dilated or grouped, which is not read", hint="use strides")
    return {"strides": _pair(node.config.get("strides") or 1), "padding": str(node.config.get("padding", "valid"))}


def _conv2d(builder: Builder, node: SourceNode, tensor: str) -> str:
    kernel, bias = _kernel_bias(node)
    made = builder.layer("conv2d", node.name, [tensor], kernel=kernel, bias=bias, **_window_settings(node))
    return _activated(builder, node, made)


def _depthwise(builder: Builder, node: SourceNode, tensor: str) -> str:
    kernel, bias = _kernel_bias(node)
    made = builder.layer("depthwise_conv2d", node.name, [tensor], kernel=kernel, bias=bias, **_window_settings(node))
    return _activated(builder, node, made)


def _separable(builder: Builder, node: SourceNode, tensor: str) -> str:
    depthwise, pointwise, *rest = node.weights
    if len(rest) != bool(node.config.get("use_bias", True)):
        raise ValueError(f"{len(node.weights)} weights")
    _check_size(node, "depth_multiplier", depthwise.shape[-1])
    _check_size(node, "filters", pointwise.shape[-1])
    settings = _window_settings(node)
    inner = builder.layer("depthwise_conv2d", f"{node.name}_depthwise", [tensor], kernel=depthwise, **settings)
    made = builder.layer("conv2d", node.name, [inner], kernel=pointwise, bias=rest[0] if rest else None)
    return _activated(builder, node, made)


# Shapes


def _pool(kind: Kind) -> Callable[[Builder, SourceNode, str], str]:
    def lower_pool(builder: Builder, node: SourceNode, tensor: str) -> str:
        _channels_last(node)
        window = _pair(node.config.get("pool_size", 2))
        strides = _pair(node.config["strides"]) if node.config.get("strides") else window
        padding = str(node.config.get("padding", "valid"))
        return builder.layer(kind, node.name, [tensor], pool_size=window, strides=strides, padding=padding)

    return lower_pool


def _global_pool(builder: Builder, node: SourceNode, tensor: str) -> str:
    _channels_last(node)
    if node.config.get("keepdims"):
        raise UnsupportedModel(f"layer {node.name!r} keeps its axes", hint="build it with keepdims=False")
    return builder.layer("global_average_pool2d", node.name, [tensor])


def _flatten(builder: Builder, node: SourceNode, tensor: str) -> str:
    _channels_last(node)
    if len(builder.shapes[tensor]) == 1:
        return tensor
    return builder.layer("flatten", node.name, [tensor])


def _reshape(builder: Builder, node: SourceNode, tensor: str) -> str:
    return reshape(builder, node.name, tensor, [int(size) for size in node.config["target_shape"]])


# Activations


def _relu(builder: Builder, node: SourceNode, tensor: str) -> str:
    limit = node.config.get("max_value")
    slopes = (node.config.get("negative_slope") or 0.0, node.config.get("threshold") or 0.0)
    if _number(slopes[0]) or _number(slopes[1]) or (limit is not None and _number(limit) != 6.0):
        raise UnsupportedModel(f"layer {node.name!r} is a leaky, shifted or odd ReLU", hint="use ReLU() or ReLU(6)")
    return builder.activation(node.name, tensor, "relu" if limit is None else "relu6")


def _number(value: Any) -> float:
    return float(np.asarray(value, np.float64).reshape(-1)[0])


def _elu(builder: Builder, node: SourceNode, tensor: str) -> str:
    if float(node.config.get("alpha", 1.0)) != 1.0:
        raise UnsupportedModel(f"layer {node.name!r} is an ELU with alpha {node.config['alpha']}", hint="use ReLU")
    return builder.activation(node.name, tensor, "elu")


def _softmax(builder: Builder, node: SourceNode, tensor: str) -> str:
    check_last_axis(builder, node, tensor)
    return builder.activation(node.name, tensor, "softmax")


def _activation(builder: Builder, node: SourceNode, tensor: str) -> str:
    return builder.activation(node.name, tensor, str(node.config.get("activation", "linear")))


# Several tensors


def _chain(kind: Kind) -> Callable[[Builder, SourceNode, list[str]], str]:
    def lower_chain(builder: Builder, node: SourceNode, tensors: list[str]) -> str:
        result, *others = tensors
        if not others or (kind == "subtract" and len(others) != 1):
            raise UnsupportedModel(f"layer {node.name!r} ({kind}) is called with {len(tensors)} tensors")
        for place, other in enumerate(others):
            last = place == len(others) - 1
            result = builder.layer(kind, node.name if last else f"{node.name}_{place}", [result, other])
        return result

    return lower_chain


_LAYERS: Mapping[str, Callable[[Builder, SourceNode, str], str]] = {
    "Dense": _dense,
    "Conv2D": _conv2d,
    "DepthwiseConv2D": _depthwise,
    "SeparableConv2D": _separable,
    "MaxPooling2D": _pool("max_pool2d"),
    "AveragePooling2D": _pool("average_pool2d"),
    "GlobalAveragePooling2D": _global_pool,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "ReLU": _relu,
    "ELU": _elu,
    "Softmax": _softmax,
    "Activation": _activation,
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "Normalization": normalization,
    "Rescaling": rescaling,
}
_MERGES: Mapping[str, Callable[[Builder, SourceNode, list[str]], str]] = {
    "Add": _chain("add"),
    "Subtract": _chain("subtract"),
    "Multiply": _chain("multiply"),
    "Concatenate": concatenate,
}
