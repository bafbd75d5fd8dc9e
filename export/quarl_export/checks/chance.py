"""What random actions return: the zero of the scale on which returns are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from quarl_device.environments import EnvSpec, first_line, make_single
from quarl_device.errors import EnvironmentMisbehaved


def random_returns(
    env: EnvSpec,
    *,
    episodes: int,
    seed: int,
    stop: Callable[[], bool],
    progress: Callable[[int], None],
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
        EnvironmentMisbehaved: it raised, or gave a reward that is no finite number.
        QuarlError: whatever `make_single` raises.
    """
    world = make_single(env, allow_module=allow_module)
    returns: list[float] = []
    try:
        for number in range(episodes):
            start = seed + number
            # Not the generator of the environment itself: actions would be drawn with its own noise.
            world.action_space.seed(int(np.random.SeedSequence((start, 1)).generate_state(1)[0]))
            _asked(world.reset, seed=start)
            total, ended = 0.0, False
            while not ended:
                if stop():
                    return tuple(returns)
                _, reward, terminated, truncated, _ = _asked(world.step, world.action_space.sample())
                total, ended = total + float(reward), bool(terminated or truncated)
            if not math.isfinite(total):
                raise EnvironmentMisbehaved(f"random actions return {total} in episode {number} (seed {start})")
            returns.append(total)
            progress(number + 1)
    finally:
        world.close()
    return tuple(returns)


def _asked(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return call(*arguments, **named)
    # The environment is anybody's code.
    except Exception as error:
        raise EnvironmentMisbehaved(
            f"the environment raised with random actions: {type(error).__name__}: {first_line(error)}"
        ) from error
