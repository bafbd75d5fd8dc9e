"""PPO: a stochastic policy from rounds of its own rollouts; `learner` has the updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quarl_edge.config.fields import spec
from quarl_edge.config.rollout import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class PpoConfig(RolloutConfig):
    """PPO (Schulman et al. 2017) with clipped ratios.

    Attributes:
        clip: how far a ratio of probabilities may leave 1.
        log_std_initial: of a gaussian policy, before its output is scaled to the action space.
    """

    NAME: ClassVar[str] = "ppo"

    algorithm: str = NAME
    epochs: int = spec(10, 1, 1_000)
    minibatches: int = spec(8, 1, 10_000)
    clip: float = spec(0.2, 0, 10, above=True)
    log_std_initial: float = spec(-0.5, -20, 2)
