"""A2C: PPO's rounds with one gradient step each and no clipping; `learner` has the updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quarl_edge.config.fields import spec
from quarl_edge.config.rollout import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class A2cConfig(RolloutConfig):
    """Advantage actor-critic (Mnih et al. 2016), synchronous.

    Attributes:
        correct_ratio: weigh the gradient by the ratio of the trained policy's probability to that of the int8 file
            which acted, as PPO does; without it the two are taken to be one policy.
        log_std_initial: of a gaussian policy, before its output is scaled to the action space.
    """

    NAME: ClassVar[str] = "a2c"

    algorithm: str = NAME
    gae_lambda: float = spec(1.0, 0, 1)
    correct_ratio: bool = True
    log_std_initial: float = spec(-0.5, -20, 2)
