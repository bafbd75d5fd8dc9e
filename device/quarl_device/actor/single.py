"""The hot loop for one environment."""

from __future__ import annotations

import time
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.choosing import POLICY_DECIDES, choose_one, forced_actions
from quarl_device.actor.frames import LastFrames
from quarl_device.actor.stepping import LoopConfig, SteppingBase
from quarl_device.hot_path import Act


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
        step = self._env.step if self._frames is None else self._step_and_stack
        start = self.config.spec.action.start
        act, observation = self._act_from(0, acting), self._observation
        forced = forced_actions(self._noise, 0, rows)
        self._time_act(acting.policy.act_index, observation if self._frames is None else self._frames.stacks[:, 0])
        row, action = 0, POLICY_DECIDES
        try:
            for row in range(rows):
                if mailbox.raised:
                    swapped, ends = self._attend(row, acting)
                    if ends:
                        rows = row
                        break
                    if swapped is not acting:
                        acting = swapped
                        act = self._act_from(row, acting)
                        forced = forced_actions(self._noise, 0, rows)
                action = forced[row]
                if action < 0:
                    action = act(observation)
                actions[row] = action
                # A box action becomes a new array by the addition: an environment may change what it is given.
                observation, reward, terminated, truncated, _ = step(action + start)
                observations[row + 1] = observation
                rewards[row] = reward
                if terminated or truncated:
                    observation = self._end_episode(row, observation, terminated, truncated)
                    if self.config.lockstep:
                        forced[row + 1 :] = forced_actions(self._noise, row + 1, rows)
        # The environment is anybody's code: whatever it raises is told with the step.
        except Exception as error:
            self._tell(row, error, policy=isinstance(action, int) and action < 0)
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

    def _singles(self) -> tuple[gymnasium.Env[Any, Any], ...]:
        return (self._env,)

    def _end_episode(self, row: int, observation: Any, terminated: bool, truncated: bool) -> Any:
        """Record how the episode ended, reset, and return the new episode's first observation."""
        recorder = self.recorder
        recorder.terminated[row] = terminated
        recorder.truncated[row] = truncated
        recorder.final_index.append((row, 0))
        recorder.final_observation.append(np.array(observation, recorder.observation.dtype))
        first = self._env.reset()[0]
        self._check_shape("reset", np.asarray(first)[None])
        if self._frames is not None:
            self._frames.begin(first)
        recorder.observation[row + 1, 0] = first
        recorder.start[row + 1] = True
        self._noise.begin_episode(row + 1, 0)
        return first

    def _step_and_stack(self, action: Any) -> Any:
        result = self._env.step(action)
        # Whatever chooses the action, the policy sees this frame in its next stacks.
        cast(LastFrames, self._frames).push(result[0])
        return result

    def _act_from(self, row: int, acting: ActingPolicy) -> Act:
        act, frames = choose_one(acting, self._noise, self.recorder, row, self.config.spec.action), self._frames
        return act if frames is None else lambda _: act(frames.stacks[:, 0])

    def _time_act(self, act: Any, observation: Any) -> None:
        began = time.perf_counter_ns()
        act(observation)
        self.act_us.append((time.perf_counter_ns() - began) / 1e3)
