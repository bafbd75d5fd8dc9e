"""The normaliser brings every dimension to about one size before a single int8 scale covers them all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_edge.configure import make_config
from quarl_edge.learner.normalization import NormalizerPlan, from_observations
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.transitions import Transitions

VECTOR = ObservationSpec(key="observation", shape=(3,))
ACTION = ActionSpec(kind="discrete", n=2)


class Policy:
    """Records what it is given."""

    def __init__(self):
        self.normalizer = None

    def set_normalizer(self, offset, scale):
        self.normalizer = (np.asarray(offset, np.float32), np.asarray(scale, np.float32))


def test_centre_and_half_range_come_from_the_data():
    seen = np.float32([[-1.2, -0.07, 5], [0.6, 0.07, 7]])
    offset, scale = from_observations(seen, VECTOR)
    np.testing.assert_allclose(offset, [-0.3, 0.0, 6.0], atol=1e-6)
    np.testing.assert_allclose((seen - offset) * scale, [[-1, -1, -1], [1, 1, 1]], rtol=1e-5)


def test_a_dimension_that_did_not_move_takes_its_bounds():
    spec = ObservationSpec(key="observation", shape=(3,), low=(0.0, -4.0, -1.0), high=(1.0, 4.0, 1.0))
    _, scale = from_observations(np.zeros((5, 3), np.float32), spec)
    np.testing.assert_allclose(scale, [2.0, 0.25, 1.0])


def test_without_bounds_a_still_dimension_is_left_as_it_is():
    _, scale = from_observations(np.zeros((5, 3), np.float32), VECTOR)
    np.testing.assert_array_equal(scale, [1.0, 1.0, 1.0])


@given(hnp.arrays(np.float32, (7, 3), elements=st.floats(-1e6, 1e6, width=32)))
def test_normalised_data_is_finite_and_within_one(seen):
    offset, scale = from_observations(seen, VECTOR)
    normalised = (seen.astype(np.float64) - offset) * scale
    assert np.isfinite(scale).all()
    assert np.abs(normalised).max() <= 1.01 or (np.ptp(seen, axis=0) < 1e-3).any()


def test_given_constants_are_set_on_a_fresh_policy():
    policy = Policy()
    plan = NormalizerPlan(make_config("CartPole-v1"), VECTOR)
    plan.begin(policy)
    assert not plan.pending
    assert policy.normalizer[1][2] == pytest.approx(1 / 0.21)


def test_without_constants_they_come_once_from_the_first_experience():
    policy = Policy()
    plan = NormalizerPlan(make_config("X-v0"), VECTOR)
    plan.begin(policy)
    assert plan.pending
    assert policy.normalizer is None
    replay = ReplayBuffer(10, observation=VECTOR, action=ACTION, seed=0)
    rows = np.float32([[-2, 0, 1], [2, 10, 3]])
    replay.insert(
        Transitions(
            observation=rows, action=np.zeros(2, np.uint8), reward=np.zeros(2, np.float32),
            discount=np.zeros(2, np.float32), next_observation=rows,
        )
    )  # fmt: skip
    plan.settle(replay, policy)
    assert not plan.pending
    np.testing.assert_allclose(policy.normalizer[0], [0, 5, 2])
    np.testing.assert_allclose(policy.normalizer[1], [0.5, 0.2, 1.0])
