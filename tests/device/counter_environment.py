"""An environment whose observation counts its steps, and which fails where it is told to."""

import contextlib

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Counter(gymnasium.Env):
    """Ends after `length` steps; the observation counts them. Actions start at 5."""

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Discrete(3, start=5)

    def __init__(self, length=3, fault=""):
        self.length, self.fault, self.count, self.actions = length, fault, 0, []
        if fault == "init":
            raise RuntimeError("no display\nsecond line")
        if fault == "dependency":
            raise gymnasium.error.DependencyNotInstalled("pip install swimmer")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        if self.fault == "reset":
            raise RuntimeError("stuck")
        return np.array([0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(int(action))
        if self.fault == "step":
            raise ZeroDivisionError("division by zero")
        self.count += 1
        return np.array([self.count], np.float32), 1.0, self.count == self.length, False, {}


@contextlib.contextmanager
def registered_counters():
    names = ["QuarlCounter-v0", "QuarlCounter-v1"]
    for name in names:
        gymnasium.register(name, entry_point=Counter, max_episode_steps=10)
    yield
    for name in names:
        del gymnasium.registry[name]
