"""Whether what was read from a source computes what the source computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, ObservationSpec, PolicyContract
from quarl_device.errors import NonFiniteError, SourceMismatch
from quarl_device.heads import BoxHead, bind_outputs
from quarl_export.ir.policy_graph import ImportedPolicy
from quarl_export.ir.reference import run_reference

TOLERANCE = 1e-4
"""Largest difference that passes, as a fraction of the largest output, or absolute where that is below 1.

Both sides compute in float32 but sum in another order, and folded weights are rounded once more.
"""
ROWS = 16
_SEED = 19_937

Float32 = NDArray[np.float32]
Finish = Callable[[Float32], Float32]


def random_observations(policy: ImportedPolicy, *, rows: int = ROWS, seed: int = _SEED) -> dict[str, NDArray[Any]]:
    """Return observations ``[rows, *graph input shape]`` as an environment might give them.

    They fill finite bounds of a moderate width; else they are normal around the normaliser's offset; else standard
    normal.
    """
    rng = np.random.default_rng(seed)
    specs = {spec.key: spec for spec in policy.contract.observations}
    return {item.key: _draw(specs[item.key], (rows, *item.shape), policy, rng) for item in policy.graph.inputs}


def _draw(
    spec: ObservationSpec, shape: tuple[int, ...], policy: ImportedPolicy, rng: np.random.Generator
) -> NDArray[Any]:
    dtype, key = np.dtype(spec.dtype), spec.key
    low, high = (min(spec.low), max(spec.high)) if spec.low and spec.high else (-np.inf, np.inf)
    if dtype.kind in "iub":
        span = (max(low, -1000), min(high, 1000)) if dtype.kind == "i" else (0, 255 if dtype.kind == "u" else 1)
        return rng.integers(int(span[0]), int(span[1]) + 1, shape).astype(dtype)
    if high - low <= 1000:
        return rng.uniform(low, high, shape).astype(dtype)
    drawn = rng.normal(size=(shape[0], int(np.prod(shape[1:]))))
    if key in policy.contract.normalizer.scale:
        scale = np.asarray(policy.contract.normalizer.scale[key])
        drawn = drawn / np.where(scale == 0, 1, scale) + np.asarray(policy.contract.normalizer.offset[key])
    return drawn.reshape(shape).astype(dtype)


def largest_difference(
    policy: ImportedPolicy,
    source: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, Float32]],
    *,
    finish: Mapping[str, Finish] | None = None,
    given: ActionSpec | None = None,
) -> float:
    """Return by how much the numpy reference differs from the source over random observations, as `TOLERANCE` counts.

    Outputs are compared, and the box actions that become of them, greedy and sampled with the same noise.

    Args:
        policy: what was read.
        source: observations per key to the source's outputs per role.
        finish: per role what the source does behind the graph's output (a softmax that the device does).
        given: how what the source gives becomes an action; `None` for as the policy's contract says.

    Raises:
        SourceMismatch: over the tolerance; names the role, or the action.
        NonFiniteError: the source gives NaN or Inf.
    """
    observations = random_observations(policy)
    # An overflow on either side is found below, by name.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        expected, found = source(observations), run_reference(policy, observations)
    worst = 0.0
    for role, values in found.items():
        ours = (finish or {}).get(role, _unchanged)(values)
        theirs = np.asarray(expected[role], np.float32)
        if not np.isfinite(theirs).all():
            raise NonFiniteError(f"the source gives NaN or Inf for {role!r} on ordinary observations")
        if ours.shape != theirs.shape:
            raise SourceMismatch(f"output {role!r} was read with shape {ours.shape[1:]}, it has {theirs.shape[1:]}")
        worst = max(worst, _checked_difference(f"{role!r}", ours, theirs))
    if policy.contract.action.kind == "box":
        _check_actions(policy.contract, found, given or policy.contract.action, expected)
    return worst


def _checked_difference(what: str, ours: Float32, theirs: Float32, *, slack: float = 1.0) -> float:
    difference = float(np.abs(ours - theirs).max() / max(1.0, float(np.abs(theirs).max())))
    if not difference <= TOLERANCE * slack:
        raise SourceMismatch(
            f"what was read differs from the source by {difference:.2g} in {what}, allowed is {TOLERANCE * slack:g}",
            hint="please report the model's layers: this is a defect of the import",
        )
    return difference


def _check_actions(
    contract: PolicyContract, found: Mapping[str, Float32], given: ActionSpec, expected: Mapping[str, Float32]
) -> None:
    """Refuse an action that is not what the source's outputs become; see `largest_difference`."""
    theirs_by = dataclasses.replace(contract, action=given)
    # An output may be off by a share of the largest one, and bounds or a squash may then leave little of that.
    slack = max(1.0, *(float(np.abs(values).max()) for values in expected.values()))
    for what in ("greedy", "sampled"):
        ours, theirs = _act(contract, found, what), _act(theirs_by, expected, what)
        _checked_difference(f"the {what} action", ours, theirs, slack=slack)


def _act(contract: PolicyContract, outputs: Mapping[str, Float32], what: str) -> Float32:
    bindings = bind_outputs(contract)
    results = tuple(np.asarray(outputs[binding.role]) for binding in bindings)
    head = BoxHead(contract, bindings, shape=(len(results[0]), *contract.action.shape))
    given = results if len(results) > 1 else results[0]
    if what == "greedy" or contract.head.kind != "gaussian":
        return np.asarray(head.greedy(given), np.float32)
    return head.sample(given, np.random.default_rng(_SEED))


def _unchanged(values: Float32) -> Float32:
    return values


def softmax(values: Float32) -> Float32:
    """Return the softmax over the last axis."""
    exponents = np.exp(values - values.max(axis=-1, keepdims=True))
    result: Float32 = exponents / exponents.sum(axis=-1, keepdims=True)
    return result
