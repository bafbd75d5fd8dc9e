"""Raw 64-bit draws of a block, made in bulk ahead of the hot loop, and what numbers become of them.

Raw generator output is fixed by the generator's definition, so it does not change with numpy's version. One draw is one
number: `fractions` takes its high 53 bits, `normals` its two halves (Box-Muller). The latter go through float64
functions of the platform's mathematics library, whose last bit may differ between machines.

`StreamDraws` takes the draws from one running generator (async mode). `LockstepDraws` takes them from a counter: the
draws of a step depend on (seed, environment index, reset version, episode since that reset, step in the episode)
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


class Draws(Protocol):
    """The draws of the block being made.

    Attributes:
        raw: uint64[max_rows, N, width].
    """

    raw: NDArray[np.uint64]

    def begin_block(self, rows: int) -> None:
        """Draw for rows 0..rows-1 of a new block."""

    def begin_episode(self, row: int, env: int) -> bool:
        """Environment `env` begins its next episode at `row`, which may be one past the block's last.

        Returns:
            Whether its draws from `row` on are others now.
        """

    def end_block(self, rows: int) -> None:
        """The block ended after `rows` rows, which may be fewer than drawn."""

    def restart(self, version: int) -> None:
        """Every environment was reset for policy version `version`: episodes count from 0 again."""


class StreamDraws:
    """Draws of async mode: one generator per actor, seeded by (seed, actor index).

    Args:
        seed: any integer.
        actor_index: which actor of the run this is.
        num_envs: environments of the loop.
        max_rows: most rows of a block.
        width: draws of an environment per row.
    """

    def __init__(self, *, seed: int, actor_index: int, num_envs: int, max_rows: int, width: int = 1) -> None:
        self.raw = np.zeros((max_rows, num_envs, width), np.uint64)
        self._generator = np.random.PCG64(np.random.SeedSequence([seed & _MASK_64, actor_index]))

    def begin_block(self, rows: int) -> None:
        """Draw for rows 0..rows-1 of a new block."""
        drawn = self.raw[:rows].reshape(-1)
        drawn[:] = self._generator.random_raw(drawn.size)

    def begin_episode(self, row: int, env: int) -> bool:
        """Do nothing: the stream does not know episodes."""
        return False

    def end_block(self, rows: int) -> None:
        """Do nothing: unused draws are forgotten."""

    def restart(self, version: int) -> None:
        """Do nothing: the stream goes on."""


class LockstepDraws:
    """Draws of lockstep mode: a counter-based generator, so that every draw has a name.

    Args:
        seed: the run's seed.
        num_envs: environments of the loop.
        max_rows: most rows of a block.
        width: draws of an environment per row.
    """

    def __init__(self, *, seed: int, num_envs: int, max_rows: int, width: int = 1) -> None:
        self.raw = np.zeros((max_rows, num_envs, width), np.uint64)
        self._generator = CounterDraws(seed, _NOISE_STREAM)
        self._width = width
        self._rows = 0
        self._version = 0
        self._episode = [0] * num_envs
        # Environment n is at step `_step[n]` of its episode at row `_row[n]` of the block.
        self._step = [0] * num_envs
        self._row = [0] * num_envs

    def begin_block(self, rows: int) -> None:
        """Draw for rows 0..rows-1 of a new block."""
        self._rows = rows
        for env in range(len(self._step)):
            self._draw(env)

    def begin_episode(self, row: int, env: int) -> bool:
        """Draw for a new episode from `row` on."""
        self._episode[env] += 1
        self._step[env] = 0
        self._row[env] = row
        return self._draw(env)

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

    def _draw(self, env: int) -> bool:
        row, step, width = self._row[env], self._step[env], self._width
        if row >= self._rows:
            return False
        self.raw[row : self._rows, env] = self._generator.draw(
            (self._rows - row) * width, step=step * width, episode=self._episode[env], version=self._version, env=env
        ).reshape(-1, width)
        return True


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


def fractions(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return draws as float64 in [0, 1), of 53 bits each."""
    result: NDArray[np.float64] = np.multiply(raw >> np.uint64(11), 2.0**-53)
    return result


def normals(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return draws as standard normal float64: one each, within ±6.8.

    The high 32 bits are the radius, sqrt(-2 ln((high + 0.5) / 2^32)), the low 32 the angle, 2 pi low / 2^32; the number
    is radius times cos(angle).
    """
    radius = np.sqrt(-2.0 * np.log(((raw >> _SHIFT_32) + 0.5) * 2.0**-32))
    result: NDArray[np.float64] = radius * np.cos((raw & _LOW_32) * (2.0**-31 * np.pi))
    return result


def lockstep_env_seed(seed: int, *, version: int) -> int:
    """Return the environments' seed for the reset that comes with policy version `version`.

    It has 30 bits, so that an environment's index can be added to it.
    """
    return int(CounterDraws(seed, _SEED_STREAM).draw(1, step=0, episode=0, version=version, env=0)[0] >> np.uint64(34))


def stream_env_seed(seed: int, actor_index: int) -> int:
    """Return the environments' seed of one actor in async mode: 30 bits, different for every (seed, index)."""
    state = np.random.SeedSequence([seed & _MASK_64, actor_index, _SEED_STREAM]).generate_state(1)
    return int(state[0]) >> 2
