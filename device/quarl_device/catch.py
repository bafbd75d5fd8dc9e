"""Catch in pixels: a small environment for convolutional policies, with nothing to install.

Five balls fall one after another, drifting and bouncing off the walls; a paddle at the bottom must be under each. Like
bsuite's Catch (Osband et al. 2020), but drawn at 36x36 pixels, the least that the convolutions of Mnih et al. 2015
take, and with a drift that a single frame shows as the ball's tail.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

CATCH_ID = "QuarlCatch-v0"
CELLS = 9
CELL_PIXELS = 4
SIZE_PIXELS = CELLS * CELL_PIXELS
BALLS = 5
_BALL, _TAIL, _PADDLE = 255, 128, 200

Frame = NDArray[np.uint8]


class Catch(gymnasium.Env[Frame, np.int64]):
    """Actions: 0 left, 1 stay, 2 right. Reward: 1 for a ball that is caught, -1 for one that is missed.

    Observations are uint8[36, 36, 1]. An episode has `BALLS` balls and always terminates after
    ``BALLS * (CELLS - 1)`` steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012  gymnasium declares it so

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIZE_PIXELS, SIZE_PIXELS, 1), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._balls = 0
        self._ball = self._tail = (0, 0)
        self._drift = 0
        self._paddle = CELLS // 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        super().reset(seed=seed, options=options)
        self._balls, self._paddle = BALLS, CELLS // 2
        self._drop()
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Move the paddle, let the ball fall by one cell; see `gymnasium.Env.step`."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        row, column = self._tail = self._ball
        if not 0 <= column + self._drift < CELLS:
            self._drift = -self._drift
        self._ball = (row + 1, column + self._drift)
        if self._ball[0] < CELLS - 1:
            return self._draw(), 0.0, False, False, {}
        reward = 1.0 if self._ball[1] == self._paddle else -1.0
        self._balls -= 1
        frame = self._draw()
        if self._balls:
            self._drop()
            frame = self._draw()
        return frame, reward, not self._balls, False, {}

    def render(self) -> Frame:
        """Return the frame as uint8[36, 36, 3]."""
        return np.repeat(self._draw(), 3, axis=2)

    def _drop(self) -> None:
        self._ball = self._tail = (0, int(self.np_random.integers(CELLS)))
        self._drift = int(self.np_random.integers(-1, 2))

    def _draw(self) -> Frame:
        cells = np.zeros((CELLS, CELLS), np.uint8)
        cells[self._tail] = _TAIL
        cells[self._ball] = _BALL
        cells[CELLS - 1, self._paddle] = max(cells[CELLS - 1, self._paddle], _PADDLE)
        return np.kron(cells, np.ones((CELL_PIXELS, CELL_PIXELS), np.uint8))[..., None]


def register() -> None:
    """Make `CATCH_ID` known to gymnasium; safe to call twice."""
    if CATCH_ID not in gymnasium.registry:
        gymnasium.register(CATCH_ID, entry_point="quarl_device.catch:Catch")
