"""Small specs, contracts and snapshots."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from quarl_device.contract import ActionSpec, Head, HeadKind, ObservationSpec, PolicyContract
from quarl_export.networks import HEADS, NetworkSpec, QuantizationSpec
from quarl_export.snapshot import PolicySnapshot, initial_snapshot


def make_spec(
    *,
    inputs: int = 4,
    hidden: tuple[int, ...] = (8,),
    actions: int = 2,
    center_q: bool = False,
    head: HeadKind = "q_values",
    dueling: bool = False,
    **quantization: Any,
) -> NetworkSpec:
    """`actions` are discrete ones, or elements of a box whose bounds differ from each other and from their mirror."""
    return NetworkSpec(
        observations=(ObservationSpec(key="observation", shape=(inputs,)),),
        action=make_box(actions) if HEADS[head] == "box" else ActionSpec(kind="discrete", n=actions),
        hidden=hidden,
        head=head,
        dueling=dueling,
        quantization=QuantizationSpec(center_q=center_q, **quantization),
    )


def make_image_spec(
    *,
    shape: tuple[int, ...] = (12, 10, 1),
    stack: int = 2,
    convolutions: tuple[tuple[int, int, int], ...] = ((4, 4, 2), (6, 2, 1)),
    **settings: Any,
) -> NetworkSpec:
    seen = ObservationSpec(key="observation", shape=shape, dtype="uint8", low=(0.0,), high=(255.0,), stack=stack)
    dense = make_spec(**settings)
    return dataclasses.replace(dense, observations=(seen,), convolutions=convolutions)


def pixels(spec: NetworkSpec, count: int, seed: int = 0) -> np.ndarray:
    """Images as the network of `spec` sees them."""
    return np.random.default_rng(seed).integers(0, 256, (count, *spec.input_shape), dtype=np.uint8)


def make_box(size: int) -> ActionSpec:
    low, high = (tuple(start + 0.5 * place for place in range(size)) for start in (-2.0, 3.0))
    return ActionSpec(kind="box", shape=(size,), low=low, high=high)


def make_contract(spec: NetworkSpec) -> PolicyContract:
    log_std = (0.0,) * spec.head_units if spec.head == "gaussian" else ()
    return PolicyContract(
        env_id="CartPole-v1",
        algorithm="dqn",
        scheme="int8",
        observations=spec.observations,
        head=Head(kind=spec.head, outputs={spec.role: ""}, log_std=log_std),
        action=spec.action,
    )


def observations(count: int, inputs: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, inputs)).astype(np.float32)


def random_snapshot(spec: NetworkSpec, *, seed: int, normalized: bool = False) -> PolicySnapshot:
    """A snapshot as training leaves it: ReLU ranges from zero, small nonzero biases."""
    rng = np.random.default_rng(seed)
    start = initial_snapshot(spec, seed=seed, normalized=normalized)
    ranges = start.ranges.copy()
    ranges[0] = -rng.uniform(0.5, 4), rng.uniform(0.5, 4)
    ranges[1:, 1] = rng.uniform(0.3, 8, len(ranges) - 1)
    changes: dict[str, Any] = {
        "biases": tuple(rng.normal(0, 0.1, b.shape).astype(np.float32) for b in start.biases),
        "ranges": ranges,
        "head_range": np.array([-rng.uniform(0.1, 5), rng.uniform(0.5, 90)], np.float32).clip(
            -spec.head_limit, spec.head_limit
        ),
    }
    if spec.head == "gaussian":
        changes["log_std"] = rng.normal(size=spec.head_units).astype(np.float32)
    if normalized:
        changes["offset"] = rng.normal(size=spec.normalizer_shape).astype(np.float32)
        changes["scale"] = rng.uniform(0.2, 5, spec.normalizer_shape).astype(np.float32)
    return dataclasses.replace(start, **changes)
