"""Runs a policy graph in numpy, float32: the reading of a source that everything else is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_export.ir.layers import Layer
from quarl_export.ir.policy_graph import ImportedPolicy, PolicyGraph

Float32 = NDArray[np.float32]


def normalize(policy: ImportedPolicy, observations: Mapping[str, NDArray[Any]]) -> dict[str, Float32]:
    """Return what enters the graph.

    Args:
        policy: its contract's normaliser is applied.
        observations: per key ``[batch, *shape]`` as the environment gives them; stacked frames as
            ``[batch, stack, *shape]``, oldest first, or joined as the graph's input has them.

    Returns:
        Per key float32 ``[batch, *graph input shape]``.
    """
    normalized = {}
    normalizer = policy.contract.normalizer
    specs = {spec.key: spec for spec in policy.contract.observations}
    for item in policy.graph.inputs:
        rows = _laid_out(np.asarray(observations[item.key]), specs[item.key], item.shape).astype(np.float32)
        if item.key in normalizer.offset:
            shape = item.shape
            offset = np.broadcast_to(np.asarray(normalizer.offset[item.key], np.float32), _flat(shape)).reshape(shape)
            scale = np.broadcast_to(np.asarray(normalizer.scale[item.key], np.float32), _flat(shape)).reshape(shape)
            rows = (rows - offset) * scale
            if normalizer.clip:
                rows = np.clip(rows, -normalizer.clip, normalizer.clip)
        normalized[item.key] = rows.astype(np.float32)
    return normalized


def run_reference(policy: ImportedPolicy, observations: Mapping[str, NDArray[Any]]) -> dict[str, Float32]:
    """Return every output by role for raw `observations`, per key ``[batch, *shape]``."""
    tensors = run_graph(policy.graph, policy.weights, normalize(policy, observations))
    return {role: tensors[name] for role, name in policy.graph.outputs.items()}


def run_graph(graph: PolicyGraph, weights: Mapping[str, Float32], inputs: Mapping[str, Float32]) -> dict[str, Float32]:
    """Return every tensor of `graph` by name, inputs included.

    Args:
        graph: the network.
        weights: its arrays.
        inputs: per key float32 ``[batch, *shape]``, normalised.
    """
    tensors: dict[str, Float32] = {item.key: np.asarray(inputs[item.key], np.float32) for item in graph.inputs}
    for layer in graph.layers:
        arrays = [weights[name] for name in layer.weight_names()]
        operands = [tensors[name] for name in layer.inputs]
        tensors[layer.name] = _RUN[layer.kind](layer, operands, arrays).astype(np.float32)
    return tensors


def run_layer(layer: Layer, operands: list[NDArray[Any]], arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return what `layer` gives for `operands` ``[batch, *shape]`` and its `arrays`, in the precision of these."""
    return np.asarray(_RUN[layer.kind](layer, operands, arrays))


