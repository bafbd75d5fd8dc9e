"""Observations to judge a file on, and golden ones to put into it: recorded ones where there are some, else drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec
from quarl_export.calibration.data import CalibrationData, observation_shape
from quarl_export.golden import GOLDEN_COUNT
from quarl_export.ir import ImportedPolicy
from quarl_export.ir.policy_graph import GraphInput

Rows = dict[str, NDArray[Any]]
JUDGED = 256
_MAX_GOLDEN_BYTES = 256 * 1024
# Bounds as large as this are a type's limits, not an environment's.
_UNBOUNDED = 1e6


@dataclass(frozen=True, kw_only=True, eq=False)
class Judging:
    """Observations to judge by.

    Attributes:
        rows: raw, per key ``[count, *shape]``.
        title: what they are, for messages.
        recorded: whether an environment gave them.
    """

    rows: Rows = field(repr=False)
    title: str
    recorded: bool


def judging(
    policy: ImportedPolicy, held_out: CalibrationData | None, ranges: Mapping[str, tuple[float, float]]
) -> Judging:
    """Return at most `JUDGED` observations: recorded ones, else drawn ones that fill the input's range."""
    if held_out is not None:
        picked = np.unique(np.linspace(0, held_out.count - 1, JUDGED).astype(int))
        rows = {key: array[picked] for key, array in held_out.rows.items()}
        return Judging(rows=rows, title=f"on {len(picked)} {held_out.title}", recorded=True)
    rows = drawn(policy, ranges, count=JUDGED, seed=1)
    return Judging(rows=rows, title=f"on {JUDGED} drawn observations", recorded=False)


def golden_rows(policy: ImportedPolicy, judged: Judging) -> Rows:
    """Return observations to record in the file: the source's own, else up to `GOLDEN_COUNT` of the judging ones.

    Fewer where they are large: the file's metadata have a cap.
    """
    given: Rows = {key: np.asarray(array) for key, array in policy.golden_observations.items()}
    source = given or judged.rows
    count = len(next(iter(source.values())))
    row_bytes = sum(array[0].nbytes for array in source.values())
    wanted = count if given else GOLDEN_COUNT
    wanted = max(1, min(wanted, count, _MAX_GOLDEN_BYTES // max(1, row_bytes)))
    picked = np.unique(np.linspace(0, count - 1, wanted).astype(int))
    return {key: array[picked] for key, array in source.items()}


def drawn(policy: ImportedPolicy, ranges: Mapping[str, tuple[float, float]], *, count: int, seed: int) -> Rows:
    """Return random observations in the contract's dtypes: within the space's bounds, else where the network is used.

    Args:
        policy: gives spaces and normaliser.
        ranges: of int8 inputs, by key; may be empty.
        count: how many.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    inputs = {item.key: item for item in policy.graph.inputs}
    return {
        spec.key: _draw(policy, spec, inputs[spec.key], ranges.get(spec.key), count, rng)
        for spec in policy.contract.observations
    }


def _draw(
    policy: ImportedPolicy,
    spec: ObservationSpec,
    item: GraphInput,
    limits: tuple[float, float] | None,
    count: int,
    rng: np.random.Generator,
) -> NDArray[Any]:
    shape = (count, *observation_shape(spec))
    size, dtype = math.prod(shape[1:]), np.dtype(spec.dtype)
    bounds = _bounds(spec, size)
    values: NDArray[Any]
    if limits is None and bounds is not None:
        values = rng.uniform(*bounds, (count, size))
    elif dtype.kind in "iub" and bounds is None:
        values = rng.integers(0, 2 if dtype.kind == "b" else min(256, np.iinfo(dtype).max), (count, size))
    else:
        values = _before_normalizer(policy, item, rng.uniform(*(limits or (-1.0, 1.0)), (count, size)))
        values = values if bounds is None else np.clip(values, *bounds)
    return (np.rint(values) if dtype.kind in "iub" else values).reshape(shape).astype(dtype)


def _bounds(spec: ObservationSpec, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return lower and upper bounds ``[size]`` that something can be drawn within, `None` without such."""
    if spec.low is None or spec.high is None:
        return None
    low, high = (np.resize(np.asarray(bound, np.float64), size) for bound in (spec.low, spec.high))
    return (low, high) if max(np.abs(low).max(), np.abs(high).max()) < _UNBOUNDED else None


def _before_normalizer(policy: ImportedPolicy, item: GraphInput, values: NDArray[Any]) -> NDArray[Any]:
    """Return what the normaliser makes `values` of; over images it is undone only where it is plain."""
    normalizer = policy.contract.normalizer
    if item.key not in normalizer.offset:
        return values
    offset, scale = (np.unique(part[item.key]) for part in (normalizer.offset, normalizer.scale))
    if len(item.shape) == 1 or max(offset.size, scale.size) > 1:
        offset, scale = np.asarray(normalizer.offset[item.key]), np.asarray(normalizer.scale[item.key])
    undone: NDArray[Any] = values / np.where(scale == 0.0, 1.0, scale) + offset
    return undone
