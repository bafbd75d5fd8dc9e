"""What a patch writes: the values of one policy, and invented ones to find places and to verify with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Normalizer
from quarl_device.errors import NonFiniteError, PatchError
from quarl_export.kernels import has_one_scale
from quarl_export.range_plan import Range, RangePlan

Float32 = NDArray[np.float32]
NormalizerArrays = Mapping[str, tuple[Float32, Float32]]
"""Per observation key: offset and scale, of the input's shape or ``[1]``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyValues:
    """One moment of a policy.

    Attributes:
        weights: float32, by name, as in the policy graph.
        ranges: per site, as calibrated.
        normalizer: of the prologue in the file; empty where it has none.
    """

    weights: Mapping[str, Float32]
    ranges: Mapping[str, Range]
    normalizer: NormalizerArrays = field(default_factory=dict)


def normalizer_arrays(normalizer: Normalizer, plan: RangePlan) -> dict[str, tuple[Float32, Float32]]:
    """Return offset and scale of every input that `normalizer` names and an output depends on."""
    shapes = {item.key: item.shape for item in plan.graph.inputs}
    return {
        key: (_shaped(normalizer.offset[key], shapes[key]), _shaped(normalizer.scale[key], shapes[key]))
        for key in shapes
        if key in normalizer.offset and key in plan.live
    }


def clip_bound(scale: Float32, clip: float) -> Float32:
    """Return what to clip to before the scale is multiplied with, for a product within plus or minus `clip`."""
    largest = np.finfo(np.float32).max
    with np.errstate(divide="ignore", over="ignore"):
        return np.minimum(np.float32(clip) / np.abs(scale), largest).astype(np.float32)


def check_values(values: PolicyValues, plan: RangePlan, normalizer_shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse values of another network.

    Raises:
        PatchError: names, shapes or dtypes differ.
        NonFiniteError: the normaliser holds NaN or Inf; weights are looked at when they are written.
    """
    shapes = plan.graph.weight_shapes
    if values.weights.keys() != shapes.keys():
        wrong = sorted(values.weights.keys() ^ shapes.keys())
        raise PatchError(f"the template is of another network: arrays {wrong[:4]} are missing or unknown")
    for name, array in values.weights.items():
        if array.shape != shapes[name] or array.dtype != np.float32:
            raise PatchError(
                f"the template is of another network: {name} is {array.dtype}{list(array.shape)}, "
                f"expected float32{list(shapes[name])}"
            )
    found = {key: scale.shape for key, (_, scale) in values.normalizer.items()}
    if found != dict(normalizer_shapes):
        raise PatchError(f"the template normalises {dict(normalizer_shapes)}, not {found}")
    for key, arrays in values.normalizer.items():
        if not all(np.isfinite(array).all() for array in arrays):
            raise NonFiniteError(f"policy: normaliser of {key!r} holds NaN or Inf")


def untied(values: PolicyValues, plan: RangePlan) -> PolicyValues:
    """Return `values` that the converter treats as any others, changed as little as that takes.

    It keeps one of two equal kernels and then quantizes it per channel; two equal layers on one input it merges, and
    leaves them in float if their ranges differ. Of a bias whose elements are all the same, on scales per channel, it
    quantizes the first and writes that everywhere, which is wrong. A patched file has none of this, so there is nothing
    to compare it with.
    """
    seen: dict[bytes, int] = {}
    weights = dict(values.weights)
    for layer in plan.graph.layers:
        name = f"{layer.name}/kernel"
        if name in weights:
            content = weights[name].tobytes()
            times = seen[content] = seen.get(content, -1) + 1
            if times:
                weights[name] = weights[name] + np.float32(1e-3 * times) * (1 + np.abs(weights[name]).max(initial=0.0))
        name = f"{layer.name}/bias"
        if name in weights and _is_one_value(weights[name]) and not has_one_scale(layer, plan.options):
            weights[name] = weights[name].copy()
            weights[name][0] = np.nextafter(weights[name][0], np.float32(np.inf))
    return PolicyValues(weights=weights, ranges=values.ranges, normalizer=values.normalizer)


def _is_one_value(array: Float32) -> bool:
    return array.size > 1 and bool(array[0] != 0) and bool((array == array[0]).all())


def is_tied(values: PolicyValues, plan: RangePlan) -> bool:
    """Whether `untied` would change anything."""
    changed = untied(values, plan).weights
    return any(changed[name] is not array for name, array in values.weights.items())


def fingerprint(plan: RangePlan, normalizer_shapes: Mapping[str, tuple[int, ...]]) -> PolicyValues:
    """Return values without zeros, without equal ones, and with a distinct range at every site.

    The converter leaves out biases of zeros and lets equal constants share one tensor: neither may happen in a file
    that others are written into.
    """
    ranges = {}
    for place, site in enumerate(plan.sites):
        low, high = -(0.5 + 0.07 * place), 2.0 + 0.31 * place
        if plan.clip and plan.is_input(site):
            low, high = -plan.clip * (0.3 + 0.005 * place), plan.clip * (0.6 + 0.003 * place)
        ranges[site] = (low, high)
    return _random(plan, normalizer_shapes, ranges, seed=20_210)


def probe(plan: RangePlan, normalizer_shapes: Mapping[str, tuple[int, ...]], *, seed: int) -> PolicyValues:
    """Return random values with ranges as training makes them, to verify with."""
    rng = np.random.default_rng(seed)
    kinds = {layer.name: layer.kind for layer in plan.graph.layers}
    ranges = {}
    for site in plan.sites:
        low = 0.0 if kinds.get(site) in ("relu", "relu6") else -float(rng.uniform(0.2, 9.0))
        ranges[site] = (low, float(rng.uniform(0.2, 9.0)))
    return _random(plan, normalizer_shapes, ranges, seed=seed)


def _random(
    plan: RangePlan, normalizer_shapes: Mapping[str, tuple[int, ...]], ranges: Mapping[str, Range], *, seed: int
) -> PolicyValues:
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in plan.graph.weight_shapes.items():
        if len(shape) == 1:
            array = rng.uniform(0.03, 0.3, shape) * rng.choice([-1.0, 1.0], shape)
        else:
            # A different extreme in every channel, so that each has a scale of its own.
            array = rng.uniform(-1, 1, shape) * rng.uniform(0.1, 0.9, shape[-2:] if len(shape) == 4 else shape[-1:])
        weights[name] = array.astype(np.float32)
    normalizer = {
        key: (rng.uniform(0.5, 1.5, shape).astype(np.float32), rng.uniform(2.0, 3.0, shape).astype(np.float32))
        for key, shape in normalizer_shapes.items()
    }
    return PolicyValues(weights=weights, ranges=ranges, normalizer=normalizer)


def _shaped(values: tuple[float, ...], shape: tuple[int, ...]) -> Float32:
    return np.asarray(values, np.float32).reshape(shape if len(values) > 1 else (1,))
