"""From a policy checkpoint of any head to files: stored, exported as trained and otherwise, described, compared."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from export_factory import make_contract, make_spec, observations

from quarl_device.errors import CheckpointError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy, read_policy_path
from quarl_export.calibration import CalibrationData
from quarl_export.checkpoint import load_policy, save_policy
from quarl_export.compare import difference
from quarl_export.describe import describe
from quarl_export.export import export_policy, float_policy
from quarl_export.file_runner import run_file
from quarl_export.importers import import_policy
from quarl_export.ir import run_reference
from quarl_export.pipeline import ExportOptions
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate
from quarl_export.range_health import range_health
from quarl_export.reports.comparison import compare_files
from quarl_export.schemes import SchemeOptions

HEADS = ("logits", "action", "gaussian")
HALF = (2.5, 2.5)
STRETCHED = tuple(half * 128 / 127 for half in HALF)


def made(head, **quantization) -> QatPolicy:
    """A policy that uses its head's range, with ranges that have seen data."""
    policy = QatPolicy(make_spec(head=head, hidden=(16, 12), **quantization), seed=3, normalize=True)
    policy.set_normalizer(np.linspace(-0.2, 0.2, 4), np.linspace(0.5, 1.0, 4))
    policy.trainable_variables[4].assign(policy.trainable_variables[4] * 200.0)
    if policy.log_std is not None:
        policy.log_std.assign([-1.25, 0.5])
    policy.calibrate(observations(300))
    return policy


def saved(directory, policy, **changes):
    save_policy(
        directory,
        snapshot=policy.snapshot(),
        spec=policy.spec,
        contract=make_contract(policy.spec),
        golden_observations={"observation": observations(8)},
        **changes,
    )
    return directory


@pytest.fixture(params=HEADS)
def policy(request) -> QatPolicy:
    return made(request.param)


def test_a_checkpoint_gives_back_all_of_it(tmp_path, policy):
    again = load_policy(saved(tmp_path, policy))
    assert again.spec == policy.spec
    found = again.snapshot.arrays()
    assert found.keys() == policy.snapshot().arrays().keys()
    for name, array in policy.snapshot().arrays().items():
        np.testing.assert_array_equal(found[name], array)


def test_a_gaussian_without_its_log_std_is_refused(tmp_path):
    policy = made("gaussian")
    save_policy(
        tmp_path,
        snapshot=dataclasses.replace(policy.snapshot(), log_std=None),
        spec=policy.spec,
        contract=make_contract(policy.spec),
    )
    with pytest.raises(CheckpointError, match="log_std"):
        load_policy(tmp_path)


def test_the_file_as_trained_is_the_file_of_the_pushes(tmp_path, policy):
    saved(tmp_path / "policy", policy)
    report = export_policy(tmp_path / "policy", tmp_path / "m.tflite")
    assert (report.max_lsb_error, report.max_lsb_error_random) == (0, 0)
    file = read_policy_path(tmp_path / "m.tflite")
    template = QatTemplate.from_model(policy, make_contract(policy.spec), observations(8))
    pushed = read_policy(template.patch(policy.snapshot()))
    assert difference(file.data, pushed.data) == ""
    assert file.contract == pushed.contract
    assert file.contract.head.log_std == ((-1.25, 0.5) if policy.spec.head == "gaussian" else ())
    Policy.load(file)


