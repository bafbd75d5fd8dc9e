"""The normaliser brings every dimension to about one size before a single int8 scale covers them all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_device.contract import ObservationSpec
from quarl_device.errors import CheckpointError
from quarl_edge.configure import make_config
from quarl_edge.learner.normalization import PERIOD, ObservationNormalizer, RunningRange, to_unit_range

VECTOR = ObservationSpec(key="observation", shape=(3,))


class Algorithm:
    """Records the constants that it is given."""

    def __init__(self):
        self.normalizers = []

    def set_normalizer(self, offset, scale):
        self.normalizers.append((np.array(offset), np.array(scale)))


class Experience:
    """Hands out rows in order, each once."""

    def __init__(self, rows):
        self.rows, self.inserted = rows, 0

    def observations_since(self, seen):
        return self.inserted, self.rows[seen : self.inserted]


def observed(count, seed=0, width=1.0):
    return np.random.default_rng(seed).normal(0, width, (count, 3)).astype(np.float32)


# Constants of extremes


def test_the_ends_become_minus_one_and_one():
    seen = np.float32([[-1.2, -0.07, 5], [0.6, 0.07, 7]])
    offset, scale = to_unit_range(seen.min(0), seen.max(0), VECTOR)
    np.testing.assert_allclose(offset, [-0.3, 0.0, 6.0], atol=1e-6)
    np.testing.assert_allclose((seen - offset) * scale, [[-1, -1, -1], [1, 1, 1]], rtol=1e-5)


def test_a_dimension_that_did_not_move_takes_its_bounds():
    spec = ObservationSpec(key="observation", shape=(3,), low=(0.0, -4.0, -1.0), high=(1.0, 4.0, 1.0))
    _, scale = to_unit_range(np.zeros(3), np.zeros(3), spec)
    np.testing.assert_allclose(scale, [2.0, 0.25, 1.0])


@pytest.mark.parametrize("bounds", [{}, {"low": (-np.inf,) * 3, "high": (np.inf,) * 3}])
def test_without_bounds_a_still_dimension_is_left_as_it_is(bounds):
    _, scale = to_unit_range(np.zeros(3), np.zeros(3), ObservationSpec(key="observation", shape=(3,), **bounds))
    np.testing.assert_array_equal(scale, [1.0, 1.0, 1.0])


@given(hnp.arrays(np.float32, (7, 3), elements=st.floats(-1e6, 1e6, width=32)))
def test_normalised_data_is_finite_and_within_one(seen):
    offset, scale = to_unit_range(seen.min(0), seen.max(0), VECTOR)
    normalised = (seen.astype(np.float64) - offset) * scale
    assert np.isfinite(scale).all()
    assert np.abs(normalised).max() <= 1.01 or (np.ptp(seen, axis=0) < 1e-3).any()


# Ranges that are learned


def test_the_first_observations_count_as_they_are():
    running = RunningRange(3)
    rows = observed(10)
    running.add(rows)
    np.testing.assert_array_equal(running.ends, [rows.min(0), rows.max(0)])


def test_the_ends_go_a_kth_of_the_way_to_the_extremes_after_the_kth_period():
    running = RunningRange(1)
    for width in (1.0, 3.0, 3.0, 2.0):
        running.add(np.linspace(-width, width, PERIOD, dtype=np.float32)[:, None])
    # 1, then half of the way to 3, a third, a fourth: extremes are those of all so far.
    wanted = 1.0
    for k in (2, 3, 4):
        wanted += (3.0 - wanted) / k
    np.testing.assert_allclose(running.ends, [[-wanted], [wanted]], rtol=1e-6)
    assert running.count == 4 * PERIOD


def test_one_outlier_late_moves_the_ends_by_little():
    running, rows = RunningRange(3), observed(40 * PERIOD)
    running.add(rows)
    before = running.ends.copy()
    rows[-PERIOD:][7, 1] = 100.0
    running.add(rows[-PERIOD:])
    moved = np.abs(running.ends - before)
    assert 1.0 < moved[1, 1] < 100.0 / 40
    assert np.delete(moved, 1, axis=1).max() < 0.05


@given(cuts=st.lists(st.integers(1, 700), max_size=12), kept=st.integers(0, 12))
def test_how_observations_are_handed_in_makes_no_difference_to_the_bit(cuts, kept):
    rows = observed(3 * PERIOD + 100)
    whole, parts = RunningRange(3), RunningRange(3)
    whole.add(rows)
    for number, part in enumerate(np.split(rows, np.cumsum(cuts))):
        if number == kept:
            resumed = RunningRange(3)
            resumed.restore(parts.arrays())
            parts = resumed
        parts.add(part)
    np.testing.assert_array_equal(parts.ends, whole.ends)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(parts.arrays()[name], array, err_msg=name)


# Constants of a run


def learned(**changes):
    return ObservationNormalizer(make_config("X-v0", asked=changes), VECTOR)


def test_given_constants_are_set_once_in_all_networks_and_stay():
    algorithm, normalizer = Algorithm(), learned(observation_scale=(2.0, 1.0, 4.0), observation_offset=(1.0, 0.0, 0.0))
    normalizer.begin(algorithm, observed(50))
    assert not normalizer.follow(Experience(observed(5_000)), algorithm)
    assert normalizer.arrays() == {}
    ((offset, scale),) = algorithm.normalizers
    np.testing.assert_array_equal(offset, [1, 0, 0])
    np.testing.assert_array_equal(scale, [2, 1, 4])


def test_without_an_offset_a_given_scale_is_around_zero():
    algorithm = Algorithm()
    learned(observation_scale=(2.0, 1.0, 4.0)).begin(algorithm, observed(50))
    np.testing.assert_array_equal(algorithm.normalizers[0][0], [0, 0, 0])


def test_the_first_constants_are_those_of_the_random_play():
    algorithm, rows = Algorithm(), observed(40)
    learned().begin(algorithm, rows)
    ((offset, scale),) = algorithm.normalizers
    normalised = (rows - offset) * scale
    np.testing.assert_allclose([normalised.min(0), normalised.max(0)], [[-1] * 3, [1] * 3], atol=1e-5)


def test_constants_follow_what_is_observed_whenever_a_period_is_over_and_say_so():
    algorithm, normalizer = Algorithm(), learned()
    normalizer.begin(algorithm, observed(PERIOD))
    experience = Experience(observed(2 * PERIOD, seed=1, width=3.0))
    experience.inserted = PERIOD - 1
    assert not normalizer.follow(experience, algorithm), "the period is not over"
    experience.inserted += 1
    assert normalizer.follow(experience, algorithm)
    assert not normalizer.follow(experience, algorithm), "nothing came since"
    first, second = (scale for _, scale in algorithm.normalizers)
    assert (second < first).all()


def test_what_has_settled_does_not_change():
    algorithm, normalizer = Algorithm(), learned()
    corners = np.tile(np.float32([[-1, -2, -3], [1, 2, 3]]), (2 * PERIOD, 1))
    normalizer.begin(algorithm, corners[:PERIOD])
    experience = Experience(corners)
    experience.inserted = len(corners)
    assert not normalizer.follow(experience, algorithm)
    assert len(algorithm.normalizers) == 1


def test_a_resume_goes_on_as_if_nothing_had_been():
    rows = observed(6 * PERIOD + 77, width=2.0)

    def session(normalizer, start, end):
        algorithm, experience = Algorithm(), Experience(rows)
        for experience.inserted in range(start + 100, end + 1, 100):
            normalizer.follow(experience, algorithm)
        return algorithm.normalizers

    whole, broken, resumed = learned(), learned(), learned()
    for normalizer in (whole, broken):
        normalizer.begin(Algorithm(), observed(257, seed=3))
    constants = session(whole, 0, 1_600)
    session(broken, 0, 700)
    resumed.restore(broken.arrays())
    for one, other in zip(constants[-3:], session(resumed, 700, 1_600)[-3:], strict=True):
        np.testing.assert_array_equal(one, other)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(array, resumed.arrays()[name], err_msg=name)


def test_a_normaliser_of_another_run_is_refused():
    made, given_ones = learned(), learned(observation_scale=(1.0, 1.0, 2.0))
    made.begin(Algorithm(), observed(9))
    other = ObservationNormalizer(make_config("X-v0"), ObservationSpec(key="observation", shape=(4,)))
    for normalizer, arrays in ((other, made.arrays()), (given_ones, made.arrays()), (made, {})):
        with pytest.raises(CheckpointError, match="the checkpoint's normaliser holds"):
            normalizer.restore(arrays)
    given_ones.restore({})
