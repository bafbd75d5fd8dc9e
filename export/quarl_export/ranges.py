"""From observations to an int8 range for every site of a graph, by the numpy reference.

The result does not depend on the order of the rows, nor on how they were batched when they were recorded: rows are
sorted by their content and run in chunks of one size, extremes are true extremes, and percentiles are values that were
seen, found by counting.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import NonFiniteError
from quarl_export.calibration.data import CalibrationData
from quarl_export.calibration.digests import row_digests
from quarl_export.calibration.rules import RangeRule
from quarl_export.ir import ImportedPolicy
from quarl_export.ir.policy_graph import SATURATED
from quarl_export.ir.reference import normalize, run_graph

Float32 = NDArray[np.float32]
Range = tuple[float, float]
_CHUNK = 64
_GROUPS = 1 << 16
_SIGN = np.uint32(1 << 31)
# Below this a site is constant for all that int8 can tell; without a floor scales underflow and biases overflow.
MIN_WIDTH = 1e-3
# Beyond this a gaussian head's tanh, which the device computes in float, does not move by 1 in 10,000.
SQUASHED = 5.0


def find_ranges(
    policy: ImportedPolicy,
    data: CalibrationData,
    rule: RangeRule,
    *,
    keep_float: frozenset[str] = frozenset(),
    head_margin: float = 0.05,
) -> dict[str, Range]:
    """Return (low, high) of every site of `policy`, zero inside, at least `MIN_WIDTH` wide.

    Args:
        policy: its network, in float, with its normaliser.
        data: observations.
        rule: how a range follows from a site's values. Under "bounds" an input's range is what its space's bounds
            become behind the normaliser; one without bounds, and every other site, takes the extremes. What goes into
            a tanh or sigmoid alone is cut where that saturates: the steps go where it still moves.
        keep_float: layers that need no range.
        head_margin: outputs' ranges are widened by this fraction of their width, since calibration has not seen all.

    Raises:
        NonFiniteError: a site's values are NaN or Inf.
    """
    sites = policy.graph.range_sites(keep_float=keep_float)
    extremes = _extremes(policy, data, sites)
    ranges = extremes
    if rule.kind == "percentile":
        ranges = _percentiles(policy, data, sites, rule)
    if rule.kind == "bounds":
        ranges = {**ranges, **_input_bounds(policy)}
    outputs = set(policy.graph.outputs.values())
    found = {site: _opened(*ranges[site], margin=head_margin if site in outputs else 0.0) for site in sites}
    for site, limit in saturation_limits(policy).items():
        if site in found:
            low, high = found[site]
            found[site] = max(low, -limit), min(high, limit)
    return found


def saturation_limits(policy: ImportedPolicy) -> dict[str, float]:
    """Return how far from zero a site can matter, for sites that go into nothing but a tanh or sigmoid."""
    graph, head = policy.graph, policy.contract.head
    limits = {}
    for layer in graph.layers:
        kinds = {user.kind for user in graph.consumers(layer.name)}
        if len(kinds) == 1 and kinds <= set(SATURATED) and layer.name not in graph.outputs.values():
            limits[layer.name] = SATURATED[kinds.pop()]
    if head.squash == "tanh" and not graph.consumers(graph.outputs["mean"]):
        limits[graph.outputs["mean"]] = SQUASHED
    return limits


def chunks(policy: ImportedPolicy, data: CalibrationData) -> Iterator[dict[str, Float32]]:
    """Yield every tensor of the graph by name for chunks of the rows, in an order that their content alone decides.

    The last chunk is filled up with its own last row: a matrix product of fewer rows may be summed in another order.
    """
    order = np.argsort(row_digests(data.rows), kind="stable")
    for start in range(0, data.count, _CHUNK):
        part = {key: array[order[start : start + _CHUNK]] for key, array in data.rows.items()}
        missing = _CHUNK - len(next(iter(part.values())))
        if missing:
            part = {key: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) for key, array in part.items()}
        tensors = run_graph(policy.graph, policy.weights, normalize(policy, part))
        yield tensors if not missing else {name: tensor[: _CHUNK - missing] for name, tensor in tensors.items()}


def _extremes(policy: ImportedPolicy, data: CalibrationData, sites: tuple[str, ...]) -> dict[str, Range]:
    found = dict.fromkeys(sites, (np.inf, -np.inf))
    for tensors in chunks(policy, data):
        for site, (low, high) in found.items():
            values = tensors[site]
            if not np.isfinite(values).all():
                raise NonFiniteError(f"policy: {site!r} gives NaN or Inf for calibration observations")
            found[site] = (min(low, float(values.min())), max(high, float(values.max())))
    return found


def _percentiles(
    policy: ImportedPolicy, data: CalibrationData, sites: tuple[str, ...], rule: RangeRule
) -> dict[str, Range]:
    """Return the percentiles of each site: values that it had, however far away the others are.

    float32 values are ordered as their bits are (see `_ordered`). One pass counts the upper 16 of them, which says in
    which of 65,536 groups the wanted values lie; a second counts the lower 16 within those groups.
    """
    upper = {site: np.zeros(_GROUPS, np.int64) for site in sites}
    for tensors in chunks(policy, data):
        for site in sites:
            upper[site] += np.bincount(_ordered(tensors[site]) >> 16, minlength=_GROUPS)
    # By site and end: the group, and which of its values in order.
    wanted: dict[tuple[str, bool], tuple[int, int]] = {}
    for site, counts in upper.items():
        total = int(counts.sum())
        outside = rule.outside(total)
        for is_high, rank in ((False, outside), (True, total - 1 - outside)):
            wanted[site, is_high] = _place(counts, rank)
    lower = {end: np.zeros(_GROUPS, np.int64) for end in wanted}
    for tensors in chunks(policy, data):
        keys = {site: _ordered(tensors[site]) for site in sites}
        for (site, is_high), (group, _) in wanted.items():
            among = keys[site][keys[site] >> 16 == group]
            lower[site, is_high] += np.bincount(among & (_GROUPS - 1), minlength=_GROUPS)
    found = {end: _value(group << 16 | _place(lower[end], rank)[0]) for end, (group, rank) in wanted.items()}
    return {site: (found[site, False], found[site, True]) for site in sites}


def _place(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """Return the group that holds the value of `rank`, counted from 0 upwards, and its rank within the group."""
    below = np.cumsum(counts)
    group = int(np.searchsorted(below, rank, side="right"))
    return group, rank - int(below[group] - counts[group])


def _ordered(values: Float32) -> NDArray[np.uint32]:
    """Return ``[elements]`` integers in the order of finite float32 `values`: sign and magnitude made one count."""
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _value(key: int) -> float:
    """Return the float32 value of an `_ordered` integer."""
    bits = key ^ int(_SIGN) if key & int(_SIGN) else ~key & 0xFFFFFFFF
    return float(np.uint32(bits).view(np.float32))


def _input_bounds(policy: ImportedPolicy) -> dict[str, Range]:
    """Return the range of each input whose space has bounds, behind the normaliser."""
    ranges = {}
    for spec in policy.contract.observations:
        if spec.low is None or spec.high is None:
            continue
        shape = next(item.shape for item in policy.graph.inputs if item.key == spec.key)
        corners = [_behind(policy, spec.key, shape, bound) for bound in (spec.low, spec.high)]
        ranges[spec.key] = (float(np.min(corners)), float(np.max(corners)))
    return ranges


def _behind(policy: ImportedPolicy, key: str, shape: tuple[int, ...], bound: tuple[float, ...]) -> Float32:
    values = np.asarray(bound, np.float32)
    size = int(np.prod(shape))
    values = np.broadcast_to(values, (size,)) if values.size == 1 else np.tile(values, size // values.size)
    others = {item.key: np.zeros((1, *item.shape), np.float32) for item in policy.graph.inputs}
    return normalize(policy, {**others, key: values.reshape(1, *shape)})[key]


def _opened(low: float, high: float, *, margin: float) -> Range:
    low, high = min(low, 0.0), max(high, 0.0)
    wider = margin * (high - low)
    low, high = low - wider * (low < 0.0), high + wider * (high > 0.0)
    return low, max(high, low + MIN_WIDTH)
