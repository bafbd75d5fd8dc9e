"""From an imported policy to a written file, or to a refusal that leaves the old file alone."""

import dataclasses
import errno
import os

import numpy as np
import pytest
from policy_factory import image_policy, mlp, rows, tanh_actor, with_elu

from quarl_device.errors import CheckFailed, ConversionError, ModelFileError, NonFiniteError, UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy, read_policy_path
from quarl_export.calibration import CalibrationData, RangeRule
from quarl_export.export import export_imported
from quarl_export.file_runner import run_file
from quarl_export.observations import drawn, golden_rows, judging
from quarl_export.pipeline import ExportOptions, build_file, prepare
from quarl_export.schemes import SchemeOptions


def data_of(policy, count=128, **changes):
    return CalibrationData.checked(policy.contract, rows(policy, count, **changes), source="test")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = tmp_path_factory.mktemp("exported") / "model.tflite"
    return export_imported(mlp(), model, options=ExportOptions(), data=data_of(mlp()))


def test_the_file_says_how_it_was_made(exported):
    file = read_policy_path(exported.model)
    assert (exported.sha256, exported.bytes) == (file.sha256, len(file.data))
    assert (exported.scheme, exported.max_lsb_error, exported.forced) == ("int8", 0, ())
    assert exported.golden_vectors == 8
    made = file.provenance["export"]
    assert made["ranges"] == {"by": "minmax", "observations": "test", "rows": 96}
    assert (made["io"], made["per_channel"], made["keep_float"], made["runtime"]) == ("float32", False, [], "litert")
    assert "forced" not in file.provenance
    assert Policy.load(file).contract.normalizer.where == "graph"


def test_held_out_observations_are_not_calibrated_with():
    ready = prepare(mlp(), ExportOptions(), data_of(mlp(), 100))
    assert ready.held_out.count == 25
    assert ready.found_by["rows"] == 75


def test_trained_ranges_are_kept_unless_asked():
    policy = mlp()
    trained = dict.fromkeys(policy.graph.range_sites(), (-3.0, 4.0))
    policy = dataclasses.replace(policy, ranges=trained)
    kept = prepare(policy, ExportOptions(), None)
    assert (kept.ranges, kept.found_by) == (trained, {"by": "training"})
    assert kept.policy is policy
    found = prepare(policy, ExportOptions(recalibrate=True), data_of(policy))
    assert found.ranges != trained


@pytest.mark.parametrize("scheme", ["int8", "int16x8"])
def test_no_observations_is_an_error_that_says_where_from(scheme):
    with pytest.raises(UsageError, match="--calibrate"):
        build_file(mlp(), ExportOptions(scheme=SchemeOptions(scheme=scheme)))


def test_float_schemes_need_no_observations():
    built = build_file(mlp(), ExportOptions(scheme=SchemeOptions(scheme="float32")))
    assert built.forced == ()
    assert built.golden_lsb is None
    assert "drawn" in built.subject.judged_on


def test_constant_zero_calibration_is_refused():
    policy = mlp()
    zeros = CalibrationData.checked(policy.contract, {"observation": np.zeros((64, 4))}, source="zeros")
    policy = dataclasses.replace(policy, contract=dataclasses.replace(policy.contract, normalizer=_identity(4)))
    with pytest.raises(CheckFailed, match=r"Q02 ranges: the range of 'observation' is degenerate"):
        build_file(policy, ExportOptions(), data=zeros)


def _identity(size):
    from quarl_device.contract import Normalizer

    return Normalizer(where="graph", offset={"observation": (0.0,) * size}, scale={"observation": (1.0,) * size})


def test_force_writes_and_marks_what_fails(tmp_path):
    policy = mlp()
    ranges = {**dict.fromkeys(policy.graph.range_sites(), (-400.0, 400.0))}
    policy = dataclasses.replace(policy, ranges=ranges)
    with pytest.raises(CheckFailed, match="Q02"):
        export_imported(policy, tmp_path / "m.tflite", options=ExportOptions(), data=data_of(policy))
    assert not list(tmp_path.iterdir())
    report = export_imported(policy, tmp_path / "m.tflite", options=ExportOptions(force=True), data=data_of(policy))
    assert "Q02" in report.forced
    assert read_policy_path(report.model).provenance["forced"] == list(report.forced)


