"""What the senders stream: made-up experience whose every row can be told from every other, from both ends.

The reward of a transition is its running number in its sender's stream (modulo 2^20, which float32 holds exactly), so
that a row that is lost, stored twice or out of order shows by itself. Observations differ between senders and between
blocks, and episodes end as CartPole's do; that all of it arrived unchanged shows by a checksum over the stream.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.recorder import Recorder
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import ContractError, UsageError
from quarl_device.wire.block_spec import BlockSpec
from quarl_edge.replay.transitions import Transitions

EPISODE_STEPS = 200
NUMBERS = 2**20
DISCOUNT = 0.99
ACTION = ActionSpec(kind="discrete", n=2)
NAMED = {"cartpole": ((4,), "float32")}
_SHAPE = re.compile(r"([0-9]{1,5}(?:x[0-9]{1,5}){0,3})(?::([a-z0-9]{1,10}))?")
_POOL_BYTES = 8 * 1024 * 1024
_POOL_BLOCKS = 16


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The streams of one measurement.

    Attributes:
        observation: "CartPole", or a shape such as 84x84x4 (uint8), or a shape and a dtype such as 8:float32.
        envs: environments per sender, N.
        block_steps: rows of a block; fewer where the wire's cap asks for it.

    Raises:
        UsageError: not an observation.
        UnsupportedSpace: not one row fits a block.
    """

    observation: str = "CartPole"
    envs: int = 1
    block_steps: int = 256

    @cached_property
    def spec(self) -> BlockSpec:
        """What blocks carry."""
        shape, dtype = _parse(self.observation)
        try:
            seen = ObservationSpec(key="observation", shape=shape, dtype=dtype)
        except ContractError as error:
            raise UsageError(f"--observation {self.observation[:80]}: {error.message}") from error
        return BlockSpec(observations=(seen,), action=ACTION)

    @cached_property
    def rows(self) -> int:
        """Rows of a block."""
        return min(self.block_steps, self.spec.max_steps(self.envs))

    @property
    def block_transitions(self) -> int:
        """Transitions of a block."""
        return self.rows * self.envs


class Stream:
    """One sender's experience, block after block, and its checksum.

    Args:
        workload: of all senders.
        index: of this one.

    Attributes:
        recorder: the actor's own; `fill` writes the next block into it.
        transitions: made so far.
        checksum: of all transitions made so far, as `checked` counts it at the other end.
    """

    def __init__(self, workload: Workload, index: int) -> None:
        rows, envs = workload.rows, workload.envs
        self.recorder = Recorder(workload.spec, num_envs=envs, max_rows=rows)
        self.transitions = 0
        self.checksum = 0
        self._rows = rows
        self._envs = envs
        rng = np.random.default_rng(index)
        shape = self.recorder.observation.shape[1:]
        size = int(np.prod(shape)) * rows * self.recorder.observation.itemsize
        pool = max(1, min(_POOL_BLOCKS, _POOL_BYTES // size))
        dtype = self.recorder.observation.dtype
        self._observations = [_draw(rng, (rows, *shape), dtype) for _ in range(pool)]
        self._actions = [rng.integers(0, ACTION.n, (rows, envs)).astype(np.uint8) for _ in range(pool)]
        self._numbers = np.arange(rows * envs, dtype=np.int64).reshape(rows, envs)
        self._step = 0  # rows made so far, of each environment
        self._blocks = 0
        self._phases: dict[int, _Ends] = {}
        self.recorder.restart(self._observations[0][-1])

    def fill(self) -> None:
        """Write the next block into the recorder."""
        recorder, rows = self.recorder, self._rows
        recorder.begin()
        recorder.acted_by(0, 1, 1)
        place = self._blocks % len(self._observations)
        recorder.observation[1:] = self._observations[place]
        recorder.action[:] = self._actions[place]
        recorder.reward[:] = (self._numbers + self.transitions) & (NUMBERS - 1)
        ends = self._ends()
        recorder.terminated[:] = ends.flags
        recorder.start[1:] = ends.flags
        recorder.final_index += ends.index
        # The observation that ended an episode stands in for the one after it.
        recorder.final_observation += [recorder.observation[place] for place in ends.index]
        recorder.end(rows)
        self._blocks += 1
        self._step += rows
        self.transitions += rows * self._envs
        self.checksum = checked(self.checksum, self._made(ends))

    def _ends(self) -> _Ends:
        """Return where episodes end in the next block: after `EPISODE_STEPS`, environments not all in one row."""
        phase = self._step % EPISODE_STEPS
        if phase not in self._phases:
            age = (phase + np.arange(self._rows)[:, None] + np.arange(self._envs) * 37) % EPISODE_STEPS
            self._phases[phase] = _Ends(age == EPISODE_STEPS - 1)
        return self._phases[phase]

    def _made(self, ends: _Ends) -> Transitions:
        """Return what a learner must make of the block."""
        seen = self.recorder.observation
        after = seen[1:]
        if ends.index:
            after = after.copy()
            after[ends.places] = seen[ends.places]
        return Transitions(
            observation=seen[:-1],
            action=self.recorder.action,
            reward=self.recorder.reward,
            discount=ends.discount,
            next_observation=after,
        )


class _Ends:
    """Where episodes end in a block, [T, N], and what follows from it."""

    def __init__(self, flags: NDArray[np.bool_]) -> None:
        self.flags = flags
        self.places = flags.nonzero()
        self.index: list[tuple[int, int]] = [(row, env) for row, env in np.argwhere(flags).tolist()]
        self.discount = np.where(flags, np.float32(0), np.float32(DISCOUNT))


def checked(checksum: int, transitions: Transitions) -> int:
    """Return the checksum of a stream after more of it."""
    for array in (
        transitions.observation,
        transitions.action,
        transitions.reward,
        transitions.discount,
        transitions.next_observation,
    ):
        checksum = zlib.crc32(np.ascontiguousarray(array).data.cast("B"), checksum)
    return checksum


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return rng.uniform(-1, 1, shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def _parse(text: str) -> tuple[tuple[int, ...], str]:
    if text.lower() in NAMED:
        return NAMED[text.lower()]
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise UsageError(f"--observation {text[:80]!r}: expected CartPole, 84x84x4, or a shape and a dtype: 8:float32")
    shape = tuple(int(size) for size in found[1].split("x"))
    return shape, found[2] or "uint8"