@pytest.mark.parametrize(
    ("head", "options", "scale"),
    [
        ("action", ExportOptions(recalibrate=True), STRETCHED),
        ("action", ExportOptions(scheme=SchemeOptions(io="int8", per_channel=True)), STRETCHED),
        ("action", ExportOptions(scheme=SchemeOptions(head_output="float32")), HALF),
        ("action", ExportOptions(scheme=SchemeOptions(scheme="float32")), HALF),
        ("gaussian", ExportOptions(recalibrate=True), HALF),
        ("gaussian", ExportOptions(scheme=SchemeOptions(head_output="int16")), HALF),
        ("logits", ExportOptions(scheme=SchemeOptions(scheme="float16")), ()),
        ("logits", ExportOptions(scheme=SchemeOptions(head_output="float32")), ()),
    ],
)
def test_a_checkpoint_in_another_form_acts_as_the_network(tmp_path, head, options, scale):
    policy = made(head)
    saved(tmp_path / "policy", policy)
    rows = {"observation": observations(300, seed=5)}
    data = CalibrationData.checked(make_contract(policy.spec), rows, source="recorded")
    report = export_policy(tmp_path / "policy", tmp_path / "m.tflite", options=options, data=data)
    file = read_policy_path(report.model)
    assert file.contract.action.scale == pytest.approx(scale)
    assert file.contract.head.log_std == ((-1.25, 0.5) if head == "gaussian" else ())
    device = Policy.load(file)
    wanted = run_reference(import_policy(tmp_path / "policy"), rows)[policy.spec.role]
    if head == "logits":
        acted = [device.act(row) for row in rows["observation"]]
        assert np.mean(wanted.argmax(axis=1) == acted) > 0.95
    else:
        acted = np.array([device.act(row) for row in rows["observation"]])
        inside = np.clip(wanted * 2.5 + np.array([0.5, 1.0]), policy.spec.action.low, policy.spec.action.high)
        assert np.abs(acted - inside).max() < 0.3
        assert np.abs(acted - inside).mean() < 0.06


@pytest.mark.parametrize(("head", "output"), [("action", "float32"), ("gaussian", "int16"), ("logits", "float32")])
def test_a_finer_head_of_training_is_exported_as_such(tmp_path, head, output):
    policy = made(head, head_output=output)
    saved(tmp_path / "policy", policy)
    export_policy(tmp_path / "policy", tmp_path / "m.tflite")
    file = read_policy_path(tmp_path / "m.tflite")
    template = QatTemplate.from_model(policy, make_contract(policy.spec), observations(8))
    assert difference(file.data, template.patch(policy.snapshot())) == ""
    assert file.contract.action.scale == (() if head == "logits" else HALF)


def test_the_float_twin_computes_the_network_unquantized(tmp_path, policy):
    file = read_policy(float_policy(saved(tmp_path, policy)))
    rows = {"observation": observations(20)}
    role = policy.spec.role
    wanted = run_reference(import_policy(tmp_path), rows)[role]
    np.testing.assert_allclose(run_file(file.data, file.contract, rows)[role], wanted, rtol=1e-4, atol=1e-5)
    assert file.contract.action.scale == (HALF if policy.spec.action.kind == "box" else ())


def test_float_twin_and_int8_file_are_compared_layer_by_layer(tmp_path, policy):
    saved(tmp_path / "policy", policy)
    (tmp_path / "float.tflite").write_bytes(float_policy(tmp_path / "policy"))
    export_policy(tmp_path / "policy", tmp_path / "int8.tflite")
    np.savez(tmp_path / "rows.npz", observation=observations(200, seed=6))
    found = compare_files(tmp_path / "float.tflite", tmp_path / "int8.tflite", observations=tmp_path / "rows.npz")
    assert found.contract.head.kind == policy.spec.head
    assert found.agreement.share > 0.95


def test_a_checkpoint_is_described_by_its_layers(tmp_path, policy):
    told = describe(import_policy(saved(tmp_path, policy)))
    kinds = [row["kind"] for row in told["layers"]]
    assert kinds == ["dense", "relu", "dense", "relu", "dense"] + ["tanh"] * (policy.spec.head == "action")
    assert told["head"] == policy.spec.head
    assert told["actions"] == (2 if policy.spec.head == "logits" else [2])


def test_ranges_of_any_head_are_judged(policy):
    snapshot = policy.snapshot()
    assert range_health(snapshot, observations(300)).healthy
    narrow = dataclasses.replace(snapshot, ranges=snapshot.ranges * np.float32(0.05))
    assert "hidden layer 2 clips" in " ".join(range_health(narrow, observations(300)).faults)
