"""What a block of experience is: the spec that both ends build from the learner's birth, and the arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, HeadKind, ObservationSpec
from quarl_device.errors import UnsupportedSpace
from quarl_device.wire.limits import MAX_BLOCK_BYTES, MAX_BLOCK_HEADER_BYTES

BLOCK_SCHEMA = 1
MAX_STEPS = 65_535
MAX_ENVS = 65_535
MAX_SEQUENCE = 2**53 - 1
MAX_DROPPED_RANGES = 64

# numpy dtype name to (safetensors name, little-endian numpy type), widest first: the order of tensors in a payload.
TYPES: dict[str, tuple[str, str]] = {
    "float64": ("F64", "<f8"),
    "int64": ("I64", "<i8"),
    "float32": ("F32", "<f4"),
    "int32": ("I32", "<i4"),
    "uint32": ("U32", "<u4"),
    "int16": ("I16", "<i2"),
    "int8": ("I8", "|i1"),
    "uint8": ("U8", "|u1"),
    "bool": ("BOOL", "|b1"),
}
FLAGS = ("terminated", "truncated", "start", "valid")


@dataclass(frozen=True, kw_only=True)
class ExtraSpec:
    """One optional per-step array, such as the log probability of the action.

    Attributes:
        name: letters, digits, '_'; travels as `extra/<name>`.
        shape: per step and environment.
        dtype: numpy dtype name.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", self.name):
            raise UnsupportedSpace(f"extra {self.name[:80]!r}: expected 1-64 letters, digits or '_'")
        if self.dtype not in TYPES or any(n < 1 for n in self.shape) or len(self.shape) > 4:
            raise UnsupportedSpace(f"extra {self.name!r}: shape {self.shape} of {self.dtype} is not allowed")


def extras_of(head: HeadKind) -> tuple[str, ...]:
    """Return the extras that actors send beside a policy of this head: of a stochastic one how likely its draw was."""
    return {"logits": ("log_prob",), "gaussian": ("log_prob", "sample")}.get(head, ())


def extras_for(names: Sequence[str], action: ActionSpec) -> tuple[ExtraSpec, ...]:
    """Return the extras that a learner's birth names.

    "log_prob", float32[T, N]: log probability of what was drawn, by the outputs of the int8 policy that drew it.
    "sample", float32[T, N, *action's shape], of box actions: the draw from the gaussian that `log_prob` belongs to, in
    the units of the head's mean, before squashing, scaling and clipping made it the action.

    Args:
        names: from the birth.
        action: likewise.

    Raises:
        UnsupportedSpace: an extra that this version cannot make, or not of such actions.
    """
    known = {"log_prob": ExtraSpec(name="log_prob")}
    if action.kind == "box":
        known["sample"] = ExtraSpec(name="sample", shape=action.shape)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnsupportedSpace(
            f"the learner asks for extra {unknown[0][:64]!r} of {action.kind} actions; here are {', '.join(known)}",
            hint="upgrade quarl-edge here, or ask for less",
        )
    return tuple(known[name] for name in names)


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """What blocks of one learner must carry; both ends build it from the learner's birth.

    Attributes:
        observations: the observation keys; `stack` earlier frames of a key travel once per block.
        action: the action space.
        extras: further arrays.
    """

    observations: tuple[ObservationSpec, ...]
    action: ActionSpec
    extras: tuple[ExtraSpec, ...] = ()

    def __post_init__(self) -> None:
        keys = [spec.key for spec in self.observations]
        names = [spec.name for spec in self.extras]
        if not keys or len(set(keys)) != len(keys) or len(set(names)) != len(names):
            raise UnsupportedSpace(f"a block needs one or more different keys, found {keys} and extras {names}")

    def max_steps(self, num_envs: int, *, every_row_may_end: bool = True) -> int:
        """Return the number of steps that always fits `MAX_BLOCK_BYTES`.

        Args:
            num_envs: environments per block.
            every_row_may_end: count a final observation for each row, as SAME_STEP may need in the worst case;
                NEXT_STEP blocks have none.

        Raises:
            UnsupportedSpace: not even one step fits.
        """
        if not 1 <= num_envs <= MAX_ENVS:
            raise UnsupportedSpace(f"{num_envs} environments per block are not in 1..{MAX_ENVS}")
        frames = {spec.key: math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in self.observations}
        per_frame = sum(frames.values())
        action = math.prod(self.action.shape) * np.dtype(self.action.dtype).itemsize
        extra = sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in self.extras)
        per_row = per_frame + action + extra + 4 + len(FLAGS)
        if every_row_may_end:
            per_row += per_frame + 8
        fixed = MAX_BLOCK_HEADER_BYTES + num_envs * sum(frames[s.key] * s.stack for s in self.observations)
        steps = (MAX_BLOCK_BYTES - fixed) // (per_row * num_envs + 8)
        if steps < 1:
            raise UnsupportedSpace(
                f"one step of {num_envs} environments is over the block cap of {MAX_BLOCK_BYTES:,} bytes",
                hint="use fewer environments per actor or smaller observations",
            )
        return int(min(steps, MAX_STEPS))


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """T consecutive steps of N environments. Arrays of a decoded block are read-only views into its payload.

    With SAME_STEP autoreset, where `terminated | truncated` at (t, n), `observation[t + 1]` is already the next
    episode's first and the true next one is in `final_observation`. With NEXT_STEP `observation[t + 1]` *is* the true
    next one, row t+1 is a dummy with `valid` false, and there are no final rows.

    Attributes:
        boot_id: 16 hex digits, of the actor's life.
        sequence: of this block in that life, from 0.
        base: lowest sequence that the actor can still send.
        first_step: environment steps that this life had made before this block, in all its blocks, sent or not.
        dropped: inclusive, ascending ranges of sequences that will never be sent.
        observation: per key [T+S, N, *shape] in its dtype, S the key's `stack`: S-1 earlier frames, then the T
            observations acted on, then the one after.
        action: uint8[T, N], int32[T, N] or float32[T, N, *shape]; discrete actions count from 0.
        reward: float32[T, N].
        terminated: bool[T, N].
        truncated: bool[T, N].
        start: bool[T, N]: the observation acted on begins an episode.
        valid: bool[T, N]: false marks a dummy row.
        policy_epoch: uint32[T], of the policy that acted.
        policy_version: uint32[T], of the policy that acted.
        final_index: int32[K, 2]: (t, n) of each ended row, ascending.
        final_observation: per key [K, *shape], the last frame only.
        extra: per name [T, N, *shape].
    """

    boot_id: str
    sequence: int
    base: int
    first_step: int = 0
    dropped: tuple[tuple[int, int], ...] = ()
    observation: Mapping[str, NDArray[Any]]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    start: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    policy_epoch: NDArray[np.uint32]
    policy_version: NDArray[np.uint32]
    final_index: NDArray[np.int32]
    final_observation: Mapping[str, NDArray[Any]]
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.reward.shape[0])

    @property
    def num_envs(self) -> int:
        """N."""
        return int(self.reward.shape[1])

    @cached_property
    def transitions(self) -> int:
        """Valid rows: environment steps."""
        return int(np.count_nonzero(self.valid))
