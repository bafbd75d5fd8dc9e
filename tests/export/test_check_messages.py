"""A refusal names the layer or dimension and says what mends it."""

import dataclasses

import numpy as np
import pytest
from policy_factory import mlp, rows

from quarl_device.errors import CheckFailed, ModelFileError
from quarl_export.calibration import CalibrationData
from quarl_export.checks.refusal import MAX_RESCALING, explained
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions


def built(policy, *, force=False, observations=None, **options):
    data = CalibrationData.checked(policy.contract, observations or rows(policy, 128), source="test")
    return build_file(policy, ExportOptions(force=force, **options), data=data)


def scaled(factor):
    """Q values that are `factor` of what they were."""
    policy = mlp()
    for part in ("kernel", "bias"):
        policy.weights[f"q/{part}"][:] *= factor
    return policy


# ------------------------------------------------------------------ Q02


def test_a_range_that_rare_values_made_is_refused_with_what_leaves_them_out():
    policy = mlp()
    recorded = rows(policy, 4000)["observation"] * np.float32(0.01)
    recorded[3] = 5.0
    data = CalibrationData.checked(policy.contract, {"observation": recorded}, source="t")
    with pytest.raises(CheckFailed, match=r"costs [\d.]+ of 8 bits: .*; --range percentile leaves out the rare values"):
        build_file(policy, ExportOptions(), data=data)


def test_small_values_that_fill_the_least_range_are_no_fault():
    """They are in a third of it: 1.6 of 8 bits are lost, and 3 are allowed."""
    assert built(scaled(1e-4)).forced == ()


def test_smaller_values_are_refused_by_layer_and_what_is_said_to_mend_it_does():
    policy = scaled(1e-5)
    with pytest.raises(CheckFailed, match=r"layer 'q' moves by .*less than the least int8 range.*--keep-float q"):
        built(policy)
    assert built(policy, scheme=SchemeOptions(keep_float=frozenset({"q"}))).forced == ()


def test_a_layer_that_gives_the_same_for_everything_is_named_with_its_value():
    policy = mlp()
    policy.weights["a/kernel"][:] = 0.0
    policy.weights["a/bias"][:] = -1.0
    with pytest.raises(CheckFailed, match=r"layer 'r' was 0 in all 32 observations; calibrate with some"):
        built(policy)


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_an_observation_that_did_not_move_is_called_one(value):
    """Calibration brings it to 0, which is not what was recorded."""
    still = {"observation": np.full((64, 4), value, np.float32)}
    with pytest.raises(CheckFailed, match="observation 'observation' was the same in all 64 observations"):
        built(mlp(), observations=still)


def test_a_trained_range_that_its_values_left_says_to_calibrate():
    policy = mlp()
    ranges = dict.fromkeys(policy.graph.range_sites(), (-4.0, 4.0)) | {"q": (-1e-4, 1e-4)}
    with pytest.raises(CheckFailed, match=r"'q' is degenerate .*its values are in .*--calibrate"):
        built(dataclasses.replace(policy, ranges=ranges))


# ------------------------------------------------------------------ what the runtime refuses


def narrow(factor, width):
    policy = scaled(factor)
    ranges = {**dict.fromkeys(policy.graph.range_sites(), (-4.0, 4.0)), "r": (0.0, 4.0), "q": (-width, width)}
    return dataclasses.replace(policy, ranges=ranges)


def test_a_runtimes_refusal_names_the_layer_and_its_range():
    with pytest.raises(ModelFileError, match=r"XNNPACK.*layer 'q' is [\d,]+ steps of the range of 'q'") as caught:
        built(narrow(1e5, 0.01), force=True)
    assert "--keep-float q" in caught.value.hint


def test_a_fused_layer_is_named_with_the_range_of_its_activation():
    policy = mlp()
    policy.weights["a/kernel"][:] *= 1e7
    policy = dataclasses.replace(policy, ranges={"observation": (-4.0, 4.0), "r": (0.0, 1.0), "q": (-1.0, 1.0)})
    with pytest.raises(ModelFileError, match=r"layer 'a' is .* steps of the range of 'r'"):
        built(policy, force=True)


@pytest.mark.parametrize(("width", "loads"), [(3.6, True), (3.4, False)])
def test_the_limit_is_where_the_runtime_has_it(width, loads):
    """One step of the sums is 246 steps of the output, or 261."""
    policy = narrow(1e5, width)
    if loads:
        network = built(policy, force=True).subject.network
        assert 240 < network.rescalings["q"] < MAX_RESCALING
        return
    with pytest.raises(ModelFileError, match="layer 'q'"):
        built(policy, force=True)


def test_another_refusal_is_left_as_it_is():
    error = ModelFileError("the runtime cannot run the model")
    assert explained(error, None) is error
    assert explained(error, built(mlp()).subject.network) is error


# ------------------------------------------------------------------ Q03


def test_q03_tells_how_little_of_the_bounds_was_visited_and_refuses_nobody():
    policy = mlp(bounds={"observation": (-100.0, 100.0)})
    (found,) = (result for result in built(policy).checks if result.code == "Q03")
    assert found.passed
    assert "; calibration visited 2% of the bounds of observation 'observation'[" in found.message
    assert [0.0 < share < 0.05 for share in found.to_json()["detail"]["visited"]["observation"]] == [True] * 4


def test_q03_says_nothing_of_bounds_that_are_not_known():
    (found,) = (result for result in built(mlp()).checks if result.code == "Q03")
    assert "visited" not in found.message
    assert found.detail == {}
