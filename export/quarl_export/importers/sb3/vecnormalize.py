"""Observation statistics of Stable-Baselines3's `VecNormalize`, read from its pickle without executing it.

`VecNormalize` gives the policy ``clip((observation - mean) / sqrt(var + epsilon), -clip_obs, clip_obs)``
(stable_baselines3/common/vec_env/vec_normalize.py); reward statistics are of no use in acting and stay behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError, NonFiniteError
from quarl_device.files import read_capped
from quarl_export.importers.sb3.arrays import ARRAY_CALLS, ARRAY_NAMES, as_array, as_floats
from quarl_export.importers.sb3.spaces import SINGLE, SPACE_NAMES
from quarl_export.importers.sb3.unpickle import Record, Vocabulary, empty_dict, read_pickle, shown

MAX_BYTES = 64 << 20
_CLASS = "stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
_STATISTICS = "stable_baselines3.common.running_mean_std.RunningMeanStd"
_VOCABULARY = Vocabulary(
    calls={**ARRAY_CALLS, "collections.OrderedDict": empty_dict},
    names=(_CLASS, _STATISTICS, *ARRAY_NAMES, *SPACE_NAMES, "numpy.float32", "numpy.float64", "numpy.uint8"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """Of one observation key, in the layout in which `VecNormalize` saw it.

    Attributes:
        offset: float64, the mean.
        scale: float64, 1 / sqrt(variance + epsilon).
        count: how many observations they come from.
    """

    offset: NDArray[np.float64]
    scale: NDArray[np.float64]
    count: float


@dataclass(frozen=True, kw_only=True)
class VecNormalize:
    """What it does to observations.

    Attributes:
        statistics: by observation key, `SINGLE` for a space that is no dict; empty where only rewards are normalised.
        clip: what was normalised is clipped to ±clip.
    """

    statistics: Mapping[str, Statistics]
    clip: float


def read_vecnormalize(path: Path) -> VecNormalize:
    """Read what `VecNormalize.save` wrote.

    Raises:
        ModelFileError: missing, over the cap, no such pickle, damaged, or one that names anything else.
        NonFiniteError: NaN or Inf in the statistics.
    """
    data = read_capped(path, cap_bytes=MAX_BYTES, error=ModelFileError, what="VecNormalize statistics")
    what = str(path)
    saved = read_pickle(data, _VOCABULARY, what=what)
    if not isinstance(saved, Record) or saved.name != _CLASS or not isinstance(saved.state, dict):
        raise ModelFileError(f"{what} holds no VecNormalize", hint="write it with VecNormalize.save(path)")
    state = saved.state
    clip, epsilon = (_positive(state, name, what) for name in ("clip_obs", "epsilon"))
    if not state.get("norm_obs", True):
        return VecNormalize(statistics={}, clip=0.0)
    found = state.get("obs_rms")
    by_key = found if isinstance(found, dict) else {SINGLE: found}
    wanted = state.get("norm_obs_keys") or list(by_key)
    if not isinstance(wanted, list) or not all(isinstance(key, str) and key in by_key for key in wanted):
        given, named = (", ".join(map(shown, keys[:8])) for keys in (list(by_key), _listed(wanted)))
        raise ModelFileError(f"{what}: statistics for {given or 'nothing'} where {named} are normalised")
    return VecNormalize(
        statistics={key: _statistics(by_key[key], epsilon, f"{what}: {key[:64]}") for key in wanted}, clip=clip
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _positive(state: Mapping[str, Any], name: str, what: str) -> float:
    value = state.get(name)
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ModelFileError(f"{what}: {name} is {shown(value)}, expected a positive number")
    return float(value)


def _statistics(record: Any, epsilon: float, what: str) -> Statistics:
    if not isinstance(record, Record) or record.name != _STATISTICS or not isinstance(record.state, dict):
        raise ModelFileError(f"{what}: no running mean and variance")
    mean, var = (as_floats(as_array(record.state.get(name), what=what)) for name in ("mean", "var"))
    if mean.shape != var.shape or (var < 0).any():
        raise ModelFileError(f"{what}: a mean of shape {mean.shape[:8]} with a variance of {var.shape[:8]} or below 0")
    count = record.state.get("count", 0.0)
    if not (np.isfinite(mean).all() and np.isfinite(var).all()):
        raise NonFiniteError(f"{what}: mean or variance holds NaN or Inf", hint="train again; these are of no use")
    return Statistics(
        offset=mean, scale=1 / np.sqrt(var + epsilon), count=float(count) if isinstance(count, (int, float)) else 0.0
    )
