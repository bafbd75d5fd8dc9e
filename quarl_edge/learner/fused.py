"""Many gradient steps in one call of TensorFlow, whose overhead costs more than a small network's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

Tensor = Any


def graph_of(function: Callable[..., Any], *, xla: bool) -> Callable[..., Any]:
    """Return `function` as a graph, traced as the Python that it is.

    AutoGraph would rewrite every layer that is called in it, which takes longer than all the rest of tracing; loops
    are written as `in_turn`.
    """
    plain = tf.autograph.experimental.do_not_convert(function)
    return cast("Callable[..., Any]", tf.function(plain, autograph=False, jit_compile=xla))


def in_turn(step: Callable[..., Sequence[Tensor]], batches: Sequence[Tensor], *, outputs: int) -> tuple[Tensor, ...]:
    """Run `step` on one batch after the other, in a loop of the graph.

    Args:
        step: takes one batch, and may change variables; the next step sees what it changed.
        batches: [K, ...] each, K the same; `step` gets the k-th of each.
        outputs: how many float32 tensors `step` returns.

    Returns:
        Those tensors of all steps, [K, ...] each.
    """
    signature = (tf.float32,) * outputs
    done = tf.map_fn(
        lambda batch: tuple(step(*batch)), tuple(batches), fn_output_signature=signature, parallel_iterations=1
    )
    return cast("tuple[Tensor, ...]", done)


def at_once(network: Callable[[Tensor], Tensor], batches: Tensor) -> Tensor:
    """Return `network` of K batches in one call: one product instead of K.

    Args:
        network: maps [N, ...] to [N, outputs], each row by itself.
        batches: [K, B, ...].

    Returns:
        [K, B, outputs].
    """
    lead = tf.shape(batches)[:2]
    outputs = network(tf.reshape(batches, (-1, *batches.shape[2:])))
    return tf.reshape(outputs, tf.concat((lead, outputs.shape[1:]), axis=0))
