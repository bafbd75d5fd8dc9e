"""D4PG (Barth-Maron et al. 2018): the critic predicts a distribution over fixed atoms."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from quarl_edge.algorithms.d4pg import D4pgConfig
from quarl_edge.algorithms.ddpg.actor_critic import DeterministicActorCritic
from quarl_edge.learner import losses
from quarl_export.qat import QatPolicy

Tensor = Any


class D4pg(DeterministicActorCritic):
    """D4PG on n-step transitions.

    Args:
        config: hyperparameters.
        policy: with the head "action", which acts and is exported.
    """

    def __init__(self, config: D4pgConfig, policy: QatPolicy) -> None:
        self._atoms = tf.constant(np.linspace(config.value_min, config.value_max, config.atoms), tf.float32)
        super().__init__(config, policy, outputs=config.atoms)

    def value(self, output: Tensor) -> Tensor:
        """Return the mean of the distribution."""
        return losses.categorical_mean(output, self._atoms)

    def critic_loss(
        self, output: Tensor, reward: Tensor, discount: Tensor, next_output: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the cross entropy to the projected target distribution, which is the error too."""
        target = losses.project(reward, discount, tf.nn.softmax(next_output), self._atoms)
        loss = losses.categorical_cross_entropy(target, output)
        return loss, loss
