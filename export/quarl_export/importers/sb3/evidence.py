"""What an agent's archive tells of the statistics that are given with it: are they its own?

`VecNormalize` is no part of the archive. But the archive keeps the observations that training ended with: `_last_obs`
as the policy saw them and, where there is a `VecNormalize`, `_last_original_obs` as the environment gave them
(stable_baselines3/common/{base_class,on_policy_algorithm,off_policy_algorithm}.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import QuarlError, UsageError
from quarl_export.importers.sb3.agent import Agent
from quarl_export.importers.sb3.arrays import ARRAY_CALLS, ARRAY_NAMES, as_array
from quarl_export.importers.sb3.spaces import SINGLE, decode_field
from quarl_export.importers.sb3.unpickle import Vocabulary, empty_dict, read_pickle
from quarl_export.importers.sb3.vecnormalize import VecNormalize

_OBSERVATIONS = Vocabulary(calls={**ARRAY_CALLS, "collections.OrderedDict": empty_dict}, names=ARRAY_NAMES)
_CLOSE = 1e-3
UNKNOWN = "that the VecNormalize statistics are this agent's: its archive cannot tell"


def kept_observations(settings: Mapping[str, Any], name: str, *, what: str) -> dict[str, NDArray[Any]]:
    """Return observations that `data` keeps, ``[environments, *shape]`` by key; none where they do not hold.

    They are a gift: nothing that acts depends on them.
    """
    try:
        data = decode_field(settings, name, what=what)
        found = read_pickle(data, _OBSERVATIONS, what=f"{what}: {name}") if data is not None else None
        parts = found if isinstance(found, dict) else {} if found is None else {SINGLE: found}
        return {str(key): as_array(value, what=what) for key, value in parts.items()}
    except QuarlError:
        return {}


def statistics_doubts(
    agent: Agent, settings: Mapping[str, Any], statistics: VecNormalize, *, what: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return warnings about statistics that may be another agent's, and what had to be assumed of them.

    Raises:
        UsageError: the agent was certainly trained without any.
    """
    seen = kept_observations(settings, "_last_obs", what=what)
    if not statistics.statistics or not seen:
        return (), (UNKNOWN,)
    if agent.family == "actor_critic":
        # These keep the original observation of a VecNormalize and nothing else.
        if not agent.behind_vecnormalize:
            raise UsageError(
                f"{what} was trained without a VecNormalize: with statistics it would act on other numbers",
                hint="leave --vecnormalize out",
            )
        # It is the one of the last reset, which `_last_obs` has left behind.
        return _beyond_clip(seen, statistics), (UNKNOWN,)
    original = kept_observations(settings, "_last_original_obs", what=what)
    compared = [
        _largest_difference(original[key], seen[key], statistics, key)
        for key in statistics.statistics
        if key in original and key in seen and original[key].shape == seen[key].shape
    ]
    known = [difference for difference in compared if difference is not None]
    if not known:
        return _beyond_clip(seen, statistics), (UNKNOWN,)
    if max(known) <= _CLOSE:
        return (), ()
    return (
        f"the statistics do not make of the agent's last observation what it saw (off by {max(known):.3g}): they are "
        "another agent's, of another time, or it was trained without any",
    ), ()


def _largest_difference(original: NDArray[Any], seen: NDArray[Any], statistics: VecNormalize, key: str) -> float | None:
    """Return how far the normalised original observation is from what the policy saw, `None` where it cannot be told.

    In units of the normalised observation, or relative to it where it is beyond 1.
    """
    known = statistics.statistics[key]
    if original.shape[1:] != known.offset.shape or not original.size:
        return None
    made = np.clip((original.astype(np.float64) - known.offset) * known.scale, -statistics.clip, statistics.clip)
    difference = np.abs(made - seen) / np.maximum(1.0, np.abs(made))
    return float(difference.max()) if np.isfinite(difference).all() else None


def _beyond_clip(seen: Mapping[str, NDArray[Any]], statistics: VecNormalize) -> tuple[str, ...]:
    reach = max(
        (float(np.abs(seen[key].astype(np.float64)).max(initial=0.0)) for key in statistics.statistics if key in seen),
        default=0.0,
    )
    if reach <= statistics.clip * (1 + _CLOSE):
        return ()
    return (
        f"the agent saw an observation of {reach:.3g}, the statistics clip to ±{statistics.clip:g}: they are another "
        "agent's",
    )
