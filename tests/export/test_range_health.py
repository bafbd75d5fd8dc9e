"""The measure of ranges in training: what fits is healthy, what does not is named."""

import dataclasses

import numpy as np
import pytest
from export_factory import make_spec

from quarl_export.qat import QatPolicy
from quarl_export.quantizers import MIN_ACTIVATION_RANGE
from quarl_export.range_health import MAX_BITS_LOST, range_health
from quarl_export.snapshot import initial_snapshot

SPEC = make_spec(hidden=(16, 8))


@pytest.fixture(scope="module")
def observations():
    return np.random.default_rng(0).normal(size=(64, SPEC.observation_size)).astype(np.float32)


@pytest.fixture(scope="module")
def fitted(observations):
    policy = QatPolicy(SPEC, seed=1)
    policy.calibrate(observations)
    return policy.snapshot()


def with_range(snapshot, site, low, high):
    ranges = snapshot.ranges.copy()
    ranges[site] = low, high
    return dataclasses.replace(snapshot, ranges=ranges)


def test_ranges_of_the_data_are_healthy(fitted, observations):
    health = range_health(fitted, observations)
    assert health.healthy, health.faults
    assert health.bits_lost < 0.1
    assert health.clipped_share < 0.01


def test_ranges_that_were_never_set_are_named(observations):
    health = range_health(initial_snapshot(SPEC, seed=0), observations)
    assert len(health.faults) == 3
    assert "the input was never set" in health.faults[0]


@pytest.mark.parametrize("site", [1, 2])
def test_a_range_far_wider_than_its_values_loses_bits(fitted, observations, site):
    wide = with_range(fitted, site, 0.0, float(fitted.ranges[site][1]) * 2 ** (MAX_BITS_LOST + 1))
    health = range_health(wide, observations)
    assert health.bits_lost == pytest.approx(MAX_BITS_LOST + 1, abs=0.1)
    assert f"hidden layer {site} leaves" in health.faults[0]


def test_a_range_that_clips_is_named_with_its_share(fitted, observations):
    health = range_health(with_range(fitted, 0, -0.2, 0.2), observations)
    assert health.clipped_share > 0.5
    assert "the input clips" in health.faults[0]


def test_the_normaliser_comes_before_the_input_range(observations):
    policy = QatPolicy(SPEC, seed=1, normalize=True)
    policy.set_normalizer(np.full(SPEC.observation_size, 5.0), np.full(SPEC.observation_size, 0.5))
    moved = observations * 2 + 5
    policy.calibrate(moved)
    assert range_health(policy.snapshot(), moved).healthy
    assert not range_health(policy.snapshot(), moved + 50).healthy


def test_a_dead_layer_is_no_fault_of_its_range(fitted, observations):
    dead = dataclasses.replace(
        fitted, biases=(np.full(16, -1e3, np.float32), *fitted.biases[1:]), kernels=fitted.kernels
    )
    assert not any("hidden layer 1" in fault for fault in range_health(dead, observations).faults)


@pytest.mark.parametrize("site", [0, 1])
def test_what_does_not_move_has_no_bits_to_lose(fitted, observations, site):
    """The narrowest range of training, as float32 has it, is no range that is too wide."""
    narrowest = np.float32(MIN_ACTIVATION_RANGE)
    assert float(narrowest) > MIN_ACTIVATION_RANGE, "the trap"
    still = with_range(fitted, site, 0.0, narrowest)
    if site == 0:
        observations = np.full_like(observations, 1e-6)
    else:
        kernels = (fitted.kernels[0] * np.float32(0), *fitted.kernels[1:])
        still = dataclasses.replace(still, kernels=kernels, biases=(np.full(16, 1e-6, np.float32), *fitted.biases[1:]))
    name = f"hidden layer {site}" if site else "the input"
    assert not any(f"{name} leaves" in fault for fault in range_health(still, observations).faults)


def test_a_site_that_moves_again_outgrows_the_narrowest_range(fitted, observations):
    still = with_range(fitted, 1, 0.0, np.float32(MIN_ACTIVATION_RANGE))
    assert "the range of hidden layer 1 clips" in range_health(still, observations).faults[0]
