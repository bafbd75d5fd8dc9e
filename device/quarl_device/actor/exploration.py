"""Epsilon-greedy noise: drawn in bulk, ahead of the hot loop.

Both kinds turn one raw 64-bit draw into one decision: its high 32 bits against epsilon, its low 32 bits into an action.
Raw generator output is fixed by the generator's definition, so it does not change with numpy's version.

`StreamNoise` takes the draws from one running generator (async mode). `LockstepNoise` takes them from a counter:
the draw of a step depends on (seed, environment index, reset version, episode since that reset, step in the episode)
alone, so that a run that was interrupted makes the same decisions again.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_MASK_64 = (1 << 64) - 1
_LOW_32 = np.uint64(0xFFFF_FFFF)
_SHIFT_32 = np.uint64(32)
# Second halves of the Philox key: they keep the two uses of one seed apart.
_NOISE_STREAM = 0x6E6F_6973
_SEED_STREAM = 0x7365_6564
_DRAWS_PER_COUNT = 4


class Noise(Protocol):
    """Decisions of the block being made, row by row.

    Attributes:
        explore: bool[T, N], true where the action is random.
        action: int64[T, N], 0-based random actions; meaningful where `explore` is true.
    """

    explore: NDArray[np.bool_]
    action: NDArray[np.int64]

    def begin_block(self, rows: int, epsilon: float) -> None:
        """Draw for rows 0..rows-1 of a new block."""

    def set_epsilon(self, row: int, epsilon: float) -> None:
        """Use another epsilon from `row` on (the policy was swapped inside a block); the draws stay."""

    def begin_episode(self, row: int, env: int) -> None:
        """Environment `env` begins its next episode at `row`, which may be one past the block's last."""

    def end_block(self, rows: int) -> None:
        """The block ended after `rows` rows, which may be fewer than drawn."""

    def restart(self, version: int) -> None:
        """Every environment was reset for policy version `version`: episodes count from 0 again."""


class _BulkNoise:
    """The arrays, and how draws become decisions."""

    def __init__(self, *, num_actions: int, num_envs: int, max_rows: int) -> None:
        self._num_actions = np.uint64(num_actions)
        self._raw = np.zeros((max_rows, num_envs), np.uint64)
        self._epsilon = 0.0
        self.explore = np.zeros((max_rows, num_envs), np.bool_)
        self.action = np.zeros((max_rows, num_envs), np.int64)

    def set_epsilon(self, row: int, epsilon: float) -> None:
        self._epsilon = epsilon
        np.less(self._raw[row:] >> _SHIFT_32, self._threshold(), out=self.explore[row:])

    def _threshold(self) -> np.uint64:
        return np.uint64(round(min(max(self._epsilon, 0.0), 1.0) * 2**32))

    def _decide(self, rows: slice, envs: slice) -> None:
        raw = self._raw[rows, envs]
        self.action[rows, envs] = ((raw & _LOW_32) * self._num_actions) >> _SHIFT_32
        self.explore[rows, envs] = (raw >> _SHIFT_32) < self._threshold()


class StreamNoise(_BulkNoise):
    """Noise of async mode: one generator per actor, seeded by (seed, actor index).

    Args:
        seed: any integer.
        actor_index: which actor of the run this is.
        num_actions: size of the discrete action space.
        num_envs: environments of the loop.
        max_rows: most rows of a block.
    """

    def __init__(self, *, seed: int, actor_index: int, num_actions: int, num_envs: int, max_rows: int) -> None:
        super().__init__(num_actions=num_actions, num_envs=num_envs, max_rows=max_rows)
        self._generator = np.random.PCG64(np.random.SeedSequence([seed & _MASK_64, actor_index]))

    def begin_block(self, rows: int, epsilon: float) -> None:
        """Draw for rows 0..rows-1 of a new block."""
        self._epsilon = epsilon
        self._raw[:rows].reshape(-1)[:] = self._generator.random_raw(rows * self._raw.shape[1])
        self._decide(slice(0, rows), slice(None))

    def begin_episode(self, row: int, env: int) -> None:
        """Do nothing: the stream does not know episodes."""

    def end_block(self, rows: int) -> None:
        """Do nothing: unused draws are forgotten."""

    def restart(self, version: int) -> None:
        """Do nothing: the stream goes on."""


