"""An environment whose frames are numbered, and which knows what a stack of them must be: for tests of both ends.

No two frames of a process's environments are equal, so that a stack tells by itself whether it is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Frame = NDArray[Any]
BASE = 200


def number_of(frame: Frame) -> int:
    """Return the number that a frame shows in its last three elements."""
    first, second, third = np.asarray(frame).ravel()[-3:].tolist()
    return int(first) * BASE * BASE + int(second) * BASE + int(third)


class NumberedFrames(gymnasium.Env[Frame, np.int64]):
    """Episodes of random length whose every frame is new; rewards are the number of the frame that was acted on.

    Args:
        depth: frames of a stack.
        shape: of a frame, at least three elements.
        dtype: of a frame.
        numbers: where the next number comes from; shared by environments that are compared.
        end_chance: of an episode's end in each step, by termination or truncation.
        seed: of the lengths.

    Attributes:
        stacks: by the number of its newest frame, what a stack must be, oldest frame first; shared likewise.
    """

    def __init__(
        self,
        *,
        depth: int,
        shape: tuple[int, ...] = (1, 3),
        dtype: str = "uint8",
        numbers: itertools.count[int] | None = None,
        stacks: dict[int, tuple[int, ...]] | None = None,
        end_chance: float = 0.2,
        seed: int = 0,
    ) -> None:
        high = 255 if dtype == "uint8" else 1e6
        self.observation_space = gymnasium.spaces.Box(0, high, shape, np.dtype(dtype).type)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.stacks: dict[int, tuple[int, ...]] = {} if stacks is None else stacks
        self._numbers = itertools.count(1) if numbers is None else numbers
        self._depth, self._shape, self._dtype = depth, shape, dtype
        self._end_chance, self._rng = end_chance, np.random.default_rng(seed)
        self._episode: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        self._episode = []
        return self._show(), {}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Show the next frame; see `gymnasium.Env.step`."""
        reward = float(self._episode[-1])
        ends = self._rng.random() < self._end_chance
        terminated = ends and self._rng.random() < 0.5
        return self._show(), reward, bool(terminated), bool(ends and not terminated), {}

    def _show(self) -> Frame:
        number = next(self._numbers)
        self._episode.append(number)
        before = [self._episode[0]] * (self._depth - 1) + self._episode
        self.stacks[number] = tuple(before[-self._depth :])
        frame = np.zeros(self._shape, self._dtype)
        frame.reshape(-1)[-3:] = number // (BASE * BASE), number // BASE % BASE, number % BASE
        return frame
