from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
from export_factory import make_contract, observations
from keras_twin import lsb_errors, twin_outputs

import quarl_export.export as module
from quarl_device.errors import (
    CheckFailed,
    CheckpointError,
    ModelFileError,
    NonFiniteError,
    RunNotFound,
    SelfTestError,
    UsageError,
)
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy, read_policy_path
from quarl_export.calibration import CalibrationData, RangeRule
from quarl_export.checkpoint import load_policy, save_policy
from quarl_export.export import export_policy, float_policy
from quarl_export.file_runner import run_file
from quarl_export.graph import view
from quarl_export.patcher import Patcher
from quarl_export.pipeline import ExportOptions
from quarl_export.schemes import SchemeOptions

_BUILT: list[Patcher] = []


@pytest.fixture
def checkpoint(tmp_path, policy):
    directory = tmp_path / "run" / "policy"
    save_policy(
        directory,
        snapshot=policy.snapshot(),
        spec=policy.spec,
        contract=make_contract(policy.spec),
        golden_observations={"observation": observations(8)},
        provenance={"run": "r", "env_steps": 77},
    )
    return directory


@pytest.fixture(autouse=True)
def one_fingerprint(monkeypatch):
    """All tests here have one architecture: its fingerprint is converted once."""
    real = Patcher.build

    def build(spec, *, normalized, verify):
        if not _BUILT:
            _BUILT.append(real(spec, normalized=normalized, verify=verify))
        return _BUILT[0]

    monkeypatch.setattr(Patcher, "build", build)


def test_a_folder_that_is_not_there_is_refused_as_by_the_command(tmp_path, checkpoint):
    with pytest.raises(ModelFileError, match="there is no directory"):
        export_policy(checkpoint, tmp_path / "new" / "model.tflite")
    assert not (tmp_path / "new").exists()


def test_export_writes_a_verified_file(tmp_path, checkpoint):
    model = tmp_path / "model.tflite"
    report = export_policy(checkpoint, model)
    file = read_policy_path(model)
    assert report.sha256 == hashlib.sha256(model.read_bytes()).hexdigest() == file.sha256
    assert report.bytes == model.stat().st_size
    assert (report.scheme, report.env, report.golden_vectors) == ("int8", "CartPole-v1", 8)
    assert (report.max_lsb_error, report.max_lsb_error_random) == (0, 0)
    assert file.provenance["env_steps"] == 77
    assert np.array_equal(file.golden.observations["observation"], observations(8))
    assert report.runtime == Policy.load(file).runtime_name


def test_export_is_reproducible_and_replaces(tmp_path, checkpoint):
    model = tmp_path / "model.tflite"
    model.write_bytes(b"old")
    first = export_policy(checkpoint, model)
    assert export_policy(checkpoint, model).sha256 == first.sha256
    assert [f.name for f in tmp_path.iterdir() if f.is_file()] == ["model.tflite"]


def test_export_draws_goldens_where_none_were_recorded(tmp_path, policy):
    save_policy(tmp_path / "policy", snapshot=policy.snapshot(), spec=policy.spec, contract=make_contract(policy.spec))
    assert export_policy(tmp_path / "policy", tmp_path / "m.tflite").golden_vectors == 8


def test_float_twin_computes_the_unquantized_network(checkpoint, policy):
    file = read_policy(float_policy(checkpoint))
    assert file.contract.scheme == "float32"
    Policy.load(file)
    assert all(tensor.dtype == "float32" for tensor in file.graph.tensors if tensor.size and tensor.dtype != "int32")
    snapshot, values = policy.snapshot(), observations(8)
    values = (values - snapshot.offset) * snapshot.scale
    for kernel, bias in zip(snapshot.kernels[:-1], snapshot.biases[:-1], strict=True):
        values = np.maximum(values @ kernel + bias, 0)
    np.testing.assert_allclose(
        file.golden.outputs["q_values"], values @ snapshot.kernels[-1] + snapshot.biases[-1], atol=1e-4
    )


def test_no_policy_is_a_run_not_found(tmp_path):
    for action in (lambda: export_policy(tmp_path / "none", tmp_path / "m.tflite"), lambda: float_policy(tmp_path)):
        with pytest.raises(RunNotFound):
            action()


def test_damaged_policy_leaves_the_old_model(tmp_path, checkpoint):
    model = tmp_path / "model.tflite"
    model.write_bytes(b"old")
    next(checkpoint.glob("*.npz")).write_bytes(b"")
    with pytest.raises(CheckpointError):
        export_policy(checkpoint, model)
    assert model.read_bytes() == b"old"


def test_nan_policy_leaves_the_old_model(tmp_path, checkpoint, policy):
    snapshot = policy.snapshot()
    kernels = [kernel.copy() for kernel in snapshot.kernels]
    kernels[1][0, 0] = np.nan
    snapshot = dataclasses.replace(snapshot, kernels=tuple(kernels))
    save_policy(checkpoint, snapshot=snapshot, spec=policy.spec, contract=make_contract(policy.spec))
    model = tmp_path / "model.tflite"
    model.write_bytes(b"old")
    with pytest.raises(NonFiniteError):
        export_policy(checkpoint, model)
    with pytest.raises(NonFiniteError):
        float_policy(checkpoint)
    assert model.read_bytes() == b"old"


