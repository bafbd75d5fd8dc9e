"""Losses and targets as pure functions of tensors: one module per family, all of them here by name."""

from quarl_edge.learner.losses.distributional import categorical_cross_entropy, categorical_mean, project
from quarl_edge.learner.losses.policy_gradient import (
    LAST_STEP_OF_TANH,
    categorical_entropy,
    categorical_log_prob,
    clipped_surrogate,
    deterministic_policy_gradient,
    gaussian_entropy,
    gaussian_log_prob,
    generalized_advantages,
    saturation,
    standardize,
)
from quarl_edge.learner.losses.values import double_q_learning_target, huber, q_learning_target, select, td_target

__all__ = [
    "LAST_STEP_OF_TANH",
    "categorical_cross_entropy",
    "categorical_entropy",
    "categorical_log_prob",
    "categorical_mean",
    "clipped_surrogate",
    "deterministic_policy_gradient",
    "double_q_learning_target",
    "gaussian_entropy",
    "gaussian_log_prob",
    "generalized_advantages",
    "huber",
    "project",
    "q_learning_target",
    "saturation",
    "select",
    "standardize",
    "td_target",
]
