"""Returns of finished training episodes, from the rows of a block."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

_RECENT = 100


class EpisodeStatistics:
    """Sums rewards per environment across blocks; costs a few array operations per block.

    Args:
        num_envs: N.

    Attributes:
        episodes: finished so far.
        steps: environment steps so far, dummy rows left out.
    """

    def __init__(self, num_envs: int) -> None:
        self.episodes = 0
        self.steps = 0
        self._return = np.zeros(num_envs)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def add(
        self, reward: NDArray[np.float32], valid: NDArray[np.bool_], start: NDArray[np.bool_], ended: NDArray[np.bool_]
    ) -> None:
        """Count a block.

        Args:
            reward: float32[T, N].
            valid: bool[T, N], false where a row is a dummy.
            start: bool[T, N]; a start without an end before it (a reset from outside) forgets the unfinished episode.
            ended: bool[T, N], terminated or truncated.
        """
        self.steps += int(np.count_nonzero(valid))
        self._return[start[0]] = 0.0
        returns = np.cumsum(np.where(valid, reward, 0.0), axis=0, dtype=np.float64)
        # Column by column, so that an environment's ends follow each other.
        env, row = np.nonzero((ended & valid).T)
        if env.size:
            total = returns[row, env] + self._return[env]
            again = np.flatnonzero(env[1:] == env[:-1]) + 1
            total[again] = returns[row[again], env[again]] - returns[row[again - 1], env[again]]
            order = np.argsort(row, kind="stable")[-_RECENT:]
            self._recent.extend(total[order].tolist())
            self.episodes += int(env.size)
            last = np.append(np.flatnonzero(env[1:] != env[:-1]), env.size - 1)
            self._return[env[last]] = -returns[row[last], env[last]]
        self._return += returns[-1]

    @property
    def return_mean(self) -> float:
        """Mean return of the last 100 finished episodes, 0 if there are none."""
        # Other threads ask while the loop's adds, and a deque must not change while Python code iterates over it.
        recent = tuple(self._recent)
        return sum(recent) / len(recent) if recent else 0.0
