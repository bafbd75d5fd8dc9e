"""Brings every dimension of an observation to about ±1 where the policy has no normaliser.

A TFLite input has one scale for all of its dimensions: a pole angle of ±0.2 beside velocities of ±3 would get 16 of
256 levels. So each dimension is centred and scaled before the input is quantized, and the float weights that read it
are changed to match: ``W x + b = (W / s) ((x - o) s) + (b + W o)``. That is exact in float and done before anything is
quantized; the prologue itself is never multiplied into quantized weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Normalizer, ObservationSpec
from quarl_export.calibration.data import CalibrationData
from quarl_export.calibration.rules import RangeRule
from quarl_export.ir import ImportedPolicy, PolicyGraph

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
_CONSTANT = 1e-4
_MOVES_ONLY = frozenset({"flatten", "concatenate"})


def with_input_normalizer(policy: ImportedPolicy, data: CalibrationData | None, rule: RangeRule) -> ImportedPolicy:
    """Return `policy` with a normaliser for every key that has none and whose readers are dense layers.

    Images are left alone: their elements are of one kind already. So is a key that something else than a dense layer
    reads, and one that has neither data nor finite bounds.

    Args:
        policy: as imported.
        data: observations to take limits from; not needed where `rule` is "bounds" and the space has some.
        rule: how limits follow from data.
    """
    graph, weights = policy.graph, dict(policy.weights)
    offsets, scales = dict(policy.contract.normalizer.offset), dict(policy.contract.normalizer.scale)
    specs = {spec.key: spec for spec in policy.contract.observations}
    normalizer = policy.contract.normalizer
    for item in graph.inputs:
        # A clip is of normalised values: with one, a key without a normaliser is clipped by it as well.
        if item.key in offsets or normalizer.clip or len(item.shape) > 1:
            continue
        readers = _dense_readers(graph, item.key)
        limits = _limits(specs[item.key], item.shape, data, rule)
        if readers is None or limits is None or not readers:
            continue
        offset, scale = _constants(*limits)
        for name, start in readers:
            _absorb(weights, name, start, offset, scale)
        offsets[item.key], scales[item.key] = tuple(offset.tolist()), tuple(scale.tolist())
    normalizer = Normalizer(where=normalizer.where, offset=offsets, scale=scales, clip=normalizer.clip)
    return dataclasses.replace(
        policy,
        weights=weights,
        graph=_with_biases(graph, weights),
        contract=dataclasses.replace(policy.contract, normalizer=normalizer),
    )


def _limits(
    spec: ObservationSpec, shape: tuple[int, ...], data: CalibrationData | None, rule: RangeRule
) -> tuple[Float64, Float64] | None:
    """Return lower and upper limit per element, ``[elements]`` each; `None` where nothing says them."""
    size = math.prod(shape)
    bounds = _bounds(spec, size)
    if rule.kind == "bounds" and bounds is not None:
        return bounds
    if data is None:
        return None
    # All frames of a stack alike: a device normalises one frame at a time.
    frames = data.rows[spec.key].reshape(data.count * spec.stack, size // spec.stack).astype(np.float64)
    low, high = (np.tile(limit, spec.stack) for limit in rule.columns(frames))
    still = high - low < 2 * _CONSTANT
    if still.any():
        # Dividing by nearly nothing would blow up the first change of a dimension that did not move.
        centre = (low + high) / 2
        wide = (centre - 1.0, centre + 1.0) if bounds is None else bounds
        low, high = np.where(still, wide[0], low), np.where(still, wide[1], high)
    return low, high


def _bounds(spec: ObservationSpec, size: int) -> tuple[Float64, Float64] | None:
    if spec.low is None or spec.high is None:
        return None
    low, high = (np.asarray(bound, np.float64) for bound in (spec.low, spec.high))
    if low.size not in (1, size):  # stacked frames: the same bounds for each
        low, high = (np.tile(bound, size // bound.size) for bound in (low, high))
    low, high = np.broadcast_to(low, (size,)), np.broadcast_to(high, (size,))
    return (low, high) if bool((high - low > _CONSTANT).all() and (np.abs(high - low) < 1e6).all()) else None


def _constants(low: Float64, high: Float64) -> tuple[Float32, Float32]:
    offset = ((low + high) / 2).astype(np.float32)
    return offset, (2.0 / (high - low)).astype(np.float32)


def _dense_readers(graph: PolicyGraph, key: str) -> list[tuple[str, int]] | None:
    """Return the dense layers that read `key` and at which of their inputs; `None` if anything else reads it."""
    readers: list[tuple[str, int]] = []
    open_tensors = [(key, 0)]
    while open_tensors:
        name, start = open_tensors.pop()
        if name in graph.outputs.values():
            return None
        for layer in graph.consumers(name):
            if layer.kind == "dense":
                readers.append((layer.name, start))
            elif layer.kind in _MOVES_ONLY and all(len(graph.shapes[other]) == 1 for other in layer.inputs):
                open_tensors += [(layer.name, start + shift) for shift in _shifts(graph, layer.inputs, name)]
            else:
                return None
    return readers


def _shifts(graph: PolicyGraph, inputs: tuple[str, ...], name: str) -> Iterator[int]:
    shift = 0
    for other in inputs:
        if other == name:
            yield shift
        shift += graph.shapes[other][0]


def _absorb(weights: dict[str, Float32], name: str, start: int, offset: Float32, scale: Float32) -> None:
    kernel = weights[f"{name}/kernel"].astype(np.float64)
    rows = slice(start, start + len(offset))
    bias = weights.get(f"{name}/bias", np.zeros(kernel.shape[1], np.float32)).astype(np.float64)
    weights[f"{name}/bias"] = (bias + offset.astype(np.float64) @ kernel[rows]).astype(np.float32)
    kernel[rows] /= scale.astype(np.float64)[:, None]
    weights[f"{name}/kernel"] = kernel.astype(np.float32)


def _with_biases(graph: PolicyGraph, weights: dict[str, Any]) -> PolicyGraph:
    """Return `graph` with `use_bias` where a centred input has given a dense layer one."""
    layers = tuple(
        dataclasses.replace(layer, use_bias=True)
        if layer.kind == "dense" and not layer.use_bias and f"{layer.name}/bias" in weights
        else layer
        for layer in graph.layers
    )
    shapes = {name: array.shape for name, array in weights.items()}
    return PolicyGraph(inputs=graph.inputs, layers=layers, outputs=graph.outputs, weight_shapes=shapes)
