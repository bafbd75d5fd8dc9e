"""Atari games as everybody reports them: `gymnasium.wrappers.AtariPreprocessing` around every id of the ALE.

Learner, actor and evaluation know it by the id alone (``ALE/...``). The protocol is that of Machado et al. 2018, with
the sticky actions that the ALE's own registration brings: up to 30 idle steps first, every fourth frame (the maximum of
two), 84x84 grey pixels, and an episode is a game, not a life. One frame is uint8[84, 84, 1]; frames are stacked where
the policy says so, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.wrappers import AtariPreprocessing

from quarl_device.environments.families import family_of_id

FRAME_SKIP = 4
SCREEN_PIXELS = 84
_NOOP_MAX = 30


def is_atari(name: str) -> bool:
    """Return whether an id, without a module, is one of the ALE's."""
    family = family_of_id(name)
    return family is not None and family.extra == "atari"


def unskipped(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with which the game itself skips no frames; the preprocessing does."""
    return {"frameskip": 1, **kwargs}


def preprocessed(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return a game that was made `unskipped`, as the module describes it."""
    return AtariPreprocessing(
        env, noop_max=_NOOP_MAX, frame_skip=FRAME_SKIP, screen_size=SCREEN_PIXELS, grayscale_newaxis=True
    )
