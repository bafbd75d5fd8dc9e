"""Golden vectors: a few observations, and what the final bytes make of them.

A device repeats them before it acts with a file. The outputs come from running the file itself, one observation at a
time, never from the network it was made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import NonFiniteError, UsageError
from quarl_device.policy_file import GoldenVectors
from quarl_device.runtime import PolicyRuntime
from quarl_export.file_runner import output_step, run_file
from quarl_export.networks import NetworkSpec
from quarl_export.snapshot import PolicySnapshot

GOLDEN_COUNT = 8

# The kernels that made the outputs repeat them exactly. Others round the requantization multiplier differently:
# TFLite's builtin kernels were seen 2-3 LSB off on 8-bit dense networks. A wrong weight or range shows as far more.
TOLERANCE_LSB = 3

# Where the output is that of a tanh, a step before it, of a range within ±4, is up to four steps behind it.
TANH_STEPS = 4

# A float file has no LSB; its kernels differ in the order of sums. This much of its largest output stands for one.
_FLOAT_LSB = 1e-5


def golden_observations(
    spec: NetworkSpec, snapshot: PolicySnapshot, *, recent: NDArray[np.float32] | None = None
) -> dict[str, NDArray[Any]]:
    """Return `GOLDEN_COUNT` distinct observations per key, ``[count, *shape]``, or ``[count, stack, *shape]``.

    Args:
        spec: the network.
        snapshot: gives the input range and normaliser from which missing observations are drawn.
        recent: recorded vectors, float32 ``[any, inputs]``; taken first, spread over the distinct ones.
    """
    size = spec.observation_size
    recorded = np.zeros((0, size), np.float32) if recent is None else np.unique(recent.astype(np.float32), axis=0)
    recorded = recorded[np.isfinite(recorded).all(axis=1)].reshape(-1, *_golden_shape(spec))
    count = min(GOLDEN_COUNT, len(recorded))
    picked = recorded[np.linspace(0, max(len(recorded) - 1, 0), count).astype(int)]
    drawn = input_samples(spec, snapshot, count=GOLDEN_COUNT - count, seed=0)
    return {spec.observations[0].key: np.concatenate([picked.astype(drawn.dtype), drawn])}


def _golden_shape(spec: NetworkSpec) -> tuple[int, ...]:
    (seen,) = spec.observations
    return (seen.stack, *seen.shape) if seen.stack > 1 else seen.shape


def input_samples(spec: NetworkSpec, snapshot: PolicySnapshot, *, count: int, seed: int) -> NDArray[Any]:
    """Return golden observations that fill the input's quantization range evenly: of images random pixels."""
    rng = np.random.default_rng(seed)
    if spec.sees_images:
        return rng.integers(0, 256, (count, *_golden_shape(spec)), dtype=np.uint8)
    low, high = snapshot.ranges[0].tolist()
    samples = rng.uniform(low, high, (count, spec.observation_size))
    if snapshot.offset is not None and snapshot.scale is not None:
        samples = samples / np.where(snapshot.scale == 0.0, 1.0, snapshot.scale) + snapshot.offset
    return samples.astype(np.float32).reshape(count, *_golden_shape(spec))


def by_key(contract: PolicyContract, observations: Mapping[str, ArrayLike] | ArrayLike) -> dict[str, NDArray[Any]]:
    """Return `observations` as arrays of the contract's dtypes by key; a bare array is the only key's.

    Raises:
        UsageError: keys other than the contract's, or differing or zero counts.
    """
    given = observations if isinstance(observations, Mapping) else {contract.observations[0].key: observations}
    keys = [spec.key for spec in contract.observations]
    if sorted(given) != sorted(keys):
        raise UsageError(f"golden observations have keys {sorted(given)}, the contract {sorted(keys)}")
    arrays = {spec.key: np.ascontiguousarray(given[spec.key], spec.dtype) for spec in contract.observations}
    for spec in contract.observations:
        shape = (spec.stack, *spec.shape) if spec.stack > 1 else spec.shape
        if arrays[spec.key].shape[1:] != shape or not len(arrays[spec.key]):
            raise UsageError(f"golden observations {spec.key!r} have shape {arrays[spec.key].shape}")
    if len({len(values) for values in arrays.values()}) != 1:
        raise UsageError("golden observations differ in count from key to key")
    return arrays


def run_goldens(
    model: bytes,
    contract: PolicyContract,
    observations: Mapping[str, ArrayLike] | ArrayLike,
    *,
    runtime: PolicyRuntime | None = None,
    tolerance_lsb: int | None = None,
) -> GoldenVectors:
    """Run `model` on `observations` in the TFLite runtime and return both as golden vectors.

    Args:
        model: the final bytes.
        contract: names the tensors.
        observations: per key ``[count, *shape]``, or one such array for a single key.
        runtime: default: the first installed.
        tolerance_lsb: how far another runtime's answers may be off; default: what builtin kernels were seen to be, for
            the contract's head.

    Raises:
        ModelFileError: the runtime does not take the file.
        NonFiniteError: an output is NaN or Inf.
    """
    arrays = by_key(contract, observations)
    outputs = run_file(model, contract, arrays, runtime=runtime)
    lsb = {}
    for role, values in outputs.items():
        if not np.isfinite(values).all():
            raise NonFiniteError(f"policy: output {role!r} holds NaN or Inf")
        lsb[role] = _step(contract.scheme, output_step(model, contract.head.outputs[role]), values)
    if tolerance_lsb is None:
        tolerance_lsb = TOLERANCE_LSB * (TANH_STEPS if contract.head.kind == "action" else 1)
    return GoldenVectors(observations=arrays, outputs=outputs, lsb=lsb, tolerance_lsb=tolerance_lsb)


def _step(scheme: str, step: float, values: NDArray[np.float32]) -> float:
    """Return what counts as a step of an output whose integer, if it is one, has steps of `step`.

    Behind int8 layers no output is surer than an int8 one: where it is float or int16, what kernels round differently
    in the layers before shows in full.
    """
    largest = float(np.abs(values).max())
    found = max(step, largest / 255) if scheme == "int8" else step
    return found or _FLOAT_LSB * max(1.0, largest)
