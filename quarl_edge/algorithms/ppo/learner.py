"""PPO (Schulman et al. 2017): many passes over a round, held near what acted by clipped ratios."""

from __future__ import annotations

from typing import Any

from quarl_edge.algorithms.ppo import PpoConfig
from quarl_edge.learner import losses
from quarl_edge.learner.on_policy import OnPolicyActorCritic
from quarl_export.qat import QatPolicy

Tensor = Any


class Ppo(OnPolicyActorCritic):
    """PPO on rounds of rollouts.

    Args:
        config: hyperparameters.
        policy: with the head "logits" or "gaussian".
    """

    def __init__(self, config: PpoConfig, policy: QatPolicy) -> None:
        self._clip = config.clip
        super().__init__(config, policy, log_std=config.log_std_initial)

    def policy_loss(self, log_prob: Tensor, acted_log_prob: Tensor, advantage: Tensor) -> Tensor:
        """Return the clipped surrogate."""
        return losses.clipped_surrogate(log_prob, acted_log_prob, advantage, self._clip)
