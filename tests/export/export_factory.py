"""Small specs, contracts and snapshots."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from quarl_device.contract import ActionSpec, Head, ObservationSpec, PolicyContract
from quarl_export.networks import NetworkSpec, QuantizationSpec
from quarl_export.snapshot import PolicySnapshot, initial_snapshot


def make_spec(
    *, inputs: int = 4, hidden: tuple[int, ...] = (8,), actions: int = 2, center_q: bool = False, **quantization: Any
) -> NetworkSpec:
    return NetworkSpec(
        observations=(ObservationSpec(key="observation", shape=(inputs,)),),
        action=ActionSpec(kind="discrete", n=actions),
        hidden=hidden,
        quantization=QuantizationSpec(center_q=center_q, **quantization),
    )


def make_contract(spec: NetworkSpec) -> PolicyContract:
    return PolicyContract(
        env_id="CartPole-v1",
        algorithm="dqn",
        scheme="int8",
        observations=spec.observations,
        head=Head(kind="q_values", outputs={"q_values": ""}),
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
        "head_range": np.array([-rng.uniform(0.1, 5), rng.uniform(0.5, 90)], np.float32),
    }
    if normalized:
        changes["offset"] = rng.normal(size=spec.observation_size).astype(np.float32)
        changes["scale"] = rng.uniform(0.2, 5, spec.observation_size).astype(np.float32)
    return dataclasses.replace(start, **changes)
