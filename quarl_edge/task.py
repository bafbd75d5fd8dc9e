"""What a run is about: the environment's spaces, and whether its algorithm takes them. Needs no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import EnvSpec, make_single, spaces_to_specs
from quarl_device.errors import UnsupportedSpace
from quarl_edge.config import TrainConfig

_GOLDEN_COUNT = 8
_GOLDEN_STEPS = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """An environment, as a learner sees it.

    Attributes:
        observation: the one observation key.
        action: the discrete actions.
        golden_observations: float32[count, n], distinct, from random play.
    """

    observation: ObservationSpec
    action: ActionSpec
    golden_observations: NDArray[np.float32]


def look_at(config: TrainConfig) -> Task:
    """Look at the environment: its spaces, and a few observations of random play for the golden vectors.

    Raises:
        UnknownEnvironment: no such id.
        UnsupportedSpace: the algorithm does not take its spaces.
    """
    env = make_single(EnvSpec(env_id=config.env_id))
    try:
        observations, action = spaces_to_specs(env.observation_space, env.action_space)
        if action.kind != "discrete":
            raise UnsupportedSpace(
                f"{config.env_id} has continuous actions; {config.algorithm} takes discrete ones",
                hint="try CartPole-v1, Acrobot-v1, MountainCar-v0 or LunarLander-v3",
            )
        if len(observations) != 1 or len(observations[0].shape) != 1:
            raise UnsupportedSpace(
                f"{config.env_id} observes {[(spec.key, spec.shape) for spec in observations]}; "
                f"{config.algorithm} takes one vector in this version"
            )
        env.action_space.seed(config.seed)
        seen = [env.reset(seed=config.seed)[0]]
        for _ in range(_GOLDEN_STEPS):
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            seen.append(env.reset()[0] if terminated or truncated else observation)
    finally:
        env.close()
    recorded = np.asarray(seen, np.float32)
    distinct = np.unique(recorded, axis=0)
    picked = np.linspace(0, len(distinct) - 1, min(_GOLDEN_COUNT, len(distinct))).astype(int)
    return Task(observation=observations[0], action=action, golden_observations=distinct[picked])
