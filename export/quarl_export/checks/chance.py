"""What random actions return: the zero of the scale on which returns are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from quarl_device.environments import EnvSpec, make_single
from quarl_device.evaluate import Player, play_episodes


def random_returns(
    env: EnvSpec,
    *,
    episodes: int,
    seed: int,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
    allow_module: bool = False,
) -> tuple[float, ...]:
    """Return the undiscounted returns of uniformly drawn actions.

    Args:
        env: the environment.
        episodes: how many.
        seed: episode i starts with `env.reset(seed=seed + i)`; its actions are drawn from the same seed.
        stop: asked before every step; true ends with the episodes completed so far.
        progress: called with the number of completed episodes after each.
        allow_module: see `environments.check_registered`.

    Raises:
        EnvironmentMisbehaved: it raised, or gave what is no step or no finite reward.
        QuarlError: whatever `make_single` raises.
    """
    world = make_single(env, allow_module=allow_module)
    try:
        player = _random(world.action_space)
        played = play_episodes(world, player, episodes=episodes, seed=seed, stop=stop, progress=progress)
    finally:
        world.close()
    return tuple(played.returns)


def _random(space: gymnasium.Space[Any]) -> Player:
    """Return who draws from `space`, and looks at no observation."""

    def begin(seed: int) -> None:
        # Not the generator of the environment itself: actions would be drawn with its own noise.
        space.seed(int(np.random.SeedSequence((seed, 1)).generate_state(1)[0]))

    return Player(
        choose=lambda _: space.sample(),
        begin=begin,
        check=lambda observation, where, step: None,
        title=" of random actions",
    )
