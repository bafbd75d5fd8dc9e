"""Values as distributions over fixed atoms (Bellemare et al. 2017; D4PG, Barth-Maron et al. 2018)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Tensor = Any


def project(reward: Tensor, discount: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution of ``reward + discount * Z`` on Z's own atoms, each mass shared by its two neighbours.

    The projection of Bellemare et al. 2017 (algorithm 1), written as a product with triangular kernels instead of
    two scatters: XLA turns it into one matrix product.

    Args:
        reward: float32[B].
        discount: float32[B], gamma^m, or 0 where the episode terminated.
        probabilities: float32[B, A] of Z.
        atoms: float32[A], evenly spaced, ascending.

    Returns:
        float32[B, A], rows sum to those of `probabilities`; without gradient.
    """
    low, high = atoms[0], atoms[-1]
    spacing = (high - low) / tf.cast(tf.shape(atoms)[0] - 1, tf.float32)
    moved = tf.clip_by_value(reward[:, None] + discount[:, None] * atoms[None, :], low, high)
    # share[b, i, j]: which part of the mass at moved atom j falls to atom i.
    share = tf.nn.relu(1.0 - tf.abs(moved[:, None, :] - atoms[None, :, None]) / spacing)
    return tf.stop_gradient(tf.linalg.matvec(share, probabilities))


def categorical_cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Return the cross entropy of each row.

    Args:
        target: float32[B, A], probabilities.
        logits: float32[B, A].

    Returns:
        float32[B].
    """
    return -tf.reduce_sum(target * tf.nn.log_softmax(logits, axis=-1), axis=-1)


def categorical_mean(logits: Tensor, atoms: Tensor) -> Tensor:
    """Return the expected value of each row.

    Args:
        logits: float32[B, A].
        atoms: float32[A].

    Returns:
        float32[B].
    """
    return tf.linalg.matvec(tf.nn.softmax(logits, axis=-1), atoms)