class LockstepNoise(_BulkNoise):
    """Noise of lockstep mode: a counter-based generator, so that every decision has a name.

    Args:
        seed: the run's seed.
        num_actions: size of the discrete action space.
        num_envs: environments of the loop.
        max_rows: most rows of a block.
    """

    def __init__(self, *, seed: int, num_actions: int, num_envs: int, max_rows: int) -> None:
        super().__init__(num_actions=num_actions, num_envs=num_envs, max_rows=max_rows)
        self._generator = CounterDraws(seed, _NOISE_STREAM)
        self._rows = 0
        self._version = 0
        self._episode = [0] * num_envs
        # Environment n is at step `_step[n]` of its episode at row `_row[n]` of the block.
        self._step = [0] * num_envs
        self._row = [0] * num_envs

    def begin_block(self, rows: int, epsilon: float) -> None:
        """Draw for rows 0..rows-1 of a new block."""
        self._rows = rows
        self._epsilon = epsilon
        for env in range(len(self._step)):
            self._draw(env)

    def begin_episode(self, row: int, env: int) -> None:
        """Draw for a new episode from `row` on."""
        self._episode[env] += 1
        self._step[env] = 0
        self._row[env] = row
        self._draw(env)

    def end_block(self, rows: int) -> None:
        """Remember where each environment's episode stands."""
        for env, row in enumerate(self._row):
            self._step[env] += rows - row
            self._row[env] = 0

    def restart(self, version: int) -> None:
        """Count episodes from 0 again, under the name of `version`."""
        self._version = version
        for env in range(len(self._step)):
            self._episode[env] = self._step[env] = self._row[env] = 0

    def _draw(self, env: int) -> None:
        row, step = self._row[env], self._step[env]
        if row >= self._rows:
            return
        self._raw[row : self._rows, env] = self._generator.draw(
            self._rows - row, step=step, episode=self._episode[env], version=self._version, env=env
        )
        self._decide(slice(row, self._rows), slice(env, env + 1))


class CounterDraws:
    """Philox draws by name instead of by order.

    Args:
        seed: the run's seed.
        stream: keeps different uses of one seed apart.
    """

    def __init__(self, seed: int, stream: int) -> None:
        self._bits = np.random.Philox(key=np.array([seed & _MASK_64, stream], np.uint64))
        # Setting the state of one generator is several times cheaper than making a generator.
        self._state: Any = dict(self._bits.state)

    def draw(self, count: int, *, step: int, episode: int, version: int, env: int) -> NDArray[np.uint64]:
        """Return uint64[count]: the draws of steps step..step+count-1."""
        counter, skip = divmod(step, _DRAWS_PER_COUNT)
        self._state["state"]["counter"][:] = (counter, episode, version, env)
        self._state["buffer_pos"] = _DRAWS_PER_COUNT
        self._bits.state = self._state
        raw: NDArray[np.uint64] = self._bits.random_raw(count + skip)
        return raw[skip:]


def lockstep_env_seed(seed: int, *, version: int) -> int:
    """Return the environments' seed for the reset that comes with policy version `version`.

    It has 30 bits, so that an environment's index can be added to it.
    """
    return int(CounterDraws(seed, _SEED_STREAM).draw(1, step=0, episode=0, version=version, env=0)[0] >> np.uint64(34))


def stream_env_seed(seed: int, actor_index: int) -> int:
    """Return the environments' seed of one actor in async mode: 30 bits, different for every (seed, index)."""
    state = np.random.SeedSequence([seed & _MASK_64, actor_index, _SEED_STREAM]).generate_state(1)
    return int(state[0]) >> 2
