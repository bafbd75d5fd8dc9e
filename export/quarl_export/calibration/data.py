"""Observations as arrays by key, checked before anything is derived from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec, PolicyContract
from quarl_device.errors import NonFiniteError, UsageError
from quarl_export.calibration.digests import Digests, row_digests
from quarl_export.calibration.hold_out import HoldOut, hold_out
from quarl_export.npz import read_npz

_MAX_MAGNITUDE = 1e18
MAX_ROWS = 10_000
MAX_BYTES = 256 << 20
"""Of all rows that are kept; images have fewer than `MAX_ROWS`."""
MIN_ROWS = 2
_NAMELESS = ("observation", "arr_0")
_SHOWN_NAMES = 8
# Elements of an image are alike: none of them has an extreme of its own.
_MAX_DIMENSIONS = 64
# Marks in an npz, bool and integer ``[rows]``, that say where episodes begin or which one a row is of.
START, EPISODE = "start", "episode"


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationData:
    """Recorded observations.

    Attributes:
        rows: per key ``[count, *shape]`` as the environment gives them, ``[count, stack, *shape]`` of stacked frames,
            in the contract's dtype.
        source: where they come from, for the provenance.
        held_out: which of them are not to be calibrated with; `None` where there are too few for two parts.
        title: what a message calls them.
    """

    rows: Mapping[str, NDArray[Any]] = field(repr=False)
    source: str
    held_out: HoldOut | None = field(default=None, repr=False)
    title: str = "recorded observations"

    @classmethod
    def checked(
        cls,
        contract: PolicyContract,
        arrays: Mapping[str, Any],
        *,
        source: str,
        episodes: NDArray[np.int64] | None = None,
        held_out: HoldOut | None = None,
    ) -> CalibrationData:
        """Return `arrays` as calibration data of `contract`.

        More than `MAX_ROWS` rows, or `MAX_BYTES`, are thinned.

        Args:
            contract: whose observations they must be.
            arrays: per key ``[count, *shape]``; keys that the contract does not have are ignored.
            source: see the class.
            episodes: ``[count]``, equal where rows are of one episode; `None` where that is not known.
            held_out: which rows were recorded to judge by; default: what `hold_out.hold_out` picks.

        Raises:
            UsageError: a missing key, another shape, a type that is no number, no rows, or too few.
            NonFiniteError: NaN or Inf.
        """
        rows = checked_rows(contract.observations, arrays, source=source)
        count = len(next(iter(rows.values())))
        if count < MIN_ROWS:
            raise UsageError(
                f"{source}: {count} row{'' if count == 1 else 's'} of observations, which says nothing about ranges",
                hint="give a few hundred recorded observations",
            )
        if episodes is not None and episodes.shape != (count,):
            raise UsageError(f"{source}: {episodes.shape} episode numbers for {count} rows of observations")
        if held_out is None:
            held_out = hold_out(row_digests(rows), episodes)
        return cls(rows=rows, source=source, held_out=held_out).thinned(most_rows(contract.observations))

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(next(iter(self.rows.values())))

    def thinned(self, most: int) -> CalibrationData:
        """Return at most so many rows: those with an extreme of a dimension to calibrate with, then any.

        Which ones does not depend on their order; they stay in it.
        """
        if self.count <= most:
            return self
        digests = row_digests(self.rows)
        ordinary = np.ones(self.count, np.bool_)
        ordinary[_extreme_rows(self.rows, digests, self.held_out)] = False
        picked = np.sort(np.lexsort((digests, ordinary))[:most])
        held_out = self.held_out and dataclasses.replace(self.held_out, rows=self.held_out.rows[picked])
        return dataclasses.replace(self._pick(picked), held_out=held_out)

    def split(self) -> tuple[CalibrationData, CalibrationData]:
        """Return what to calibrate with, and what is held out to judge by; the same for both where rows are few."""
        held = self.held_out
        if held is None or not 0 < held.rows.sum() < self.count:
            both = dataclasses.replace(self, held_out=None, title="observations that were calibrated with")
            return both, both
        return self._pick(~held.rows), dataclasses.replace(
            self._pick(held.rows), title=f"held-out observations {held.of}"
        )

    def _pick(self, rows: NDArray[Any]) -> CalibrationData:
        return CalibrationData(rows={key: array[rows] for key, array in self.rows.items()}, source=self.source)


def checked_rows(
    specs: Sequence[ObservationSpec], arrays: Mapping[str, Any], *, source: str
) -> dict[str, NDArray[Any]]:
    """Return the observations of `specs` among `arrays`, per key ``[count, *shape]`` in the dtypes of `specs`.

    Frames of a stack may be joined along their last axis, as frame-stacking wrappers leave them.

    Raises:
        UsageError: a missing key, another shape, a type that is no number, values that the dtype does not hold, or keys
            that differ in their number of rows.
        NonFiniteError: NaN or Inf.
    """
    rows = {spec.key: _key_rows(spec, arrays, source) for spec in specs}
    counts = {key: len(array) for key, array in rows.items()}
    if len(set(counts.values())) != 1:
        raise UsageError(f"{source}: keys differ in their number of rows: {counts}")
    return rows


def most_rows(specs: Sequence[ObservationSpec]) -> int:
    """Return how many rows of these observations are kept at most."""
    row_bytes = sum(math.prod(observation_shape(spec)) * np.dtype(spec.dtype).itemsize for spec in specs)
    return max(MIN_ROWS, min(MAX_ROWS, MAX_BYTES // max(1, row_bytes)))


def _extreme_rows(rows: Mapping[str, NDArray[Any]], digests: Digests, held_out: HoldOut | None) -> list[int]:
    """Return rows to calibrate with that have the least or the greatest value of a dimension, one for each."""
    among = np.arange(len(digests)) if held_out is None else np.flatnonzero(~held_out.rows)
    found = set()
    for array in rows.values():
        flat = array.reshape(len(array), -1)
        for column in flat.T if flat.shape[1] <= _MAX_DIMENSIONS else ():
            values = column[among]
            for extreme in (values.min(), values.max()):
                equal = among[values == extreme]
                found.add(int(equal[digests[equal].argmin()]))
    return sorted(found)


def load_npz(path: Path, contract: PolicyContract) -> CalibrationData:
    """Read calibration data from an npz file with one array per observation key.

    A single array serves a policy with a single key under its key, the name "observation", or none at all: see
    `by_single_key`.
    An array `start`, bool ``[rows]``, may say which rows begin an episode, or `episode`, integer ``[rows]``, which one
    each row is of; whole episodes are then held out.

    Raises:
        UsageError: missing, unreadable, over the caps, no npz, pickled, or arrays that do not fit.
        NonFiniteError: NaN or Inf.
    """
    arrays = read_npz(path, what="calibration file")
    keys = [spec.key for spec in contract.observations]
    source = f"npz {path.name}"
    marks = {name: arrays.pop(name) for name in (START, EPISODE) if name in arrays and name not in keys}
    named = by_single_key(arrays, keys)
    return CalibrationData.checked(contract, named, source=source, episodes=_episodes(marks, source))


def by_single_key(arrays: Mapping[str, NDArray[Any]], keys: Sequence[str]) -> Mapping[str, NDArray[Any]]:
    """Return the only array of a file under the only key of a policy, where its name claims nothing else.

    Args:
        arrays: by their names in the file.
        keys: that the policy observes.

    Returns:
        `arrays`, or the only one renamed: from the key of environments without keys, or from NumPy's own name for an
        array without one. An array that was given another name is another observation.
    """
    if len(keys) == len(arrays) == 1 and next(iter(arrays)) in _NAMELESS:
        return {keys[0]: next(iter(arrays.values()))}
    return arrays


def _episodes(marks: Mapping[str, NDArray[Any]], source: str) -> NDArray[np.int64] | None:
    """Return which episode each row is of, `None` without marks."""
    for name, kinds, are in ((EPISODE, "iu", "integers"), (START, "b", "booleans")):
        if name not in marks:
            continue
        found = marks[name]
        if found.ndim != 1 or found.dtype.kind not in kinds:
            raise UsageError(
                f"{source}: array {name!r} is {found.dtype} {list(found.shape)}, expected {are} [rows]",
                hint=f"it says which rows are of one episode; leave {name!r} out where that is not known",
            )
        return found.astype(np.int64) if name == EPISODE else np.cumsum(found, dtype=np.int64)
    return None


def observation_shape(spec: ObservationSpec) -> tuple[int, ...]:
    """Return the shape of one row of `spec`: the frame's, behind the stack where there is one, oldest frame first."""
    return (spec.stack, *spec.shape) if spec.stack > 1 else spec.shape


