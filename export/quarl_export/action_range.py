"""What an error of a box action is a share of: the range that the float policy really acts in, per element."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec

Float64 = NDArray[np.float64]

_OF_REACH = 0.1
_OF_BOUNDS = 0.01
_WIDE = 1e3
"""Bounds further apart are no actuator's: they say that any number is taken."""


def used_range(action: ActionSpec, acted: Float64) -> Float64:
    """Return per element the smaller of the bounds' width and what the float policy moves by; never 0.

    Bounds of ±1e6 around actions of ±3 would hide that one stands still. A policy that hardly moves an element, held
    at its bound say, is not asked for steps finer than 8 bits have: at least a tenth of its reach from 0 counts, and a
    hundredth of its bounds. One that is fixed in float is measured by its bounds, or by itself where they are wide.

    Args:
        action: of a box.
        acted: float actions ``[rows, elements]``, clipped to the bounds.

    Returns:
        float64 ``[elements]``.
    """
    width = np.asarray(action.high, np.float64) - np.asarray(action.low, np.float64)
    width = np.where(np.isfinite(width) & (width > 0), width, np.inf)
    rows = acted.reshape(len(acted), -1)
    moves, reach = np.ptp(rows, axis=0), np.abs(rows).max(axis=0)
    narrow = width <= _WIDE
    least = np.maximum(_OF_REACH * np.minimum(width, reach), np.where(narrow, _OF_BOUNDS * width, 0.0))
    fixed = np.where(narrow, width, np.where(reach > 0, reach, 1.0))
    result: Float64 = np.where(moves > 0, np.minimum(width, np.maximum(moves, least)), fixed)
    return result
