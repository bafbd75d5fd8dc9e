"""A policy checkpoint in, one verified file out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import quarl_export
from quarl_device.errors import ModelFileError, SelfTestError
from quarl_device.files import write_atomic
from quarl_device.policy import Policy
from quarl_device.policy_file import PolicyFile, read_policy, read_policy_path
from quarl_device.runtime import find_runtime
from quarl_export.checkpoint import PolicyCheckpoint, load_policy
from quarl_export.compare import difference
from quarl_export.converter import convert_float, convert_snapshot
from quarl_export.file_runner import run_file
from quarl_export.golden import golden_observations, input_samples, run_goldens
from quarl_export.graph import repack, view
from quarl_export.metadata import attach, complete
from quarl_export.parity import lsb_errors, twin_outputs
from quarl_export.patcher import Patcher
from quarl_export.snapshot import for_export

_PARITY_SAMPLES = 256
# Float sums in another order may put one value in ten thousand on the other side of a rounding edge.
_MAX_PARITY_LSB = 2


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was exported.

    Attributes:
        model: where it is.
        bytes: its size.
        sha256: hex digest of the file.
        scheme: "int8".
        env: gymnasium id.
        golden_vectors: how many observations are in it.
        max_lsb_error: largest difference between the file in the TFLite runtime and the fake-quant Keras network with
            biases on the int32 grid, in LSB of the output, over the golden observations.
        max_lsb_error_random: the same over `observations_compared` observations that fill the input range.
        observations_compared: how many those are.
        runtime: which runtime it was checked in, with its version.
    """

    model: Path
    bytes: int
    sha256: str
    scheme: str
    env: str
    golden_vectors: int
    max_lsb_error: int
    max_lsb_error_random: int
    observations_compared: int
    runtime: str


def export_policy(checkpoint: Path, model: Path) -> ExportReport:
    """Write the policy in the directory `checkpoint` to `model` as one int8 file, and check what was written.

    The file is converted for real, compared with a patched one, run against the fake-quant network, written whole or
    not at all, read back, and self-tested in the runtime.

    Raises:
        RunNotFound: there is no policy at `checkpoint`.
        CheckpointError: the policy is damaged.
        ModelFileError: `model` cannot be written; a file already there is untouched.
        ConversionError, PatchError, NonFiniteError: the policy cannot be made into a right file.
        SelfTestError: the file does not compute what the network computes.
    """
    _check_target(model)
    policy = load_policy(checkpoint)
    file = read_policy(int8_bytes(policy))
    errors = _parity(policy, file)
    write_atomic(model, file.data, error=ModelFileError, what="model")
    written = read_policy_path(model)
    if written.data != file.data:
        raise ModelFileError(f"model reads back differently than it was written: {model}")
    tested = Policy.load(written)
    return ExportReport(
        model=model,
        bytes=len(written.data),
        sha256=written.sha256,
        scheme=written.contract.scheme,
        env=written.contract.env_id,
        golden_vectors=len(next(iter(written.golden.observations.values()))),
        max_lsb_error=errors[0],
        max_lsb_error_random=errors[1],
        observations_compared=_PARITY_SAMPLES,
        runtime=tested.runtime_name,
    )


def int8_bytes(policy: PolicyCheckpoint) -> bytes:
    """Return the complete int8 file of `policy`.

    Raises:
        ConversionError, PatchError, NonFiniteError: the policy cannot be made into a right file.
    """
    patcher = Patcher.build(policy.spec, normalized=policy.snapshot.normalized, verify=False)
    plain = patcher.patch(policy.snapshot)
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
    names = {graph.inputs[0]: policy.spec.observations[0].key, graph.outputs[0]: policy.spec.head}
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
    contract = complete(policy.contract, policy.spec, scheme=scheme, normalized=policy.snapshot.normalized)
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


def _parity(policy: PolicyCheckpoint, file: PolicyFile) -> tuple[int, int]:
    """Return the largest LSB error over the golden and over random observations."""
    (role,) = file.contract.head.outputs
    (key,) = file.golden.observations
    golden = np.asarray(file.golden.observations[key], np.float32)
    samples = input_samples(policy.spec, policy.snapshot, count=_PARITY_SAMPLES, seed=1)
    observations = np.concatenate([golden, samples])
    outputs = run_file(file.data, file.contract, {key: observations})[role]
    errors = lsb_errors(outputs, twin_outputs(policy.spec, policy.snapshot, observations), lsb=file.golden.lsb[role])
    if errors.max() > _MAX_PARITY_LSB:
        raise SelfTestError(
            f"the file is up to {errors.max()} LSB off the network in {find_runtime().name}: expected at most "
            f"{_MAX_PARITY_LSB}"
        )
    return int(errors[: len(golden)].max()), int(errors[len(golden) :].max())


def _check_target(model: Path) -> None:
    """Refuse a path that can never be written before seconds of conversion, not after."""
    if model.is_dir():
        raise ModelFileError(
            f"model cannot be written: {model} is a directory", hint="give a file such as model.tflite"
        )
    parent = model.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise ModelFileError(f"model cannot be written: {parent} is not a directory")


__all__ = [
    "ExportReport",
    "export_policy",
    "float_policy",
    "float_twin",
    "int8_bytes",
]
