"""Rows of experience, written by index into arrays that are made once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UnsupportedSpace
from quarl_device.wire.block import Block, BlockSpec


class Recorder:
    """The arrays of the block being made. The hot loops write into them directly; nothing here runs per step.

    A block taken from here holds views: encode it before the next row is written.

    Args:
        spec: of the blocks; one observation key.
        num_envs: N.
        max_rows: most rows of a block.

    Attributes:
        observation: [max_rows + 1, N, *shape], one frame a row.
        before: [stack - 1, N, *shape], the frames that the policy saw before the first row's; whoever stacks them sets
            them when a block begins.
        action: [max_rows, N] in the wire's dtype.
        reward: float32[max_rows, N].
        terminated: bool[max_rows, N]; cleared by `begin`, as are the other flags.
        truncated: likewise.
        start: bool[max_rows + 1, N]; the last row is carried into the next block.
        valid: bool[max_rows, N], true after `begin`.
        extra: name to [max_rows, N, *shape], of what the spec names.
        final_index: (row, env) of ended rows with a final observation.
        final_observation: arrays [*shape] or [K, *shape], in the same order.

    Raises:
        UnsupportedSpace: several keys.
    """

    def __init__(self, spec: BlockSpec, *, num_envs: int, max_rows: int) -> None:
        if len(spec.observations) != 1:
            keys = ", ".join(seen.key for seen in spec.observations)
            raise UnsupportedSpace(f"this version records one observation array, found {keys}")
        [seen] = spec.observations
        self.key = seen.key
        self.max_rows = max_rows
        self._stack = seen.stack
        self._frames: NDArray[Any] = np.zeros((max_rows + seen.stack, num_envs, *seen.shape), seen.dtype)
        self.before, self.observation = self._frames[: seen.stack - 1], self._frames[seen.stack - 1 :]
        self.action: NDArray[Any] = np.zeros((max_rows, num_envs, *spec.action.shape), spec.action.dtype)
        self.reward = np.zeros((max_rows, num_envs), np.float32)
        self.terminated = np.zeros((max_rows, num_envs), np.bool_)
        self.truncated = np.zeros((max_rows, num_envs), np.bool_)
        self.start = np.zeros((max_rows + 1, num_envs), np.bool_)
        self.valid = np.ones((max_rows, num_envs), np.bool_)
        self.policy_epoch = np.zeros(max_rows, np.uint32)
        self.policy_version = np.zeros(max_rows, np.uint32)
        self.extra: dict[str, NDArray[Any]] = {
            extra.name: np.zeros((max_rows, num_envs, *extra.shape), extra.dtype) for extra in spec.extras
        }
        self.final_index: list[tuple[int, int]] = []
        self.final_observation: list[NDArray[Any]] = []
        self._rows = 0
        self._no_finals: Mapping[str, NDArray[Any]] = {seen.key: np.zeros((0, *seen.shape), seen.dtype)}
        self._no_index = np.zeros((0, 2), np.int32)

    def restart(self, observation: NDArray[Any]) -> None:
        """Every environment was reset: the next block begins with the first observations [N, *shape] of episodes."""
        self._rows = 0
        self.observation[0] = observation
        self.start[0] = True

    def begin(self) -> None:
        """Begin a block: what lies after the last block's rows moves to the front, flags are cleared."""
        rows = self._rows
        if rows:
            self.observation[0] = self.observation[rows]
            self.start[0] = self.start[rows]
        self.start[1:] = False
        self.valid[:] = True
        self.terminated[:] = False
        self.truncated[:] = False
        self.final_index.clear()
        self.final_observation.clear()
        self._rows = 0

    def acted_by(self, row: int, epoch: int, version: int) -> None:
        """From `row` on, this policy acts."""
        self.policy_epoch[row:] = epoch
        self.policy_version[row:] = version

    def end(self, rows: int) -> None:
        """The block has `rows` rows."""
        self._rows = rows

    def finals(self) -> NDArray[Any]:
        """Return the final observations, [K, *shape] in the order of `final_index`; there is at least one."""
        shape = self.observation.shape[2:]
        return np.concatenate([np.reshape(array, (-1, *shape)) for array in self.final_observation])

    @property
    def steps(self) -> int:
        """Environment steps since `begin`, dummy rows left out."""
        return int(np.count_nonzero(self.valid[: self._rows]))

    def block(self, *, boot_id: str, sequence: int, base: int, first_step: int = 0) -> Block:
        """Return the rows since `begin` as a block of views."""
        rows = self._rows
        finals, index = self._no_finals, self._no_index
        if self.final_index:
            index, finals = np.array(self.final_index, np.int32), {self.key: self.finals()}
        return Block(
            boot_id=boot_id,
            sequence=sequence,
            base=base,
            first_step=first_step,
            observation={self.key: self._frames[: rows + self._stack]},
            action=self.action[:rows],
            reward=self.reward[:rows],
            terminated=self.terminated[:rows],
            truncated=self.truncated[:rows],
            start=self.start[:rows],
            valid=self.valid[:rows],
            policy_epoch=self.policy_epoch[:rows],
            policy_version=self.policy_version[:rows],
            final_index=index,
            final_observation=finals,
            extra={name: array[:rows] for name, array in self.extra.items()},
        )