def test_a_refusal_leaves_the_old_file_alone(tmp_path):
    model = tmp_path / "model.tflite"
    model.write_bytes(b"old")
    with pytest.raises(ConversionError, match="elu"):
        export_imported(with_elu(), model, options=ExportOptions(), data=data_of(with_elu()))
    assert model.read_bytes() == b"old"


def test_unwritable_places_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for target in (tmp_path, tmp_path / "file" / "model.tflite"):
        with pytest.raises(ModelFileError, match="cannot be written"):
            export_imported(mlp(), target, options=ExportOptions(), data=data_of(mlp()))


def test_a_full_disk_leaves_the_old_file_alone(tmp_path, monkeypatch):
    model = tmp_path / "model.tflite"
    model.write_bytes(b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    options = ExportOptions(scheme=SchemeOptions(scheme="float32"))
    with pytest.raises(ModelFileError, match="No space left on device"):
        export_imported(mlp(), model, options=options)
    assert model.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["model.tflite"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_never_become_a_file(bad):
    policy = mlp()
    weights = {**policy.weights, "a/kernel": np.full((4, 16), bad, np.float32)}
    with pytest.raises(NonFiniteError, match="a/kernel"):
        dataclasses.replace(policy, weights=weights)


def test_tanh_actions_reach_the_bounds():
    """An int8 tanh tops out at 127/128; the contract's scale restores the bound."""
    policy = tanh_actor()
    policy.weights["d/bias"][:] = 50.0
    policy.weights["d/kernel"][:] *= 0.01
    built = build_file(policy, ExportOptions(force=True), data=data_of(policy))
    outputs = run_file(built.file.data, built.file.contract, rows(policy, 2))["action"]
    assert outputs.max() == 127 / 128
    assert built.file.contract.action.scale == (2.0 * 128 / 127,) * 2
    acting = Policy.load(built.file)
    assert acting.act(rows(policy, 1)["observation"][0]).tolist() == [2.0, 2.0]


def test_uint8_images_are_acted_on_as_pixels():
    policy = image_policy()
    options = ExportOptions(scheme=SchemeOptions(io="uint8"), rule=RangeRule(kind="bounds"))
    built = build_file(policy, options, data=data_of(policy, 64))
    assert built.forced == ()
    pixels = rows(policy, 4, seed=8)["observation"]
    acting = Policy.load(built.file)
    expected = run_file(built.file.data, built.file.contract, {"observation": pixels})["q_values"].argmax(axis=1)
    assert [acting.act(image) for image in pixels] == expected.tolist()


# ------------------------------------------------------------------ observations


def test_observations_are_drawn_within_bounds_and_types():
    pixels = drawn(image_policy(), {}, count=30, seed=1)["observation"]
    assert pixels.dtype == np.uint8
    assert pixels.min() < 20
    assert pixels.max() > 235
    bounded = drawn(mlp(bounds={"observation": (2.0, 3.0)}), {}, count=30, seed=1)["observation"]
    assert 2.0 <= bounded.min() <= bounded.max() <= 3.0


def test_drawn_observations_fill_the_range_behind_the_normaliser():
    policy = mlp(normalizer=dataclasses.replace(_identity(4), offset={"observation": (100.0,) * 4}))
    values = drawn(policy, {"observation": (-2.0, 6.0)}, count=200, seed=1)["observation"]
    assert 98.0 <= values.min() <= 99.0
    assert 105.0 <= values.max() <= 106.0


def test_golden_rows_are_the_sources_own_or_spread_over_the_judged():
    policy = mlp()
    judged = judging(policy, data_of(policy, 40), {})
    assert len(golden_rows(policy, judged)["observation"]) == 8
    own = dataclasses.replace(policy, golden_observations=rows(policy, 3))
    assert np.array_equal(golden_rows(own, judged)["observation"], rows(policy, 3)["observation"])


def test_large_goldens_are_fewer(monkeypatch):
    policy = image_policy()
    monkeypatch.setattr("quarl_export.observations._MAX_GOLDEN_BYTES", 3 * 9 * 9 * 2)
    assert len(golden_rows(policy, judging(policy, None, {}))["observation"]) == 3


def test_the_metadata_survive_reading(exported):
    file = read_policy(exported.model.read_bytes())
    assert file.golden.tolerance_lsb == 3
    assert set(file.golden.outputs) == {"q_values"}
