"""A policy in, one verified file out: the last step of the commands `export` and `demo`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import quarl_export
from quarl_device.errors import ModelFileError, SelfTestError
from quarl_device.files import check_target, write_atomic
from quarl_device.policy_file import assumptions, read_policy, read_policy_path
from quarl_export.calibration import CalibrationData
from quarl_export.checkpoint import PolicyCheckpoint, load_policy
from quarl_export.checks.report import CheckResult
from quarl_export.checks.returns import Play
from quarl_export.compare import difference
from quarl_export.converter import convert_float, convert_snapshot
from quarl_export.file_runner import default_runtime
from quarl_export.golden import golden_observations, run_goldens
from quarl_export.graph import repack, view
from quarl_export.importers.run_checkpoint import import_checkpoint
from quarl_export.ir import ImportedPolicy
from quarl_export.metadata import attach, complete
from quarl_export.networks import QuantizationSpec
from quarl_export.patcher import build_patcher
from quarl_export.pipeline import BuiltFile, ExportOptions, build_file
from quarl_export.schemes import SchemeOptions
from quarl_export.snapshot import for_export


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was exported.

    Attributes:
        model: where it is.
        bytes: its size.
        sha256: hex digest of the file.
        scheme: "int8", ...
        env: gymnasium id, "" if the policy names none.
        head: how its outputs become actions: "q_values", ...
        assumed: what the source does not say and was decided for it, in words.
        golden_vectors: how many observations are in it.
        max_lsb_error: largest difference between the file in the TFLite runtime and the fake-quantized network with
            biases on the int32 grid, in LSB of the output, over the golden observations; `None` for a scheme without.
        max_lsb_error_random: the same over `observations_compared` observations, which is what Q09 has judged.
        observations_compared: how many those are.
        runtime: which runtime it was checked in, with its version.
        checks: every check's answer, in the order of their codes.
        forced: codes of checks that did not pass and were overridden.
        warnings: what the import found doubtful, in words.
        built: the file with what it was judged by.
    """

    model: Path
    bytes: int
    sha256: str
    scheme: str
    env: str
    golden_vectors: int
    max_lsb_error: int | None
    max_lsb_error_random: int | None
    observations_compared: int
    runtime: str
    head: str = ""
    assumed: tuple[str, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    forced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    built: BuiltFile | None = field(default=None, repr=False, compare=False)


def export_policy(
    checkpoint: Path,
    model: Path,
    *,
    options: ExportOptions | None = None,
    data: CalibrationData | None = None,
    play: Play | None = None,
) -> ExportReport:
    """Write the policy in the directory `checkpoint` to `model` as one file, and check what was written.

    With default options, or the bits and head of training, it is the int8 file that the run's pushes made: patched,
    compared with a real conversion, and with the ranges of training.

    Args:
        checkpoint: a policy checkpoint of a run.
        model: where to.
        options: how; default: int8 with float ends.
        data: recorded observations to judge by, and to calibrate with where `options` say so.
        play: where a file that training has not judged is played.

    Raises:
        RunNotFound: there is no policy at `checkpoint`.
        CheckpointError: the policy is damaged.
        ModelFileError: `model` cannot be written; a file already there is untouched.
        ConversionError, PatchError, NonFiniteError, UsageError: the policy cannot be made into a right file.
        CheckFailed: a check did not pass.
        SelfTestError: the patched file is not the converted one.
    """
    check_target(model)
    policy = load_policy(checkpoint)
    policy.snapshot.check_finite()
    options = options or ExportOptions()
    source = import_checkpoint(policy)
    if not keeps_training(policy.spec.quantization, options):
        return export_imported(source, model, options=options, data=data, play=play)
    options = dataclasses.replace(options, scheme=trained_scheme(policy.spec.quantization))
    file = read_policy(int8_bytes(policy))
    # Ranges that training has not set yet are the checks' to refuse.
    sites = source.graph.range_sites()[:-1]
    unset = frozenset(site for site, seen in zip(sites, policy.snapshot.range_updates, strict=True) if not seen)
    built = build_file(_with_all_ranges(source, policy), options, data=data, complete=file, unset=unset)
    return _write(built, model)


def export_imported(
    source: ImportedPolicy,
    model: Path,
    *,
    options: ExportOptions,
    data: CalibrationData | None = None,
    play: Play | None = None,
) -> ExportReport:
    """Write any imported policy to `model` as one file, and check what was written.

    Args:
        source: the policy.
        model: where to.
        options: how.
        data: recorded observations to calibrate with and to judge by; needed where `source` has no ranges.
        play: where the file is played to be judged by its returns; `None`: nowhere.

    Raises:
        ModelFileError: `model` cannot be written; a file already there is untouched.
        ConversionError, PatchError, NonFiniteError, UsageError: the policy cannot be made into a right file.
        CheckFailed: a check did not pass.
    """
    check_target(model)
    return _write(build_file(source, options, data=data, play=play), model)


def _write(built: BuiltFile, model: Path) -> ExportReport:
    written = built.file

    def check(temporary: Path) -> None:
        if read_policy_path(temporary).data != written.data:
            raise ModelFileError(f"model reads back differently than it was written: {model}")

    write_atomic(model, written.data, error=ModelFileError, what="model", check=check)
    runtime = default_runtime()
    return ExportReport(
        model=model,
        bytes=len(written.data),
        sha256=written.sha256,
        scheme=written.contract.scheme,
        env=written.contract.env_id,
        golden_vectors=len(next(iter(written.golden.observations.values()))),
        max_lsb_error=built.golden_lsb,
        max_lsb_error_random=built.judged_lsb,
        observations_compared=built.subject.count,
        runtime=f"{runtime.name} {runtime.version}",
        head=written.contract.head.kind,
        assumed=assumptions(written.provenance),
        checks=built.checks,
        forced=built.forced,
        warnings=tuple(map(str, built.subject.source.provenance.get("warnings", ()))),
        built=built,
    )


def keeps_training(quantization: QuantizationSpec, options: ExportOptions) -> bool:
    """Whether `options` mean the file that a run's own pushes made, with the ranges of its training."""
    as_trained = options.scheme in (SchemeOptions(), trained_scheme(quantization))
    return as_trained and not options.recalibrate and not options.center_q


def trained_scheme(quantization: QuantizationSpec) -> SchemeOptions:
    """Return how the file of a run is quantized: as training was."""
    return SchemeOptions(
        weight_bits=quantization.weight_bits,
        activation_bits=quantization.activation_bits,
        head_output=quantization.head_output,
    )


def _with_all_ranges(source: ImportedPolicy, policy: PolicyCheckpoint) -> ImportedPolicy:
    rows = [*policy.snapshot.ranges.tolist(), policy.snapshot.head_range.tolist()]
    sites = source.graph.range_sites()
    return dataclasses.replace(
        source, ranges={site: (float(low), float(high)) for site, (low, high) in zip(sites, rows, strict=True)}
    )


def int8_bytes(policy: PolicyCheckpoint) -> bytes:
    """Return the complete int8 file of `policy`.

    Raises:
        ConversionError, PatchError, NonFiniteError: the policy cannot be made into a right file.
    """
    patcher = build_patcher(policy.spec, normalized=policy.snapshot.normalized, verify=False)
    plain = patcher.patch(policy.snapshot)
    if not patcher.reason:
        found = difference(plain, convert_snapshot(policy.spec, for_export(policy.spec, policy.snapshot)))
        if found:
            raise SelfTestError(f"the patched file differs from a converted one: {found}")
    return _complete_file(plain, policy, scheme="int8")


def float_twin(policy: PolicyCheckpoint) -> bytes:
    """Return a float32 file of the same learned weights, with nothing quantized, under the same contract.

    Raises:
        ConversionError, NonFiniteError: the policy cannot be made into a file.
    """
    policy.snapshot.check_finite()
    model = convert_float(policy.spec, policy.snapshot)
    graph = view(model)
    names = {graph.inputs[0]: policy.spec.observations[0].key, graph.outputs[0]: policy.spec.role}
    return _complete_file(repack(model, names=names), policy, scheme="float32")


def float_policy(checkpoint: Path) -> bytes:
    """Return `float_twin` of the policy in the directory `checkpoint`.

    Raises:
        RunNotFound: there is no policy at `checkpoint`.
        CheckpointError: the policy is damaged.
        ConversionError, NonFiniteError: the policy cannot be made into a file.
    """
    return float_twin(load_policy(checkpoint))


def _complete_file(plain: bytes, policy: PolicyCheckpoint, *, scheme: str) -> bytes:
    snapshot = policy.snapshot
    contract = complete(
        policy.contract, policy.spec, scheme=scheme, normalized=snapshot.normalized, log_std=snapshot.log_std
    )
    given: Mapping[str, NDArray[Any]] = policy.golden_observations
    if not given:
        given = golden_observations(policy.spec, policy.snapshot)
    golden = run_goldens(plain, contract, given)
    made_by: dict[str, Any] = {**policy.provenance, "quarl_export": quarl_export.__version__}
    data = attach(plain, contract, golden, made_by)
    # The metadata must not have moved anything that computes.
    if difference(plain, data):
        raise ModelFileError("repacking the model with its metadata changed it")
    return data


__all__ = [
    "ExportReport",
    "export_imported",
    "export_policy",
    "float_policy",
    "float_twin",
    "int8_bytes",
    "keeps_training",
    "trained_scheme",
]