def _unjoined(spec: ObservationSpec, array: NDArray[Any]) -> NDArray[Any]:
    """Return ``[rows, stack, *shape]`` of frames that were joined along their last axis, others as they are."""
    joined = (*spec.shape[:-1], spec.shape[-1] * spec.stack) if spec.shape else (spec.stack,)
    if spec.stack == 1 or array.shape[1:] != joined:
        return array
    if not spec.shape:
        return array.reshape(len(array), spec.stack)
    split = array.reshape(len(array), *spec.shape[:-1], spec.stack, spec.shape[-1])
    return np.moveaxis(split, -2, 1)


def _key_rows(spec: ObservationSpec, arrays: Mapping[str, Any], source: str) -> NDArray[Any]:
    if spec.key not in arrays:
        found = ", ".join(repr(name[:64]) for name in sorted(arrays)[:_SHOWN_NAMES]) or "none"
        raise UsageError(
            f"{source}: no array {spec.key!r}, which the policy observes; found {found}",
            hint=f"name it so when saving: numpy.savez(path, **{{{spec.key!r}: rows}})",
        )
    array = _unjoined(spec, np.asarray(arrays[spec.key]))
    shape = observation_shape(spec)
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{source}: array {spec.key!r} is {array.dtype}, expected numbers")
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        expected = f"[rows, {', '.join(map(str, shape))}]" if shape else "[rows]"
        raise UsageError(f"{source}: array {spec.key!r} has shape {list(array.shape)}, expected {expected}")
    if not np.isfinite(array).all():
        bad = int(np.argmax(~np.isfinite(array.reshape(len(array), -1)).all(axis=1)))
        raise NonFiniteError(f"{source}: array {spec.key!r} holds NaN or Inf, first in row {bad}")
    # What enters the network is float32, whatever the environment gives.
    if array.dtype.kind == "f" and np.abs(array, dtype=np.float64).max(initial=0.0) > _MAX_MAGNITUDE:
        raise UsageError(f"{source}: array {spec.key!r} holds values beyond {_MAX_MAGNITUDE:g}")
    converted = array.astype(spec.dtype, copy=False)
    if np.dtype(spec.dtype).kind in "iub" and not np.array_equal(converted, array):
        raise UsageError(f"{source}: array {spec.key!r} has values that {spec.dtype} does not hold")
    return converted
