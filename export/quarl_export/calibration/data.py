"""Observations as arrays by key, checked before anything is derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec, PolicyContract
from quarl_device.errors import NonFiniteError, UsageError
from quarl_export.npz import read_npz

_MAX_MAGNITUDE = 1e18
MAX_ROWS = 10_000
MIN_ROWS = 2
HELD_OUT_EVERY = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationData:
    """Recorded observations.

    Attributes:
        rows: per key ``[count, *shape]`` as the environment gives them, ``[count, stack, *shape]`` of stacked frames,
            in the contract's dtype.
        source: where they come from, for the provenance.
    """

    rows: Mapping[str, NDArray[Any]] = field(repr=False)
    source: str

    @classmethod
    def checked(cls, contract: PolicyContract, arrays: Mapping[str, Any], *, source: str) -> CalibrationData:
        """Return `arrays` as calibration data of `contract`.

        More than `MAX_ROWS` rows are thinned evenly.

        Args:
            contract: whose observations they must be.
            arrays: per key ``[count, *shape]``; keys that the contract does not have are ignored.
            source: see the class.

        Raises:
            UsageError: a missing key, another shape, a type that is no number, no rows, or too few.
            NonFiniteError: NaN or Inf.
        """
        rows = {spec.key: _key_rows(spec, arrays, source) for spec in contract.observations}
        counts = {key: len(array) for key, array in rows.items()}
        if len(set(counts.values())) != 1:
            raise UsageError(f"{source}: keys differ in their number of rows: {counts}")
        (count,) = set(counts.values())
        if count < MIN_ROWS:
            raise UsageError(
                f"{source}: {count} row{'' if count == 1 else 's'} of observations, which says nothing about ranges",
                hint="give a few hundred recorded observations",
            )
        return cls(rows=rows, source=source).thinned(MAX_ROWS)

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(next(iter(self.rows.values())))

    def thinned(self, most: int) -> CalibrationData:
        """Return at most so many rows, spread evenly."""
        if self.count <= most:
            return self
        picked = np.linspace(0, self.count - 1, most).astype(int)
        return CalibrationData(rows={key: array[picked] for key, array in self.rows.items()}, source=self.source)

    def split(self) -> tuple[CalibrationData, CalibrationData]:
        """Return what to calibrate with, and every fourth row held out to judge by; the same for both if few."""
        held = np.arange(self.count) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        if self.count < MIN_ROWS * HELD_OUT_EVERY:
            return self, self
        return self._pick(~held), self._pick(held)

    def _pick(self, rows: NDArray[np.bool_]) -> CalibrationData:
        return CalibrationData(rows={key: array[rows] for key, array in self.rows.items()}, source=self.source)


def load_npz(path: Path, contract: PolicyContract) -> CalibrationData:
    """Read calibration data from an npz file with one array per observation key.

    An npz with a single array, or an npy file's array inside it, serves a policy with a single key whatever its name.

    Raises:
        UsageError: missing, unreadable, over the caps, no npz, pickled, or arrays that do not fit.
        NonFiniteError: NaN or Inf.
    """
    arrays = read_npz(path, what="calibration file")
    keys = [spec.key for spec in contract.observations]
    if len(keys) == len(arrays) == 1:
        arrays = {keys[0]: next(iter(arrays.values()))}
    return CalibrationData.checked(contract, arrays, source=f"npz {path.name}")


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
        raise UsageError(f"{source}: no array {spec.key!r}, found {', '.join(sorted(arrays)) or 'none'}")
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
    converted = array.astype(spec.dtype)
    if np.dtype(spec.dtype).kind in "iub" and not np.array_equal(converted, array):
        raise UsageError(f"{source}: array {spec.key!r} has values that {spec.dtype} does not hold")
    return converted
