"""A2C (Mnih et al. 2016): one pass over a round."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from quarl_edge.algorithms.a2c import A2cConfig
from quarl_edge.learner.on_policy import OnPolicyActorCritic
from quarl_export.qat import QatPolicy

Tensor = Any


class A2c(OnPolicyActorCritic):
    """A2C on rounds of rollouts.

    Args:
        config: hyperparameters.
        policy: with the head "logits" or "gaussian".
    """

    def __init__(self, config: A2cConfig, policy: QatPolicy) -> None:
        self._correct = config.correct_ratio
        super().__init__(config, policy, log_std=config.log_std_initial)

    def policy_loss(self, log_prob: Tensor, acted_log_prob: Tensor, advantage: Tensor) -> Tensor:
        """Return the policy gradient's loss."""
        if self._correct:
            return -tf.exp(log_prob - acted_log_prob) * advantage
        return -log_prob * advantage
