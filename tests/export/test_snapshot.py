from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from export_factory import make_spec, random_snapshot
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import CheckpointError, NonFiniteError
from quarl_export.snapshot import HEAD_INIT, PolicySnapshot, centered, expected_shapes, for_export, initial_snapshot


@pytest.mark.parametrize("normalized", [False, True])
def test_arrays_round_trip(normalized):
    spec = make_spec(hidden=(5, 3))
    snapshot = random_snapshot(spec, seed=1, normalized=normalized)
    copy = PolicySnapshot.from_arrays(spec, snapshot.arrays())
    assert copy.normalized is normalized
    assert all(np.array_equal(value, copy.arrays()[name]) for name, value in snapshot.arrays().items())
    assert {name: a.shape for name, a in snapshot.arrays().items()} == expected_shapes(spec, normalized=normalized)


def test_arrays_that_do_not_fit_are_refused():
    spec = make_spec()
    arrays = random_snapshot(spec, seed=1).arrays()
    for wrong in (
        {**arrays, "kernel_0": arrays["kernel_0"].T.copy()},
        {**arrays, "bias_0": arrays["bias_0"].astype(np.float64)},
        {**arrays, "extra": arrays["bias_0"]},
        {name: value for name, value in arrays.items() if name != "ranges"},
        {**arrays, "offset": np.zeros(4, np.float32)},
    ):
        with pytest.raises(CheckpointError):
            PolicySnapshot.from_arrays(spec, wrong)


@given(
    name=st.sampled_from(["kernel_0", "bias_1", "ranges", "head_range", "offset"]),
    bad=st.sampled_from([np.nan, np.inf]),
)
def test_nan_and_inf_are_found(name, bad):
    spec = make_spec()
    arrays = {key: value.copy() for key, value in random_snapshot(spec, seed=2, normalized=True).arrays().items()}
    PolicySnapshot.from_arrays(spec, arrays).check_finite()
    arrays[name].flat[-1] = bad
    with pytest.raises(NonFiniteError, match=name):
        PolicySnapshot.from_arrays(spec, arrays).check_finite()


def test_opposite_infinities_do_not_cancel():
    snapshot = random_snapshot(make_spec(), seed=2)
    kernel = snapshot.kernels[0].copy()
    kernel[0, 0], kernel[1, 0] = np.inf, -np.inf
    with pytest.raises(NonFiniteError):
        dataclasses.replace(snapshot, kernels=(kernel, snapshot.kernels[1])).check_finite()


@given(seed=st.integers(0, 1000), actions=st.integers(1, 6))
def test_centring_keeps_differences_between_actions(seed, actions):
    spec = make_spec(actions=actions, center_q=True)
    snapshot = random_snapshot(spec, seed=seed)
    moved = centered(snapshot)
    hidden = np.random.default_rng(seed).normal(size=(16, 8)).astype(np.float32)
    before = hidden @ snapshot.kernels[-1] + snapshot.biases[-1]
    after = hidden @ moved.kernels[-1] + moved.biases[-1]
    np.testing.assert_allclose(after, before - before.mean(axis=1, keepdims=True), atol=1e-5)
    assert np.array_equal(moved.kernels[0], snapshot.kernels[0])
    assert np.array_equal(for_export(spec, snapshot).biases[-1], moved.biases[-1])


def test_initial_policy_depends_on_the_seed_alone():
    spec = make_spec(hidden=(64,))
    one, same, other = (initial_snapshot(spec, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.kernels[0], same.kernels[0])
    assert not np.array_equal(one.kernels[0], other.kernels[0])
    assert np.abs(one.kernels[0]).max() <= np.sqrt(6 / spec.observation_size)
    assert np.abs(one.kernels[-1]).max() <= HEAD_INIT
    assert not one.normalized
