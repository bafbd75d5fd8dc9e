"""Brings every dimension of an observation to about ±1, behind the policy's own normaliser where it has one.

A TFLite input has one scale for all of its dimensions: a pole angle of ±0.2 beside velocities of ±3 would get 16 of
256 levels. So each dimension is centred and scaled before the input is quantized, and the float weights that read it
are changed to match: ``W x + b = (W / s) ((x - o) s) + (b + W o)``. That is exact in float and done before anything is
quantized; the prologue itself is never multiplied into quantized weights.

A normaliser of training brings dimensions to a variance of 1, not to one width: one that seldom leaves its rest is ten
of them wide, another three. Where a policy acts on small differences of the narrow one, the levels that it lacks are
returns (PPO on Pendulum: docs/schemes.md).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
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
# Share of the width by which the middle may be off 0: at most a quarter of a bit is lost by it.
_NEARLY = 0.1
_MOVES_ONLY = frozenset({"flatten", "concatenate"})


def with_input_normalizer(policy: ImportedPolicy, data: CalibrationData | None, rule: RangeRule) -> ImportedPolicy:
    """Return `policy` with a normaliser that brings to ±1 every key whose readers are dense layers.

    Images are left alone: their elements are of one kind already. So is a key that something else than a dense layer
    reads, and one that has neither data nor finite bounds. A clip is of the normalised values of all keys: there all
    that are normalised are brought to ±1 or none, and no key without a normaliser gets one. It then lies where it
    first meets the old one in any dimension, never inside of what was calibrated.

    Args:
        policy: as imported.
        data: observations to take limits from; not needed where `rule` is "bounds" and the space has some.
        rule: how limits follow from data.
    """
    old, clip = policy.contract.normalizer, policy.contract.normalizer.clip
    specs = {spec.key: spec for spec in policy.contract.observations}
    found = {}
    for item in policy.graph.inputs:
        readers = _dense_readers(policy.graph, item.key) if len(item.shape) == 1 else None
        if not readers or (clip and item.key not in old.offset):
            continue
        first = _constants_of(old, item.key, math.prod(item.shape))
        limits = _limits(specs[item.key], first[1], data, rule)
        if limits is not None:
            found[item.key] = (readers, _Brought.of(first, clip, *limits))
    if clip and any(key not in found for key in old.offset):
        return policy
    weights, offsets, scales = dict(policy.weights), dict(old.offset), dict(old.scale)
    for key, (readers, brought) in found.items():
        for name, start in readers:
            _absorb(weights, name, start, brought.offset, brought.scale)
        offsets[key], scales[key] = brought.normalizer
    if clip and found:
        clip = min(brought.reach(clip) for _, brought in found.values())
    normalizer = Normalizer(where=old.where, offset=offsets, scale=scales, clip=clip)
    return dataclasses.replace(
        policy,
        weights=weights,
        graph=_with_biases(policy.graph, weights),
        contract=dataclasses.replace(policy.contract, normalizer=normalizer),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Brought:
    """What brings a key's elements to ±1 behind its first normaliser, ``[elements]`` each.

    Attributes:
        first_offset: of the policy's own normaliser, 0 where it has none.
        first_scale: likewise, 1 where it has none.
        offset: of what comes behind it.
        scale: likewise.
    """

    first_offset: Float64
    first_scale: Float64
    offset: Float32
    scale: Float32

    @classmethod
    def of(cls, first: tuple[Float64, Float64], clip: float, low: Float64, high: Float64) -> _Brought:
        """Return what brings raw values from `low` to `high` to ±1.

        Args:
            first: offset and scale that come before it.
            clip: behind them, 0 for none.
            low: limits, ``[elements]``.
            high: likewise.
        """
        ends = [(limit - first[0]) * first[1] for limit in (low, high)]
        if clip:
            ends = [np.clip(end, -clip, clip) for end in ends]
        low, high = np.minimum(*ends), np.maximum(*ends)
        # Dividing by nearly nothing would blow up the first change of a dimension that did not move.
        still = high - low < 2 * _CONSTANT
        wide = _window((low + high) / 2, clip)
        offset, scale = _constants(np.where(still, wide[0], low), np.where(still, wide[1], high))
        return cls(first_offset=first[0], first_scale=first[1], offset=offset, scale=scale)

    @property
    def normalizer(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Offset and scale of both as one, in float32's digits."""
        # A first scale of 0 makes a constant of its element: it then has the value 0, whatever is taken off.
        inverse = np.divide(1.0, self.first_scale, out=np.zeros_like(self.first_scale), where=self.first_scale != 0.0)
        offset = self.first_offset + self.offset * inverse
        scale = self.first_scale * self.scale
        return tuple(offset.astype(np.float32).tolist()), tuple(scale.astype(np.float32).tolist())

    def reach(self, clip: float) -> float:
        """Return where ±`clip` behind the first normaliser lies at the nearest: nowhere within ±1, as limits are."""
        ends = np.stack([clip - self.offset, clip + self.offset]) * self.scale
        return float(ends.min())


