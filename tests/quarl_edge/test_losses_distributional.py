"""Distributions over atoms against arrays computed by hand."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from quarl_edge.learner import losses

ATOMS = np.float32([-1.0, 0.0, 1.0, 2.0])


def project(reward, discount, probabilities):
    return losses.project(*(np.float32(x) for x in ([reward], [discount], [probabilities])), ATOMS).numpy()[0]


def test_nothing_moves_without_reward_and_discount():
    np.testing.assert_allclose(project(0.0, 1.0, [0.1, 0.2, 0.3, 0.4]), [0.1, 0.2, 0.3, 0.4], rtol=1e-6)


def test_mass_between_two_atoms_is_shared_by_nearness():
    np.testing.assert_allclose(project(0.25, 1.0, [0.0, 1.0, 0.0, 0.0]), [0.0, 0.75, 0.25, 0.0], rtol=1e-6)


def test_a_termination_leaves_the_reward_alone():
    np.testing.assert_allclose(project(1.5, 0.0, [0.25, 0.25, 0.25, 0.25]), [0.0, 0.0, 0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize(("reward", "place"), [(10.0, 3), (-10.0, 0)])
def test_what_leaves_the_support_lies_on_its_end(reward, place):
    expected = np.zeros(4)
    expected[place] = 1.0
    np.testing.assert_allclose(project(reward, 0.9, [0.4, 0.3, 0.2, 0.1]), expected, atol=1e-6)


@given(
    st.floats(-3, 3),
    st.floats(0, 1),
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
)
def test_mass_is_kept_and_so_is_the_mean_inside_the_support(reward, discount, weights):
    """Halved, the atoms stay inside: then the mean moves as the Bellman operator says."""
    probabilities = np.float32(weights) / np.float32(sum(weights))
    moved = project(reward, discount, probabilities)
    assert moved.sum() == pytest.approx(1.0, abs=1e-5)
    inside = reward + discount * ATOMS
    if inside.min() >= ATOMS[0] and inside.max() <= ATOMS[-1]:
        assert moved @ ATOMS == pytest.approx(float(probabilities @ inside), abs=1e-4)


def test_projection_equals_the_published_loop():
    """Bellemare et al. 2017, algorithm 1, written out."""
    rng = np.random.default_rng(0)
    atoms = np.linspace(-150, 150, 51).astype(np.float32)
    probabilities = rng.dirichlet(np.ones(51), 16).astype(np.float32)
    reward, discount = rng.normal(0, 40, 16).astype(np.float32), rng.choice([0.0, 0.95], 16).astype(np.float32)
    expected = np.zeros((16, 51))
    for row in range(16):
        for j in range(51):
            place = (np.clip(reward[row] + discount[row] * atoms[j], -150, 150) + 150) / 6.0
            low = min(int(np.floor(place)), 49)
            expected[row, low] += probabilities[row, j] * (1 - (place - low))
            expected[row, low + 1] += probabilities[row, j] * (place - low)
    np.testing.assert_allclose(losses.project(reward, discount, probabilities, atoms), expected, atol=1e-5)


def test_cross_entropy_of_a_certain_target_is_minus_its_log_probability():
    logits = np.float32([[0.0, np.log(3.0)]])
    np.testing.assert_allclose(
        losses.categorical_cross_entropy(np.float32([[0, 1]]), logits), [-np.log(0.75)], rtol=1e-6
    )


def test_cross_entropy_is_least_at_the_target():
    logits, target = tf.Variable([[0.0, np.log(3.0)]]), np.float32([[0.25, 0.75]])
    with tf.GradientTape() as tape:
        loss = losses.categorical_cross_entropy(target, logits)
    np.testing.assert_allclose(tape.gradient(loss, logits), [[0.0, 0.0]], atol=1e-6)


def test_the_mean_weighs_atoms_by_probability():
    logits = np.log(np.float32([[0.1, 0.2, 0.3, 0.4]]))
    np.testing.assert_allclose(losses.categorical_mean(logits, ATOMS), [-0.1 + 0.3 + 0.8], rtol=1e-5)


def test_no_gradient_flows_through_a_projection():
    value = tf.Variable([[0.25, 0.25, 0.25, 0.25]])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(losses.project(np.float32([1]), np.float32([1]), value, ATOMS)) + 0.0 * value[0, 0]
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(total, value)), np.zeros((1, 4)))
