"""Losses of policies: deterministic (DPG), and stochastic with advantages (A2C, PPO)."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

Tensor = Any
_LOG_2_PI = math.log(2.0 * math.pi)
# From here on an int8 tanh, in steps of 1/128, gives its last one: 127/128.
LAST_STEP_OF_TANH = math.atanh(126.5 / 128.0)


def deterministic_policy_gradient(action: Tensor, dq_da: Tensor, *, max_norm: float = 0.0) -> Tensor:
    """Return a loss whose gradient by `action` is minus `dq_da` (Silver et al. 2014).

    Args:
        action: float32[B, N], what the policy does.
        dq_da: float32[B, N], gradient of the value by the action at that action.
        max_norm: each row of `dq_da` is shortened to this norm, as Acme does; 0: as it is.

    Returns:
        float32[B], half the squared length of the step that it asks for; its gradient is what matters.
    """
    if max_norm:
        dq_da = tf.clip_by_norm(dq_da, max_norm, axes=[-1])
    target = tf.stop_gradient(dq_da + action)
    return 0.5 * tf.reduce_sum(tf.square(target - action), axis=-1)


def saturation(linear: Tensor) -> Tensor:
    """Return how far what enters a tanh lies where its int8 output no longer moves.

    A critic that knows nothing yet may drive a policy so deep into saturation that float32 has no gradient left to come
    back by. No action is lost by staying near the border: beyond it the file acts the same.

    Args:
        linear: float32[B, N], outputs of the last dense layer.

    Returns:
        float32[B], half the squared excess over `LAST_STEP_OF_TANH`, summed over the action.
    """
    return 0.5 * tf.reduce_sum(tf.square(tf.nn.relu(tf.abs(linear) - LAST_STEP_OF_TANH)), axis=-1)


def generalized_advantages(reward: Tensor, value: Tensor, next_value: Tensor, carry: Tensor, gamma: Tensor) -> Tensor:
    """Return generalised advantage estimates (Schulman et al. 2016, equation 16), by time.

    Truncation and termination are told apart by the caller: `gamma` is 0 after a termination alone, `carry` after
    either, so a truncated episode bootstraps from its true last observation and nothing flows over its end.

    Args:
        reward: float32[T, N].
        value: float32[T, N], at the observation that was acted on.
        next_value: float32[T, N], at what truly followed it.
        carry: float32[T, N], discount * lambda, or 0 where the episode ended.
        gamma: float32[T, N], discount, or 0 where it terminated.

    Returns:
        float32[T, N], without gradient; returns to regress to are these plus `value`.
    """
    error = reward + gamma * next_value - value
    advantage = tf.scan(
        lambda later, row: row[0] + row[1] * later, (error, carry), initializer=tf.zeros_like(error[0]), reverse=True
    )
    return tf.stop_gradient(advantage)


def standardize(advantage: Tensor) -> Tensor:
    """Return `advantage` with mean 0 and standard deviation 1 over all its elements."""
    mean = tf.reduce_mean(advantage)
    deviation = tf.sqrt(tf.reduce_mean(tf.square(advantage - mean)))
    return (advantage - mean) / (deviation + 1e-8)


def clipped_surrogate(log_prob: Tensor, acted_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return PPO's clipped loss (Schulman et al. 2017, equation 7), to be minimised.

    Args:
        log_prob: float32[B], of the action under the network in training.
        acted_log_prob: float32[B], under what acted: the int8 file's own outputs.
        advantage: float32[B].
        clip: epsilon, > 0.

    Returns:
        float32[B].
    """
    ratio = tf.exp(log_prob - acted_log_prob)
    return -tf.minimum(ratio * advantage, tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def categorical_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Return log p(action), float32[B], of logits float32[B, A] and action integer[B] in 0..A-1."""
    mask = tf.one_hot(action, tf.shape(logits)[-1], dtype=logits.dtype)
    return tf.reduce_sum(mask * tf.nn.log_softmax(logits, axis=-1), axis=-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """Return the entropy, float32[B], of logits float32[B, A]."""
    log_p = tf.nn.log_softmax(logits, axis=-1)
    return -tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, sample: Tensor) -> Tensor:
    """Return the log density of `sample` under a diagonal gaussian.

    Args:
        mean: float32[B, N].
        log_std: float32[N] or [B, N].
        sample: float32[B, N], before any clipping.

    Returns:
        float32[B].
    """
    error = (sample - mean) * tf.exp(-log_std)
    return -tf.reduce_sum(0.5 * tf.square(error) + log_std + 0.5 * _LOG_2_PI, axis=-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Return the entropy of a diagonal gaussian, summed over the last axis of `log_std`."""
    return tf.reduce_sum(log_std + 0.5 * (1.0 + _LOG_2_PI), axis=-1)
