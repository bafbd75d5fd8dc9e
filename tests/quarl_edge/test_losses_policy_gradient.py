"""Policy losses against arrays computed by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from quarl_edge.learner import losses


def test_the_gradient_of_the_dpg_loss_is_the_critics():
    action = tf.Variable([[0.5, -0.5], [0.0, 1.0]])
    slope = np.float32([[1.0, -2.0], [0.25, 0.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(losses.deterministic_policy_gradient(action, slope))
    np.testing.assert_allclose(tape.gradient(loss, action), -slope, rtol=1e-6)


def test_a_steep_critic_is_shortened_row_by_row():
    action = tf.Variable([[0.0, 0.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(
            losses.deterministic_policy_gradient(action, np.float32([[3.0, 4.0], [0.3, 0.4]]), max_norm=1.0)
        )
    np.testing.assert_allclose(tape.gradient(loss, action), [[-0.6, -0.8], [-0.3, -0.4]], rtol=1e-6)


def test_saturation_counts_from_the_last_step_of_an_int8_tanh_on():
    # 127/128 is the last step; what rounds to it is no saturation yet.
    border = losses.LAST_STEP_OF_TANH
    assert round(math.tanh(border - 1e-3) * 128) == 126
    assert round(math.tanh(border + 1e-3) * 128) == 127
    linear = tf.Variable([[0.0, border - 0.01], [border + 2.0, -border - 1.0]])
    with tf.GradientTape() as tape:
        loss = losses.saturation(linear)
    np.testing.assert_allclose(loss, [0.0, 0.5 * 4.0 + 0.5 * 1.0], rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(loss, linear), [[0.0, 0.0], [2.0, -1.0]], rtol=1e-5)


def test_advantages_by_hand():
    """discount 0.5, lambda 0.5; environment 1 terminates in row 1, environment 2 is truncated there."""
    reward = np.float32([[1, 1], [2, 2], [4, 4]])
    value = np.float32([[1, 1], [2, 2], [3, 3]])
    following = np.float32([[2, 2], [9, 9], [8, 8]])
    gamma = np.float32([[0.5, 0.5], [0.0, 0.5], [0.5, 0.5]])
    carry = np.float32([[0.25, 0.25], [0.0, 0.0], [0.25, 0.25]])
    last = 4 + 0.5 * 8 - 3
    terminated, truncated = 2 - 2, 2 + 0.5 * 9 - 2
    expected = [
        [1 + 0.5 * 2 - 1 + 0.25 * terminated, 1 + 0.5 * 2 - 1 + 0.25 * truncated],
        [terminated, truncated],
        [last, last],
    ]
    np.testing.assert_allclose(losses.generalized_advantages(reward, value, following, carry, gamma), expected)


def test_lambda_one_without_ends_gives_returns_less_values():
    reward, value = np.float32([[1], [2], [3]]), np.float32([[5], [6], [7]])
    following = np.float32([[6], [7], [10]])
    ones = np.full((3, 1), 0.9, np.float32)
    returns = [1 + 0.9 * (2 + 0.9 * (3 + 0.9 * 10)), 2 + 0.9 * (3 + 0.9 * 10), 3 + 0.9 * 10]
    found = losses.generalized_advantages(reward, value, following, ones, ones).numpy()[:, 0]
    np.testing.assert_allclose(found, np.subtract(returns, [5, 6, 7]), rtol=1e-6)


def test_standardized_advantages_have_no_offset_and_no_scale():
    found = losses.standardize(tf.constant([[1.0, 3.0], [5.0, 7.0]])).numpy()
    np.testing.assert_allclose(found, np.array([[-3, -1], [1, 3]]) / math.sqrt(5.0), rtol=1e-5)
    np.testing.assert_array_equal(losses.standardize(tf.constant([2.0, 2.0])), [0.0, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 1.0, -1.1, -1.1),  # inside: follows
        (1.5, 1.0, -1.2, 0.0),  # good and already likelier: no further
        (0.5, 1.0, -0.5, -0.5),  # good and less likely: follows
        (0.5, -1.0, 0.8, 0.0),  # bad and already less likely: no further
        (1.5, -1.0, 1.5, 1.5),  # bad and likelier: follows
    ],
)
def test_the_clipped_surrogate_case_by_case(ratio, advantage, loss, slope):
    log_prob = tf.Variable([math.log(ratio) - 2.0])
    with tf.GradientTape() as tape:
        found = losses.clipped_surrogate(log_prob, tf.constant([-2.0]), tf.constant([advantage]), 0.2)
    np.testing.assert_allclose(found, [loss], rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(found, log_prob), [slope], rtol=1e-5)


def test_a_categorical_by_hand():
    logits = np.log(np.float32([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])) + 3.0
    np.testing.assert_allclose(losses.categorical_log_prob(logits, np.uint8([0, 2])), np.log([0.5, 0.8]), rtol=1e-5)
    entropy = [1.5 * math.log(2.0), -(0.2 * math.log(0.1) + 0.8 * math.log(0.8))]
    np.testing.assert_allclose(losses.categorical_entropy(logits), entropy, rtol=1e-5)


def test_a_gaussian_by_hand():
    mean, log_std = np.float32([[0.0, 1.0]]), np.float32([0.0, math.log(2.0)])
    found = losses.gaussian_log_prob(mean, log_std, np.float32([[1.0, 5.0]]))
    expected = -(0.5 * 1 + 0.5 * 4) - math.log(2.0) - math.log(2 * math.pi)
    np.testing.assert_allclose(found, [expected], rtol=1e-6)
    np.testing.assert_allclose(
        losses.gaussian_entropy(log_std), math.log(2 * math.pi * math.e) + math.log(2.0), rtol=1e-6
    )
