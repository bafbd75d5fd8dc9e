"""Losses and targets of values, batched on the leading axis."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Tensor = Any


def q_learning_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """Return Q-learning targets, r + discount * max_a q'(s', a) (Mnih et al. 2015).

    Args:
        reward: float32[B], n-step return.
        discount: float32[B], gamma^m, or 0 where the episode terminated.
        next_q: float32[B, A], target network at the bootstrap observation.

    Returns:
        float32[B], without gradient.
    """
    return tf.stop_gradient(reward + discount * tf.reduce_max(next_q, axis=1))


def double_q_learning_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_q_selector: Tensor) -> Tensor:
    """Return double Q-learning targets: the online net selects, the target net values (van Hasselt et al. 2016).

    Args:
        reward: float32[B], n-step return.
        discount: float32[B], gamma^m, or 0 where the episode terminated.
        next_q: float32[B, A], target network at the bootstrap observation.
        next_q_selector: float32[B, A], online network at the same observation.

    Returns:
        float32[B], without gradient.
    """
    return tf.stop_gradient(reward + discount * select(next_q, tf.argmax(next_q_selector, axis=1)))


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return targets of a value under one policy, r + discount * v'(s') (Lillicrap et al. 2016, equation 5).

    Args:
        reward: float32[B], n-step return.
        discount: float32[B], gamma^m, or 0 where the episode terminated.
        next_value: float32[B], of the target networks at the bootstrap observation.

    Returns:
        float32[B], without gradient.
    """
    return tf.stop_gradient(reward + discount * next_value)


def select(q_values: Tensor, action: Tensor) -> Tensor:
    """Return q_values[b, action[b]].

    A one-hot product instead of a gather: XLA's gradient of a gather is a scatter, several times slower on a CPU.

    Args:
        q_values: float32[B, A].
        action: integer[B] in 0..A-1.

    Returns:
        float32[B].
    """
    mask = tf.one_hot(action, tf.shape(q_values)[1], dtype=q_values.dtype)
    return tf.reduce_sum(q_values * mask, axis=1)


def huber(error: Tensor, delta: float) -> Tensor:
    """Return the Huber loss of each error: quadratic up to `delta`, linear beyond (Huber 1964).

    Args:
        error: float32[B].
        delta: where it turns linear, > 0.

    Returns:
        float32[B].
    """
    size = tf.abs(error)
    inner = tf.minimum(size, delta)
    return 0.5 * inner * inner + delta * (size - inner)
