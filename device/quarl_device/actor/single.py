"""The hot loop for one environment."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.acting import Mailbox
from quarl_device.actor.stepping import LoopConfig, SteppingBase
from quarl_device.environments import first_line
from quarl_device.errors import ModelFileError, QuarlError


class SingleLoop(SteppingBase):
    """Steps one environment.

    Args:
        env: as `make_single` gives it: it does not reset by itself.
        config: see `LoopConfig`; `num_envs` is 1.
        mailbox: where policies come from.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], config: LoopConfig, mailbox: Mailbox) -> None:
        super().__init__(config, mailbox)
        self._env = env
        self._observation: Any = None

    def run_block(self, rows: int) -> int:
        """Make at most `rows` rows. See `Loop`."""
        acting = self._begin_block(rows)
        if acting is None:
            return self._end_block(0)
        mailbox, recorder = self.mailbox, self.recorder
        # Views without the environment's axis; indexing them by row is the cheapest way to write a row.
        observations = recorder.observation[:, 0]
        actions, rewards = recorder.action[:, 0], recorder.reward[:, 0]
        step, start = self._env.step, self.config.spec.action.start
        act, observation = acting.policy.act_index, self._observation
        forced = self._forced(0)
        self._time_act(act, observation)
        row, action = 0, -1
        try:
            for row in range(rows):
                if mailbox.raised:
                    swapped, ends = self._attend(row, acting)
                    if ends:
                        return self._end_block(row)
                    if swapped is not acting:
                        acting = swapped
                        act = acting.policy.act_index
                        forced = self._forced(0)
                action = forced[row]
                if action < 0:
                    action = act(observation)
                observation, reward, terminated, truncated, _ = step(action + start)
                observations[row + 1] = observation
                actions[row] = action
                rewards[row] = reward
                if terminated or truncated:
                    observation = self._end_episode(row, observation, terminated, truncated)
                    if self.config.lockstep:
                        forced[row + 1 :] = self._forced(row + 1)[: rows - row - 1]
        except QuarlError:
            raise
        # The environment is anybody's code: whatever it raises is told with the step.
        except Exception as error:
            if action < 0:
                raise ModelFileError(f"the policy failed {self._where(row)}: {first_line(error)}") from error
            self._raised(row, error)
        finally:
            self._observation = observation
        # Once per block: an environment that gives another shape does so at every step.
        self._check_shape("step", np.asarray(observation)[None])
        return self._end_block(rows)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _reset_envs(self, seed: int) -> NDArray[Any]:
        try:
            self._observation = self._env.reset(seed=seed)[0]
        except Exception as error:
            self._raised(0, error)
        return np.asarray(self._observation)[None]

    def _end_episode(self, row: int, observation: Any, terminated: bool, truncated: bool) -> Any:
        """Record how the episode ended, reset, and return the new episode's first observation."""
        recorder = self.recorder
        recorder.terminated[row] = terminated
        recorder.truncated[row] = truncated
        recorder.final_index.append((row, 0))
        recorder.final_observation.append(np.array(observation, recorder.observation.dtype))
        first = self._env.reset()[0]
        recorder.observation[row + 1, 0] = first
        recorder.start[row + 1] = True
        self._noise.begin_episode(row + 1, 0)
        return first

    def _forced(self, row: int) -> list[int]:
        """Return per row from `row` on: a random action, or -1 where the policy decides."""
        noise = self._noise
        forced: list[int] = np.where(noise.explore[row:, 0], noise.action[row:, 0], -1).tolist()
        return forced

    def _time_act(self, act: Any, observation: Any) -> None:
        began = time.perf_counter_ns()
        act(observation)
        self.act_us.append((time.perf_counter_ns() - began) / 1e3)
