"""DQN: Q values of discrete actions from replay; `learner` has the updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from quarl_edge.config.fields import spec
from quarl_edge.config.replay import ReplayConfig


@dataclass(frozen=True, kw_only=True)
class DqnConfig(ReplayConfig):
    """Double or plain DQN on n-step transitions.

    Attributes:
        double_q: choose the next action with the online network.
        dueling: learn values and advantages apart (Wang et al. 2016); the file adds them up in one layer.
        huber_delta: error above which the loss is linear; a very large one gives the squared error.
        center_q: subtract the mean over actions from exported Q values.
        exploration_initial: epsilon at the start.
        exploration_final: epsilon from `exploration_steps` on.
        exploration_steps: over which epsilon falls linearly.
    """

    NAME: ClassVar[str] = "dqn"

    algorithm: str = NAME
    double_q: bool = True
    dueling: bool = False
    huber_delta: float = spec(1.0, 0, math.inf, above=True)
    center_q: bool = True
    exploration_initial: float = spec(1.0, 0, 1)
    exploration_final: float = spec(0.05, 0, 1)
    exploration_steps: int = spec(10_000, 1, 10**12)

    @property
    def centers_q(self) -> bool:
        """See `TrainConfig.centers_q`."""
        return self.center_q

    @property
    def has_dueling_head(self) -> bool:
        """See `TrainConfig.has_dueling_head`."""
        return self.dueling

    def epsilon(self, env_steps: int) -> float:
        """Return the exploration epsilon after `env_steps` environment steps."""
        part = min(1.0, max(0.0, env_steps / self.exploration_steps))
        return self.exploration_initial + part * (self.exploration_final - self.exploration_initial)
