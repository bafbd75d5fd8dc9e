"""Losses against arrays computed by hand."""

import numpy as np
import pytest
import tensorflow as tf

from quarl_edge.learner import losses

REWARD = np.float32([1.0, 2.0, -1.0])
DISCOUNT = np.float32([0.9, 0.0, 0.5])
NEXT_TARGET = np.float32([[1.0, 4.0], [100.0, 50.0], [2.0, -2.0]])
NEXT_ONLINE = np.float32([[9.0, 1.0], [0.0, 1.0], [0.0, 3.0]])


def test_q_learning_target_takes_the_maximum_and_stops_at_termination():
    target = losses.q_learning_target(REWARD, DISCOUNT, NEXT_TARGET)
    np.testing.assert_allclose(target, [1 + 0.9 * 4, 2.0, -1 + 0.5 * 2], rtol=1e-6)


def test_double_q_learning_target_values_the_online_choice_with_the_target_network():
    target = losses.double_q_learning_target(REWARD, DISCOUNT, NEXT_TARGET, NEXT_ONLINE)
    np.testing.assert_allclose(target, [1 + 0.9 * 1, 2.0, -1 + 0.5 * -2], rtol=1e-6)


@pytest.mark.parametrize("target", [losses.q_learning_target, losses.double_q_learning_target])
def test_no_gradient_flows_through_a_target(target):
    value = tf.Variable(NEXT_TARGET)
    with tf.GradientTape() as tape:
        arguments = (REWARD, DISCOUNT, value) + ((value,) if target is losses.double_q_learning_target else ())
        total = tf.reduce_sum(target(*arguments) + 0.0 * tf.reduce_sum(value))
    np.testing.assert_array_equal(tape.gradient(total, value), np.zeros_like(NEXT_TARGET))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_select_picks_one_value_a_row(dtype):
    picked = losses.select(tf.constant(NEXT_TARGET), tf.constant(np.array([1, 0, 1], dtype)))
    np.testing.assert_array_equal(picked, [4.0, 100.0, -2.0])


def test_huber_is_quadratic_inside_and_linear_outside():
    errors = tf.constant([0.0, 0.5, -1.0, 3.0, -4.0])
    np.testing.assert_allclose(losses.huber(errors, 1.0), [0.0, 0.125, 0.5, 2.5, 3.5], rtol=1e-6)


def test_huber_gradient_is_clipped_to_delta():
    errors = tf.Variable([0.5, 3.0, -10.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(losses.huber(errors, 2.0))
    np.testing.assert_allclose(tape.gradient(total, errors), [0.5, 2.0, -2.0], rtol=1e-6)