def test_unwritable_targets_fail_before_the_conversion(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(module, "int8_bytes", lambda policy: pytest.fail("converted first"))
    (tmp_path / "file").write_text("x")
    for target in (tmp_path, tmp_path / "file" / "model.tflite"):
        with pytest.raises(ModelFileError, match="cannot be written"):
            export_policy(checkpoint, target)


def one_step_up(model):
    """The file with its last int32 bias larger by what is one step of the output, or a fraction of a sum less."""
    graph = view(moved := bytearray(model))
    last = [operator for operator in graph.operators if operator.name == "FULLY_CONNECTED"][-1]
    bias, output = graph.tensors[last.inputs[2]], graph.tensors[last.outputs[0]]
    bias.data[:] += np.floor(output.scale / bias.scale).astype(np.int32)
    return bytes(moved)


def test_a_file_that_computes_something_else_is_not_written(tmp_path, checkpoint, monkeypatch):
    """Q09 judges a run's own file as any other: a step of its output is one too many for a dense network."""
    real = module.int8_bytes
    monkeypatch.setattr(module, "int8_bytes", lambda policy: one_step_up(real(policy)))
    with pytest.raises(CheckFailed, match=r"^Q09 parity: at most 1 LSB off the fake-quantized network \(0 allowed\)"):
        export_policy(checkpoint, tmp_path / "model.tflite")
    assert not (tmp_path / "model.tflite").exists()


def test_a_runs_file_is_its_keras_network_too(tmp_path, checkpoint):
    """Apart from Q09's reference, which is ours: the fake-quantized network that was trained, biases snapped."""
    file = read_policy_path(export_policy(checkpoint, tmp_path / "model.tflite").model)
    policy, inputs = load_policy(checkpoint), observations(256, seed=9)
    outputs = run_file(file.data, file.contract, {"observation": inputs})["q_values"]
    twin = twin_outputs(policy.spec, policy.snapshot, inputs)
    assert lsb_errors(outputs, twin, lsb=file.golden.lsb["q_values"]).max() == 0


def test_a_patched_file_that_differs_is_not_written(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(module, "difference", lambda *args: "kernel")
    with pytest.raises(SelfTestError, match="kernel"):
        export_policy(checkpoint, tmp_path / "model.tflite")
    assert not (tmp_path / "model.tflite").exists()


def data_of(checkpoint, count=128):
    return CalibrationData.checked(
        load_policy(checkpoint).contract, {"observation": observations(count, seed=3)}, source="recorded"
    )


def test_a_run_is_judged_by_what_it_recorded(tmp_path, checkpoint):
    report = export_policy(checkpoint, tmp_path / "m.tflite", data=data_of(checkpoint))
    assert [result.code for result in report.checks] == [f"Q{n:02}" for n in range(1, 14)]
    assert report.forced == ()
    assert "recorded observations" in report.checks[8].message


@pytest.mark.parametrize(
    ("options", "by"),
    [
        (ExportOptions(scheme=SchemeOptions(per_channel=True, io="int8")), "training"),
        (ExportOptions(recalibrate=True), "minmax"),
        (ExportOptions(scheme=SchemeOptions(scheme="float16")), None),
    ],
)
def test_a_run_in_another_form(tmp_path, checkpoint, options, by):
    report = export_policy(checkpoint, tmp_path / "m.tflite", options=options, data=data_of(checkpoint))
    file = read_policy_path(report.model)
    assert file.provenance["export"]["ranges"].get("by") == by
    assert report.scheme == options.scheme.scheme
    assert report.max_lsb_error == (None if by is None else 0)
    Policy.load(file)


def test_a_range_that_training_never_set_is_refused(tmp_path, checkpoint, policy):
    snapshot = policy.snapshot()
    updates = snapshot.range_updates.copy()
    updates[1] = 0
    save_policy(
        checkpoint,
        snapshot=dataclasses.replace(snapshot, range_updates=updates),
        spec=policy.spec,
        contract=make_contract(policy.spec),
    )
    with pytest.raises(CheckFailed, match=r"Q02 ranges: the range of 'hidden_0_relu' was never set"):
        export_policy(checkpoint, tmp_path / "m.tflite")
    assert not (tmp_path / "m.tflite").exists()


def test_a_file_that_reads_back_otherwise_leaves_the_old_one(tmp_path, checkpoint, monkeypatch):
    model = tmp_path / "model.tflite"
    model.write_bytes(b"old")
    real = module.read_policy_path

    def other(path):
        assert path != model, "it is checked before it takes the place of the old one"
        found = real(path)
        return dataclasses.replace(found, data=found.data + b"x")

    monkeypatch.setattr(module, "read_policy_path", other)
    with pytest.raises(ModelFileError, match=f"reads back differently.*{model}"):
        export_policy(checkpoint, model)
    assert model.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix != ""] == ["model.tflite"]


def test_a_rule_for_ranges_that_training_has_found_is_refused(tmp_path, checkpoint):
    model = tmp_path / "model.tflite"
    with pytest.raises(UsageError, match="ranges of training are kept") as caught:
        export_policy(checkpoint, model, options=ExportOptions(rule=RangeRule()))
    assert "--calibrate" in caught.value.hint
    assert not model.exists()
