"""Gradient steps in one graph: one after the other, each seeing what the one before it changed."""

import numpy as np
import pytest
import tensorflow as tf

from quarl_edge.learner.fused import at_once, graph_of, in_turn


@pytest.mark.parametrize("xla", [False, True])
def test_each_step_sees_what_the_one_before_it_changed(xla):
    weight = tf.Variable(1.0)

    def step(factor, term):
        before = weight.read_value()
        weight.assign(weight * factor[0] + term)
        return before, factor * 2.0

    factors = np.array([[2.0, 0.0], [3.0, 1.0], [4.0, 2.0]], np.float32)
    terms = np.array([1.0, 0.0, -1.0], np.float32)
    graph = graph_of(lambda *arrays: in_turn(step, arrays, outputs=2), xla=xla)
    seen, doubled = graph(factors, terms)
    np.testing.assert_array_equal(seen, [1.0, 3.0, 9.0])
    np.testing.assert_array_equal(doubled, 2.0 * factors)
    assert float(weight) == 35.0


def test_integers_go_in_as_they_are():
    graph = graph_of(lambda rows: in_turn(lambda row: (tf.cast(row[0], tf.float32),), (rows,), outputs=1), xla=True)
    [found] = graph(np.array([[3, 1], [2, 0]], np.int32))
    np.testing.assert_array_equal(found, [3.0, 2.0])


def test_batches_at_once_are_those_one_by_one():
    kernel = tf.constant(np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32))
    batches = np.random.default_rng(1).normal(size=(4, 5, 3)).astype(np.float32)
    found = at_once(lambda rows: tf.matmul(rows, kernel), tf.constant(batches))
    assert found.shape == (4, 5, 2)
    np.testing.assert_allclose(found, batches @ kernel.numpy(), rtol=1e-5)


def test_python_is_traced_as_it_stands():
    """A branch on a tensor would be rewritten by AutoGraph; here it is an error that says so."""
    graph = graph_of(lambda value: value if value > 0 else -value, xla=False)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        graph(tf.constant(-1.0))
