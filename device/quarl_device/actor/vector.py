"""The hot loop for many environments behind one step."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.choosing import ChooseMany, choose_many
from quarl_device.actor.stepping import LoopConfig, SteppingBase
from quarl_device.environments import VectorAdapter, VectorStep


class VectorLoop(SteppingBase):
    """Steps N environments at a time.

    Args:
        env: as `make_vector` gives it.
        config: see `LoopConfig`.
        mailbox: where policies come from.
    """

    def __init__(self, env: VectorAdapter, config: LoopConfig, mailbox: Mailbox) -> None:
        super().__init__(config, mailbox)
        self._env = env

    def run_block(self, rows: int) -> int:
        """Make at most `rows` rows. See `Loop`."""
        acting = self._begin_block(rows)
        if acting is None:
            return self._end_block(0)
        mailbox, recorder, step = self.mailbox, self.recorder, self._env.step
        observations, actions, rewards = recorder.observation, recorder.action, recorder.reward
        choose, begin_episodes = self._choose(acting), self.config.lockstep or recorder.action.dtype.kind == "f"
        row, given, frames = 0, None, self._frames
        self._time_act(acting.policy.act_batch, observations[0] if frames is None else frames.stacks)
        try:
            for row in range(rows):
                if mailbox.raised:
                    acting, ends = self._attend(row, acting)
                    if ends:
                        rows = row
                        break
                    choose = self._choose(acting)
                given = None
                given = choose(row, observations[row], actions[row])
                result = step(given)
                observations[row + 1] = result.observation
                if frames is not None:
                    frames.push(result.observation, result.start)
                rewards[row] = result.reward
                recorder.terminated[row] = result.terminated
                recorder.truncated[row] = result.truncated
                recorder.valid[row] = result.valid
                recorder.start[row + 1] = result.start
                if result.final_rows.size:
                    self._keep_finals(row, result)
                if begin_episodes:
                    self._begin_episodes(row + 1)
        except Exception as error:
            self._tell(row, error, policy=given is None)
        return self._end_block(rows)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    def _reset_envs(self, seed: int) -> NDArray[Any]:
        return np.asarray(self._env.reset(seed=seed))

    def _singles(self) -> tuple[gymnasium.Env[Any, Any], ...]:
        return self._env.singles

    def _end_block(self, rows: int) -> int:
        recorder = self.recorder
        # A dummy row is no end, whatever the environment says of it.
        recorder.terminated[:rows] &= recorder.valid[:rows]
        recorder.truncated[:rows] &= recorder.valid[:rows]
        return super()._end_block(rows)

    def _keep_finals(self, row: int, result: VectorStep) -> None:
        self.recorder.final_index.extend((row, env) for env in result.final_rows.tolist())
        self.recorder.final_observation.append(result.final_observation)

    def _begin_episodes(self, row: int) -> None:
        for env in np.flatnonzero(self.recorder.start[row]).tolist():
            self._noise.begin_episode(row, env)

    def _choose(self, acting: ActingPolicy) -> ChooseMany:
        choose, frames = choose_many(acting, self._noise, self.recorder, self.config.spec.action), self._frames
        return choose if frames is None else lambda row, _, chosen: choose(row, frames.stacks, chosen)

    def _time_act(self, act: Any, observations: NDArray[Any]) -> None:
        began = time.perf_counter_ns()
        act(observations)
        self.act_us.append((time.perf_counter_ns() - began) / 1e3)
