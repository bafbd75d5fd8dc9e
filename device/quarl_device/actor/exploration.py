"""What draws become by a push's exploration: the numbers that the hot loop of a block uses, made ahead of it.

In a discrete space one draw is one decision: its high 32 bits against epsilon, its low 32 bits into an action; or,
where the policy is sampled, a fraction. In a box each action element has a draw of its own, as a standard normal n:

* gaussian: the action plus ``sigma * half * n``, half being half the range of that element;
* ornstein_uhlenbeck: the action plus x, where ``x <- (1 - 0.15) x + sigma * half * n`` every step, from 0 when an
  episode begins: theta 0.15 and a time step of 1, as in the paper that introduced DDPG;
* sample: n itself.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quarl_device.actor.draws import Draws, fractions, normals
from quarl_device.contract import ActionSpec
from quarl_device.wire.exploration import Exploration

OU_THETA = 0.15
_LOW_32 = np.uint64(0xFFFF_FFFF)
_SHIFT_32 = np.uint64(32)
_GREEDY = Exploration(kind="none", values=())


class Noise(Protocol):
    """Numbers of the block being made, row by row."""

    def begin_block(self, rows: int, exploration: Exploration) -> None:
        """Draw for rows 0..rows-1 of a new block; `exploration` is one actor's."""

    def change(self, row: int, exploration: Exploration) -> None:
        """Explore otherwise from `row` on (the policy was swapped inside a block); the draws stay."""

    def begin_episode(self, row: int, env: int) -> None:
        """Environment `env` begins its next episode at `row`, which may be one past the block's last."""

    def end_block(self, rows: int) -> None:
        """The block ended after `rows` rows, which may be fewer than drawn."""

    def restart(self, version: int) -> None:
        """Every environment was reset for policy version `version`: episodes count from 0 again."""


class _BulkNoise:
    """When numbers are made; the subclasses say which."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._rows = 0
        self._exploration = _GREEDY

    def begin_block(self, rows: int, exploration: Exploration) -> None:
        """See `Noise`."""
        self._draws.begin_block(rows)
        self._rows = rows
        self.change(0, exploration)

    def change(self, row: int, exploration: Exploration) -> None:
        """See `Noise`."""
        self._exploration = exploration
        self._decide(slice(row, self._rows), slice(None))

    def begin_episode(self, row: int, env: int) -> None:
        """See `Noise`."""
        if self._draws.begin_episode(row, env):
            self._decide(slice(row, self._rows), slice(env, env + 1))

    def end_block(self, rows: int) -> None:
        """See `Noise`."""
        self._draws.end_block(rows)

    def restart(self, version: int) -> None:
        """See `Noise`."""
        self._draws.restart(version)

    def _decide(self, rows: slice, envs: slice) -> None:
        raise NotImplementedError


class DiscreteNoise(_BulkNoise):
    """Noise in a discrete space.

    Args:
        draws: of width 1.
        num_actions: size of the space.

    Attributes:
        explore: bool[max_rows, N], true where the action is random.
        action: int64[max_rows, N], 0-based random actions; meaningful where `explore` is true.
        fraction: float64[max_rows, N] in [0, 1), to sample by.
    """

    def __init__(self, draws: Draws, *, num_actions: int) -> None:
        super().__init__(draws)
        size = draws.raw.shape[:2]
        self._num_actions = np.uint64(num_actions)
        self.explore = np.zeros(size, np.bool_)
        self.action = np.zeros(size, np.int64)
        self.fraction = np.zeros(size, np.float64)

    def _decide(self, rows: slice, envs: slice) -> None:
        raw = self._draws.raw[rows, envs, 0]
        if self._exploration.kind == "sample":
            self.fraction[rows, envs] = fractions(raw)
            self.explore[rows, envs] = False
            return
        self.action[rows, envs] = ((raw & _LOW_32) * self._num_actions) >> _SHIFT_32
        self.explore[rows, envs] = (raw >> _SHIFT_32) < self._threshold()

    def _threshold(self) -> np.uint64:
        epsilon = self._exploration.values[0] if self._exploration.kind == "epsilon" else 0.0
        return np.uint64(round(min(max(epsilon, 0.0), 1.0) * 2**32))


class BoxNoise(_BulkNoise):
    """Noise in a box.

    Args:
        draws: as wide as an action has elements.
        action: the space.

    Attributes:
        number: float64[max_rows, N, *shape]: what is added to the action, or to the drift; a standard normal number
            where the policy is sampled.
        drift: float64[N, *shape], x of the Ornstein-Uhlenbeck process; the hot loop moves it on.
    """

    def __init__(self, draws: Draws, *, action: ActionSpec) -> None:
        super().__init__(draws)
        rows, envs, _ = draws.raw.shape
        self._half = (np.array(action.high) / 2 - np.array(action.low) / 2).reshape(action.shape)
        self.number = np.zeros((rows, envs, *action.shape), np.float64)
        self.drift = np.zeros((envs, *action.shape), np.float64)

    def begin_episode(self, row: int, env: int) -> None:
        """See `Noise`."""
        super().begin_episode(row, env)
        self.drift[env] = 0.0

    def restart(self, version: int) -> None:
        """See `Noise`."""
        super().restart(version)
        self.drift[:] = 0.0

    def _decide(self, rows: slice, envs: slice) -> None:
        kind = self._exploration.kind
        if kind == "none":
            return
        drawn = normals(self._draws.raw[rows, envs])
        number = self.number[rows, envs]
        number[...] = drawn.reshape(number.shape)
        if kind != "sample":
            number *= self._exploration.values[0] * self._half
