"""Stepping one environment in deploy mode: what chooses an action, when it is due, and what the environment gets."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from quarl_device.deploy.acting import Act, Busy, make_finite
from quarl_device.deploy.config import DeployConfig
from quarl_device.deploy.limits import Wishes, guard_of
from quarl_device.deploy.notes import Tally
from quarl_device.environments import first_line, make_single, missing_part, spaces_to_specs
from quarl_device.environments.wrappers import moves_actions
from quarl_device.errors import EnvironmentMisbehaved, QuarlError, SpaceMismatch, UsageError
from quarl_device.grid import NS, Grid
from quarl_device.notify import Notifier

TICK_S = 0.25
_LONG_NS = int(TICK_S * NS)


class Stepping(ABC):
    """Plays episodes with whatever acts; a subclass decides who that is.

    Args:
        config: see `DeployConfig`.
        notifier: is told that this thread lives.

    Raises:
        QuarlError: the environment cannot be made, or limits and safe action do not fit it.
    """

    def __init__(self, config: DeployConfig, *, notifier: Notifier | None = None) -> None:
        self._config = config
        self._notifier = notifier or Notifier()
        _check_unmoved(config)
        self._world = make_single(config.env, allow_module=config.allow_module)
        self._guard = guard_of(
            config.wishes, spaces_to_specs(self._world.observation_space, self._world.action_space)[1]
        )
        safe = self._guard.safe_action
        if safe is not None and not self._world.action_space.contains(safe):
            raise UsageError(
                f"the safe action {np.ravel(safe)[:4].tolist()} is not in {self._world.action_space}, as float32",
                hint="--safe-action a little further inside",
            )
        self._finite = make_finite(self._world.observation_space)
        self._grid = Grid(config.hz, time.monotonic_ns()) if config.hz else None
        self._busy = Busy()
        self._tally = Tally()
        self._act: Act | None = None
        self._raised = False
        self._reason = ""
        self._steps = self._episodes = self._resets = 0
        self._returned = 0.0
        self._last_step = self._last_episode = 0  # that end the run; 0 for never
        self._first_episode = 0
        self._count_from_here()

    @abstractmethod
    def _attend(self) -> None:
        """Handle what has happened meanwhile; something else may act afterwards, or nothing."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """What acts has raised this; something else acts afterwards, or nothing."""

    @abstractmethod
    def _begin_episode(self) -> None:
        """The next observation is an episode's first."""

    @abstractmethod
    def _episode_ended(self, steps: int) -> None:
        """An episode of so many steps has ended."""

    def stop(self, reason: str) -> None:
        """End after the step that is under way; from any thread or a signal handler."""
        # No lock is taken: a signal may find this very thread inside of one.
        self._reason = self._reason or reason
        self._raised = True

    def _count_from_here(self) -> None:
        """Let the steps and episodes that end the run begin here."""
        most_steps, most_episodes = self._config.max_steps, self._config.max_episodes
        self._last_step = self._steps + most_steps if most_steps else 0
        self._last_episode = self._episodes + most_episodes if most_episodes else 0
        self._first_episode, self._returned = self._episodes, 0.0

    @property
    def _return_mean(self) -> float:
        """Mean return of the episodes that count, 0 for none."""
        return self._returned / max(self._episodes - self._first_episode, 1)

    def _count_nothing(self) -> None:
        """Let no number of steps or episodes end the run."""
        self._last_step = self._last_episode = 0

    def _play(self) -> None:
        """Play one episode, or until nothing is left that may act."""
        observation, grid, step, clock = self._reset(), self._grid, self._world.step, time.monotonic_ns
        total, steps_before = 0.0, self._steps
        if grid is not None:
            grid.pause(clock())
        while not self._reason:
            if self._raised:
                self._attend()
            if grid is not None:
                self._sleep_until(grid.due_ns)
            action = self._choose(observation)
            if action is None or self._reason:
                return
            if grid is not None and not grid.deliver(clock()):
                action = self._late(action)
            try:
                observation, reward, terminated, truncated, _ = step(action)
                total += float(reward)
                ended = terminated or truncated
            # The environment is anybody's code.
            except Exception as error:
                raise self._misbehaved("step()", error) from error
            self._steps += 1
            if ended:
                self._end_episode(total, self._steps - steps_before)
                return
            if self._steps == self._last_step:
                self.stop("all steps made")

    def _choose(self, observation: Any) -> Any:
        """Return the action for an observation, `None` if nothing may act."""
        if not self._finite(observation):
            return self._blind("that does not fit its space: NaN or Inf, another shape or kind, or a key missing")
        has_failed = False
        while self._act is not None:
            try:
                return self._act(observation)
            # Whatever a runtime raises: the next one acts on this very observation.
            except Exception as error:
                self._busy.since_s = 0.0
                if has_failed:
                    # Not two policies in one step: should this one fail at the next observation too, it is dropped.
                    return self._blind(f"that two policies failed on: {type(error).__name__}: {first_line(error)}")
                has_failed = True
                self._fail(error)
        return None

    def _blind(self, why: str) -> Any:
        """Return the safe action for an observation that no policy can be blamed for."""
        self._tally.bad_observations += 1
        if self._guard.safe_action is None:
            raise EnvironmentMisbehaved(
                f"environment {self._config.env.env_id!r} gave an observation at step {self._steps:,} {why}",
                hint="--safe-action is what such a step gets",
            )
        return self._safe()

    def _late(self, action: Any) -> Any:
        """Return what the environment gets after a deadline that was missed."""
        self._tally.overruns += 1
        return action if self._guard.safe_action is None else self._safe()

    def _safe(self, _: Any = None) -> Any:
        self._tally.safe_steps += 1
        safe = self._guard.safe_action
        # An environment may change what it is given.
        return safe if isinstance(safe, int) else safe.copy()

    def _reset(self) -> Any:
        self._begin_episode()
        try:
            seed = self._config.seed if not self._resets else None
            observation, _ = self._world.reset(seed=seed)
        except Exception as error:
            raise self._misbehaved("reset()", error) from error
        self._resets += 1
        return observation

    def _end_episode(self, total: float, steps: int) -> None:
        self._episodes += 1
        self._returned += total
        self._episode_ended(steps)
        if self._episodes == self._last_episode:
            self.stop("all episodes made")
        elif self._steps == self._last_step:
            self.stop("all steps made")

    def _sleep_until(self, due_ns: int) -> None:
        while not self._reason and (left_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(min(left_ns / NS, TICK_S))
            if left_ns > _LONG_NS:  # else the next look at what has happened is soon enough
                self._notifier.alive()

    def _misbehaved(self, call: str, error: Exception) -> QuarlError:
        env_id = self._config.env.env_id
        return missing_part(env_id, error) or EnvironmentMisbehaved(
            f"environment {env_id!r} raised in {call} at step {self._steps:,}: "
            f"{type(error).__name__}: {first_line(error)}"
        )


def _check_unmoved(config: DeployConfig) -> None:
    """Refuse limits or a safe action of an environment whose policy acts in other units: none may move them."""
    if config.wishes != Wishes() and moves_actions(config.env.wrappers):
        raise SpaceMismatch(
            f"limits and safe action are those of the environment, and the policy acts behind "
            f"{', '.join(config.env.wrappers)}, which would move them",
            hint="wrap the environment in its own module instead, where it is registered",
        )