def _constants_of(normalizer: Normalizer, key: str, size: int) -> tuple[Float64, Float64]:
    """Return offset and scale of `key`, ``[size]`` each; 0 and 1 where it has none."""
    offset, scale = (
        np.broadcast_to(np.asarray(part.get(key, default), np.float64), (size,))
        for part, default in ((normalizer.offset, (0.0,)), (normalizer.scale, (1.0,)))
    )
    return offset, scale


def _window(centre: Float64, clip: float) -> tuple[Float64, Float64]:
    """Return limits around a value that does not move, within ±`clip`: a centre at the clip would leave it no room."""
    half = min(1.0, clip) if clip else 1.0
    low = np.clip(centre - half, -clip, clip - 2 * half) if clip else centre - half
    return low, low + 2 * half


def _limits(
    spec: ObservationSpec, scale: Float64, data: CalibrationData | None, rule: RangeRule
) -> tuple[Float64, Float64] | None:
    """Return lower and upper limit per element of raw observations; `None` where nothing says them.

    Args:
        spec: of the observation.
        scale: of the policy's own normaliser, ``[elements]``: one in small units moves by what the network sees.
        data: to take them from.
        rule: how.
    """
    size = len(scale)
    bounds = _bounds(spec, scale)
    if rule.kind == "bounds" and bounds is not None:
        return bounds
    if data is None:
        return None
    # All frames of a stack alike: a device normalises one frame at a time.
    frames = data.rows[spec.key].reshape(data.count * spec.stack, size // spec.stack).astype(np.float64)
    low, high = (np.tile(limit, spec.stack) for limit in rule.columns(frames))
    still = (high - low) * np.abs(scale) < 2 * _CONSTANT
    if bounds is not None:
        low, high = np.where(still, bounds[0], low), np.where(still, bounds[1], high)
    return _around_zero(low, high)


def _around_zero(low: Float64, high: Float64) -> tuple[Float64, Float64]:
    """Return limits that lie nearly around 0 exactly around it, so that 0 is a level of the input.

    Many tasks bring a dimension to rest at 0. If that falls between two levels, a policy sees it half a level off all
    the time, and rests elsewhere.
    """
    near = np.abs(low + high) / 2 <= _NEARLY * (high - low)
    reach = np.maximum(np.abs(low), np.abs(high))
    return np.where(near, -reach, low), np.where(near, reach, high)


def _bounds(spec: ObservationSpec, scale: Float64) -> tuple[Float64, Float64] | None:
    if spec.low is None or spec.high is None:
        return None
    low, high = (np.asarray(bound, np.float64) for bound in (spec.low, spec.high))
    size = len(scale)
    if low.size not in (1, size):  # stacked frames: the same bounds for each
        low, high = (np.tile(bound, size // bound.size) for bound in (low, high))
    low, high = np.broadcast_to(low, (size,)), np.broadcast_to(high, (size,))
    widths = (high - low) * np.where(scale != 0.0, np.abs(scale), 1.0)
    return (low, high) if bool((widths > _CONSTANT).all() and (widths < 1e6).all()) else None


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
