"""How much of an observation space's bounds a calibration has visited.

Ranges fit what was seen. A dimension that stayed in a corner of its bounds has a range for that corner, and no check on
recorded observations can tell what a state beyond would do: so it is told, and nobody is refused by it, since many
bounds are far wider than what ever happens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from quarl_device.contract import ObservationSpec
from quarl_export.calibration.data import CalibrationData

# Bounds as large as this are a type's limits, not an environment's.
MAX_BOUND = 1e6
# Elements of an image are alike: more of them are told as one.
MAX_DIMENSIONS = 64


def visited_shares(specs: tuple[ObservationSpec, ...], data: CalibrationData) -> Mapping[str, tuple[float, ...]]:
    """Return per key the share of its bounds between the least and the greatest value of each dimension.

    Args:
        specs: of the observations; one without bounds is left out, and one of many elements has a single share.
        data: what was calibrated with.
    """
    shares = {}
    for spec in specs:
        size = math.prod(spec.shape)
        if spec.low is None or spec.high is None or not data.count:
            continue
        low, high = (np.resize(np.asarray(bound, np.float64), size) for bound in (spec.low, spec.high))
        if max(np.abs(low).max(), np.abs(high).max()) >= MAX_BOUND:
            continue
        frames = data.rows[spec.key].reshape(-1, size)
        least, most = frames.min(axis=0).astype(np.float64), frames.max(axis=0).astype(np.float64)
        if size > MAX_DIMENSIONS:
            low, least = low.min(keepdims=True), least.min(keepdims=True)
            high, most = high.max(keepdims=True), most.max(keepdims=True)
        # Bounds that are one value are visited by being there.
        width = np.where(high > low, high - low, 1.0)
        found = np.where(high > low, np.clip((most - least) / width, 0.0, 1.0), 1.0)
        shares[spec.key] = tuple(round(float(share), 4) for share in found)
    return shares


def told(shares: Mapping[str, tuple[float, ...]]) -> str:
    """Return where calibration visited the least of a space's bounds, "" where nothing is known."""
    if not shares:
        return ""
    share, key, dimension = min(
        (share, key, dimension) for key, found in shares.items() for dimension, share in enumerate(found)
    )
    where = f"observation {key!r}" + (f"[{dimension}]" if len(shares[key]) > 1 else "")
    many = sum(map(len, shares.values()))
    least = ", the least of all" if many > 1 else ""
    return f"calibration visited {share:.0%} of the bounds of {where}{least}"
