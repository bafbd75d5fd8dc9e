"""Prioritised drawing: against sums by hand, and against the frequencies that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import CheckpointError
from quarl_edge.replay.priorities import Priorities, SumTree


def places(*values):
    return np.array(values, np.int64)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=70),
    st.lists(st.tuples(st.integers(0, 69), st.floats(0, 1e6)), max_size=20),
)
def test_the_total_is_the_sum_and_each_place_has_its_share(weights, changes):
    tree, expected = SumTree(len(weights)), np.array(weights)
    tree[np.arange(len(weights))] = expected
    for place, weight in changes:
        expected[place % len(weights)] = weight
        tree[places(place % len(weights))] = weight
    assert tree.total == pytest.approx(expected.sum())
    np.testing.assert_array_equal(tree.weights(), expected)
    solid = np.flatnonzero(expected > tree.total * 1e-9)
    if solid.size:
        middles = np.cumsum(expected)[solid] - expected[solid] / 2
        np.testing.assert_array_equal(tree.find(middles), solid)


def test_of_a_place_that_is_named_twice_the_last_counts():
    tree = SumTree(4)
    tree[places(1, 1, 2)] = np.array([5.0, 3.0, 1.0])
    assert tree.total == 4.0


def test_a_place_without_weight_is_never_found():
    tree = SumTree(5)
    tree[places(1, 3)] = np.array([0.1, 0.7])
    points = np.linspace(0, tree.total, 1_001)  # the very end too, where rounding leaves it
    assert set(tree.find(points).tolist()) == {1, 3}


def filled(exponent=1.0, correction=1.0, errors=(1.0, 2.0, 5.0)):
    made = Priorities(4, exponent=exponent, correction=correction)
    made.entered(0, len(errors))
    made.learned(np.arange(len(errors)), np.float32(errors))
    return made


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_transitions_are_drawn_as_often_as_their_priority_says(exponent):
    drawn, _ = filled(exponent).draw(np.random.default_rng(0), 100_000)
    expected = np.array([1.0, 2.0, 5.0]) ** exponent
    np.testing.assert_allclose(np.bincount(drawn, minlength=4)[:3] / 1e5, expected / expected.sum(), atol=2e-3)
    assert not (drawn == 3).any()


def test_importance_weights_undo_it():
    drawn, weights = filled(correction=1.0).draw(np.random.default_rng(0), 100_000)
    mass = np.bincount(drawn, weights, minlength=4)[:3]
    np.testing.assert_allclose(mass / mass.sum(), np.full(3, 1 / 3), atol=2e-3)
    assert weights.max() == 1.0
    assert filled(correction=0.0).draw(np.random.default_rng(0), 8)[1].tolist() == [1.0] * 8


def test_what_is_new_is_drawn_like_the_largest_error_so_far():
    made = filled(errors=(1.0, 1.0, 8.0))
    made.entered(3, 1)
    drawn, _ = made.draw(np.random.default_rng(0), 18_000)
    np.testing.assert_allclose(np.bincount(drawn) / 1_000, [1, 1, 8, 8], atol=0.1)


def test_new_transitions_go_round_the_ring():
    made = filled(errors=(1.0, 1.0, 1.0))
    made.entered(3, 2)
    assert set(made.draw(np.random.default_rng(0), 100)[0].tolist()) == {0, 1, 2, 3}
    made.entered(2, 0)


def test_an_error_of_zero_may_come_again_and_one_that_is_not_finite_hurts_nothing():
    made = filled(errors=(0.0, float("nan"), float("inf")))
    drawn, weights = made.draw(np.random.default_rng(0), 1_000)
    assert np.isfinite(weights).all()
    assert set(drawn.tolist()) >= {1, 2}


def test_the_same_seed_draws_the_same_after_a_checkpoint():
    made, other = filled(), Priorities(4, exponent=1.0, correction=1.0)
    other.restore(made.arrays())
    made.entered(3, 1)
    other.entered(3, 1)
    one, two = (each.draw(np.random.default_rng(3), 64) for each in (made, other))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


@pytest.mark.parametrize("weights", [np.zeros(3), np.array([1.0, 1.0, 1.0, np.nan]), np.array([1.0, -1.0, 1.0, 1.0])])
def test_priorities_that_do_not_hold_are_refused(weights):
    with pytest.raises(CheckpointError, match="priorities"):
        Priorities(4, exponent=1.0, correction=1.0).restore({"weights": weights, "highest": np.array(1.0)})
