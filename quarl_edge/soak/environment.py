"""An environment that keeps its own count of the steps it made, where a kill of its process does not reach it.

The reward tells the number of the step in its life (`books.reward_of`), so every stored row says which one it is.
`QUARL_SOAK_COUNTS` names the folder of the counts, `QUARL_SOAK_RATE` the steps per second (0: as fast as it goes).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

import gymnasium

from quarl_edge.soak.books import COUNT, STEP_NUMBERS

ENV_ID = "QuarlSoak-v0"
COUNTS_VARIABLE = "QUARL_SOAK_COUNTS"
RATE_VARIABLE = "QUARL_SOAK_RATE"
_STEPS_BETWEEN_SLEEPS = 5  # not in step with blocks, so that kills meet them in every phase


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts the steps of `env` in a file of its own.

    Args:
        env: what is stepped.
        folder: for the count; the file is named after process and time.
        steps_per_s: 0 for no bound.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], folder: Path, *, steps_per_s: float = 0.0) -> None:
        super().__init__(env)
        path = folder / f"{time.time_ns()}-{os.getpid()}"
        path.write_bytes(bytes(COUNT.size))
        # Memory that is shared with a file outlives the process, and is not bounded by a limit on the size of files.
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), COUNT.size)
        self._count = 0
        self._pause_s = _STEPS_BETWEEN_SLEEPS / steps_per_s if steps_per_s else 0.0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make one step, then count it: what is stored was counted before."""
        observation, _, terminated, truncated, info = self.env.step(action)
        self._count += 1
        struct.pack_into(COUNT.format, self._memory, 0, self._count)
        if self._pause_s and self._count % _STEPS_BETWEEN_SLEEPS == 0:
            time.sleep(self._pause_s)
        return observation, self._count % STEP_NUMBERS / STEP_NUMBERS, terminated, truncated, info

    def close(self) -> None:
        """Close both."""
        self._memory.close()
        super().close()


def make(**_: Any) -> gymnasium.Env[Any, Any]:
    """Return what `ENV_ID` names, as the process's variables want it."""
    folder, rate = os.environ[COUNTS_VARIABLE], os.environ.get(RATE_VARIABLE, "0")
    return Counted(gymnasium.make("CartPole-v1"), Path(folder), steps_per_s=float(rate))


gymnasium.register(ENV_ID, f"{__name__}:make")
