"""DDPG (Lillicrap et al. 2016): the critic predicts one number and regresses to the target networks' own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from quarl_edge.algorithms.ddpg import DdpgConfig
from quarl_edge.algorithms.ddpg.actor_critic import DeterministicActorCritic
from quarl_edge.learner import losses
from quarl_export.qat import QatPolicy

Tensor = Any


class Ddpg(DeterministicActorCritic):
    """DDPG on n-step transitions.

    Args:
        config: hyperparameters.
        policy: with the head "action", which acts and is exported.
    """

    def __init__(self, config: DdpgConfig, policy: QatPolicy) -> None:
        super().__init__(config, policy, outputs=1)

    def value(self, output: Tensor) -> Tensor:
        """Return the critic's number."""
        return output[:, 0]

    def critic_loss(
        self, output: Tensor, reward: Tensor, discount: Tensor, next_output: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return half the squared temporal difference, and that itself."""
        error = losses.td_target(reward, discount, next_output[:, 0]) - output[:, 0]
        return 0.5 * tf.square(error), error