def _flat(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _laid_out(raw: NDArray[Any], spec: ObservationSpec, shape: tuple[int, ...]) -> NDArray[Any]:
    """Join stacked frames along the last axis; turn round images that the environment has channels first."""
    frame, stack = spec.shape, spec.stack
    channels_first = len(frame) == 3 and shape == (*frame[1:], frame[0] * stack) and not (stack == 1 and frame == shape)
    if stack > 1 and raw.shape[1:] == (stack, *frame):
        if channels_first:
            raw = raw.reshape(len(raw), stack * frame[0], *frame[1:])
        elif shape == (*frame, stack):
            raw = np.moveaxis(raw, 1, -1)
        elif frame:
            raw = np.concatenate([raw[:, n] for n in range(stack)], axis=-1)
    if channels_first and raw.shape[1:] != shape:
        raw = np.moveaxis(raw, 1, -1)
    return raw.reshape(len(raw), *shape)


def _patches(image: Float32, window: tuple[int, int], layer: Layer, *, fill: float) -> Float32:
    """Return ``[batch, rows, columns, *window, channels]``, padded as TensorFlow pads."""
    if layer.padding == "same":
        pads = [_same_padding(size, extent, stride) for size, extent, stride in zip(
            image.shape[1:3], window, layer.strides, strict=True)]  # fmt: skip
        image = np.pad(image, ((0, 0), *pads, (0, 0)), constant_values=fill)
    views = np.lib.stride_tricks.sliding_window_view(image, window, axis=(1, 2))
    stepped = views[:, :: layer.strides[0], :: layer.strides[1]]
    return np.moveaxis(stepped, 3, 5)


def _same_padding(size: int, extent: int, stride: int) -> tuple[int, int]:
    total = max(0, (-(-size // stride) - 1) * stride + extent - size)
    return total // 2, total - total // 2


def _dense(_: Layer, operands: list[Float32], arrays: list[Float32]) -> Any:
    return operands[0] @ arrays[0] + (arrays[1] if len(arrays) > 1 else 0)


def _conv2d(layer: Layer, operands: list[Float32], arrays: list[Float32]) -> Any:
    patches = _patches(operands[0], arrays[0].shape[:2], layer, fill=0.0)
    return np.tensordot(patches, arrays[0], axes=3) + (arrays[1] if len(arrays) > 1 else 0)


def _depthwise(layer: Layer, operands: list[Float32], arrays: list[Float32]) -> Any:
    patches = _patches(operands[0], arrays[0].shape[:2], layer, fill=0.0)
    mixed = np.einsum("bijhwc,hwcm->bijcm", patches, arrays[0])
    return mixed.reshape(*mixed.shape[:3], -1) + (arrays[1] if len(arrays) > 1 else 0)


def _max_pool(layer: Layer, operands: list[Float32], _: list[Float32]) -> Any:
    return _patches(operands[0], layer.pool_size, layer, fill=-np.inf).max(axis=(3, 4))


def _average_pool(layer: Layer, operands: list[Float32], _: list[Float32]) -> Any:
    # What is padded does not count.
    return np.nanmean(_patches(operands[0], layer.pool_size, layer, fill=np.nan), axis=(3, 4))


def _softmax(_: Layer, operands: list[Float32], __: list[Float32]) -> Any:
    exponents = np.exp(operands[0] - operands[0].max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def _layer_norm(layer: Layer, operands: list[Float32], arrays: list[Float32]) -> Any:
    (x,) = operands
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + float(layer.settings.get("epsilon", 1e-3)))
    return centred / spread * arrays[0] + arrays[1]


def _single(function: Callable[[Float32], Any]) -> Callable[[Layer, list[Float32], list[Float32]], Any]:
    return lambda _layer, operands, _arrays: function(operands[0])


_RUN: Mapping[str, Callable[[Layer, list[Float32], list[Float32]], Any]] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise,
    "max_pool2d": _max_pool,
    "average_pool2d": _average_pool,
    "global_average_pool2d": _single(lambda x: x.mean(axis=(1, 2))),
    "flatten": _single(lambda x: x.reshape(len(x), -1)),
    "mean": _single(lambda x: x.mean(axis=-1, keepdims=True)),
    "add": lambda _layer, operands, _arrays: operands[0] + operands[1],
    "subtract": lambda _layer, operands, _arrays: operands[0] - operands[1],
    "multiply": lambda _layer, operands, _arrays: operands[0] * operands[1],
    "concatenate": lambda _layer, operands, _arrays: np.concatenate(operands, axis=-1),
    "relu": _single(lambda x: np.maximum(x, 0)),
    "relu6": _single(lambda x: np.clip(x, 0, 6)),
    "tanh": _single(np.tanh),
    # 1 / (1 + exp(-x)) without its overflow.
    "sigmoid": _single(lambda x: (np.tanh(x / 2) + 1) / 2),
    "softmax": _softmax,
    "elu": _single(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "layer_norm": _layer_norm,
}
