"""Identity: environments whose best answer is their own observation, for tests and for a user's first check.

A learner that does not reach 0.9 of the optimum here within seconds has a fault; one that does still has everything to
prove elsewhere. Importing this module registers the ids, so a command line can name them::

    quarl-edge train quarl_device.testing.identity:IdentityDiscrete-v0
    quarl-edge train quarl_device.testing.identity:IdentityBox-v0 --algorithm ddpg
    quarl-edge train quarl_device.testing.identity:IdentityPixels-v0

What is shown next does not depend on what was done, and an episode terminates after `EPISODE_STEPS` steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

DISCRETE_ID = "IdentityDiscrete-v0"
BOX_ID = "IdentityBox-v0"
DICT_ID = "IdentityDict-v0"
PIXELS_ID = "IdentityPixels-v0"
EPISODE_STEPS = 5
OPTIMUM = float(EPISODE_STEPS)
"""Return of an episode in which every action is the right one."""

Vector = NDArray[np.float32]
Pixels = NDArray[np.uint8]
_QUARTER = 6


class IdentityDiscrete(gymnasium.Env[Vector, np.int64]):
    """Shows one of `n` actions as a float32[n] of one 1 and else 0; that action is paid 1, any other 0.

    Random actions return ``OPTIMUM / n`` on average.

    Args:
        n: how many actions there are.
        steps: of an episode.
    """

    def __init__(self, n: int = 4, steps: int = EPISODE_STEPS) -> None:
        self.observation_space = Box(0.0, 1.0, (n,), np.float32)
        self.action_space = Discrete(n)
        self._one_hot = np.eye(n, dtype=np.float32)
        self._steps, self._left, self._right = steps, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        super().reset(seed=seed, options=options)
        self._left = self._steps
        return self._show(), {}

    def step(self, action: np.int64) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Pay for the action and show the next one; see `gymnasium.Env.step`."""
        reward = float(action == self._right)
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}

    def _show(self) -> Vector:
        self._right = int(self.np_random.integers(len(self._one_hot)))
        shown: Vector = self._one_hot[self._right].copy()
        return shown


class IdentityBox(gymnasium.Env[Vector, Vector]):
    """Shows a point float32[size] between the bounds; an action is paid 1 minus its distance, in half ranges.

    The distance is the mean over the elements. Random actions return ``OPTIMUM / 3`` on average.

    Args:
        size: elements of observation and action.
        low: bound of both.
        high: likewise.
        steps: of an episode.
    """

    def __init__(self, size: int = 2, low: float = -1.0, high: float = 1.0, steps: int = EPISODE_STEPS) -> None:
        self.observation_space = Box(low, high, (size,), np.float32)
        self.action_space = Box(low, high, (size,), np.float32)
        self._low, self._high, self._half_range = low, high, (high - low) / 2
        self._steps, self._left = steps, 0
        self._point = np.zeros(size, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        super().reset(seed=seed, options=options)
        self._left = self._steps
        return self._show(), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Pay for the action and show the next point; see `gymnasium.Env.step`."""
        reward = 1.0 - float(np.abs(action - self._point).mean()) / self._half_range
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}

    def _show(self) -> Vector:
        self._point = self.np_random.uniform(self._low, self._high, self._point.shape).astype(np.float32)
        return self._point.copy()


class IdentityDict(gymnasium.Env[Any, np.int64]):
    """`IdentityDiscrete` in a Dict: `right`, and float32[1] `left`, the share of the episode that is to come."""

    def __init__(self, n: int = 4, steps: int = EPISODE_STEPS) -> None:
        self._inner = IdentityDiscrete(n, steps)
        shown: dict[str, gymnasium.Space[Any]] = {
            "right": self._inner.observation_space,
            "left": Box(0.0, 1.0, (1,), np.float32),
        }
        self.observation_space = Dict(shown)
        self.action_space = self._inner.action_space
        self._steps, self._left = steps, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Vector], dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        super().reset(seed=seed, options=options)
        right, info = self._inner.reset(seed=seed, options=options)
        self._left = self._steps
        return self._both(right), info

    def step(self, action: np.int64) -> tuple[dict[str, Vector], float, bool, bool, dict[str, Any]]:
        """See `IdentityDiscrete.step`."""
        right, reward, terminated, truncated, info = self._inner.step(action)
        self._left -= 1
        return self._both(right), reward, terminated, truncated, info

    def _both(self, right: Vector) -> dict[str, Vector]:
        return {"right": right, "left": np.array([self._left / self._steps], np.float32)}


class IdentityPixels(gymnasium.Env[Pixels, np.int64]):
    """Lights one of four quarters of uint8[12, 12, 1]; what is paid 1 is the quarter of the frame before.

    Of an episode's first frame it is that frame's own, as if it had been there before: a stack of two frames shows it.
    Who sees one frame alone gets ``1 + (OPTIMUM - 1) / 4`` on average.

    Args:
        steps: of an episode.
    """

    def __init__(self, steps: int = EPISODE_STEPS) -> None:
        self.observation_space = Box(0, 255, (2 * _QUARTER, 2 * _QUARTER, 1), np.uint8)
        self.action_space = Discrete(4)
        self._steps, self._left, self._right, self._lit = steps, 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        super().reset(seed=seed, options=options)
        self._left = self._steps
        shown = self._show()
        self._right = self._lit
        return shown, {}

    def step(self, action: np.int64) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """Pay for the action and light the next quarter; see `gymnasium.Env.step`."""
        reward, self._right = float(action == self._right), self._lit
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}

    def _show(self) -> Pixels:
        self._lit = int(self.np_random.integers(4))
        quarters = np.zeros(4, np.uint8)
        quarters[self._lit] = 255
        return np.kron(quarters.reshape(2, 2), np.ones((_QUARTER, _QUARTER), np.uint8))[..., None]


_ENTRIES: dict[str, Callable[..., gymnasium.Env[Any, Any]]] = {
    DISCRETE_ID: IdentityDiscrete,
    BOX_ID: IdentityBox,
    DICT_ID: IdentityDict,
    PIXELS_ID: IdentityPixels,
}
for _name in _ENTRIES.keys() - gymnasium.registry.keys():
    gymnasium.register(_name, entry_point=_ENTRIES[_name])
