"""Centred Q values act alike, and int8 tells actions apart that it could not before."""

import dataclasses

import numpy as np
import pytest
from policy_factory import dueling, mlp, rows, tanh_actor

from quarl_device.errors import CheckFailed, UsageError
from quarl_export.calibration import CalibrationData
from quarl_export.centering import centered_q
from quarl_export.ir import run_reference
from quarl_export.pipeline import ExportOptions, build_file


def near_a_hundred():
    """Q values of 100 and more that differ by a few tenths."""
    policy = mlp()
    policy.weights["q/kernel"][:] *= 0.02
    policy.weights["q/bias"][:] *= 0.02
    policy.weights["q/bias"][:] += 100.0
    return policy


def test_centring_changes_no_action_and_leaves_a_mean_of_zero():
    policy = near_a_hundred()
    held = rows(policy, 50)
    before, after = (run_reference(p, held)["q_values"] for p in (policy, centered_q(policy)))
    assert np.array_equal(before.argmax(axis=1), after.argmax(axis=1))
    np.testing.assert_allclose(after.mean(axis=1), 0.0, atol=1e-4)
    np.testing.assert_allclose(before - before.mean(axis=1, keepdims=True), after, atol=1e-4)


def test_a_head_that_int8_cannot_resolve_is_refused_until_it_is_centred():
    policy = near_a_hundred()
    data = CalibrationData.checked(policy.contract, rows(policy, 256), source="t")
    with pytest.raises(CheckFailed, match=r"Q10 actions: .*--center-q.*--env ID"):
        build_file(policy, ExportOptions(), data=data)
    built = build_file(policy, ExportOptions(center_q=True), data=data)
    assert built.file.provenance["export"]["center_q"]
    assert next(r.value for r in built.checks if r.code == "Q10") > 0.9


def test_the_range_of_the_head_is_forgotten():
    policy = dataclasses.replace(mlp(), ranges={"observation": (-1.0, 1.0), "q": (0.0, 100.0)})
    assert set(centered_q(policy).ranges) == {"observation"}


@pytest.mark.parametrize(("policy", "says"), [(tanh_actor(), "action head"), (dueling(), "a dense layer")])
def test_what_cannot_be_centred_is_refused(policy, says):
    with pytest.raises(UsageError, match=says):
        centered_q(policy)
