"""What the two loops share: taking policies, resets, noise, statistics, and the check of what an environment gave."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.draws import Draws, LockstepDraws, StreamDraws, lockstep_env_seed, stream_env_seed
from quarl_device.actor.episodes import EpisodeStatistics
from quarl_device.actor.exploration import BoxNoise, DiscreteNoise, Noise
from quarl_device.actor.frames import LastFrames
from quarl_device.actor.recorder import Recorder
from quarl_device.environments import check_unchanged, first_line, missing_part
from quarl_device.errors import EnvironmentMisbehaved, ModelFileError, QuarlError
from quarl_device.wire.block import BlockSpec

_LATENCIES_KEPT = 1024


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How a loop runs.

    Attributes:
        env_id: for messages.
        spec: of the blocks.
        num_envs: N.
        max_rows: rows of a full block.
        seed: of the run.
        actor_index: which actor of the run this is.
        lockstep: one policy per block, noise and seeds by name, resets when a push says so.
        round_rows: rows that one policy makes before another takes its place; 0 for no rounds.
    """

    env_id: str
    spec: BlockSpec
    num_envs: int
    max_rows: int
    seed: int
    actor_index: int = 0
    lockstep: bool = False
    round_rows: int = 0


class Loop(Protocol):
    """Steps environments, a block at a time, on one thread."""

    config: LoopConfig
    mailbox: Mailbox
    recorder: Recorder
    episodes: EpisodeStatistics
    acting: ActingPolicy | None
    versions_seen: int
    round_left: int
    block_began_s: float
    act_us: deque[float]

    def run_block(self, rows: int) -> int:
        """Make at most `rows` rows; returns how many are in `recorder`, fewer after a wish to stop or flush.

        Raises:
            EnvironmentMisbehaved: the environment raised, or gave what is no observation or reward.
            ModelFileError: the policy failed, or gave what is no action.
        """
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class SteppingBase:
    """State and cold paths of a loop; the subclasses hold the hot path.

    Attributes:
        recorder: rows of the current block.
        episodes: training statistics.
        acting: the policy that acts, `None` before the first.
        versions_seen: policies swapped in so far.
        round_left: rows that the policy that acts is still to make in its round; 0 where there are no rounds.
        block_began_s: monotonic time at which the current block began, 0 between blocks.
        act_us: recent times of one policy call, in µs.
    """

    def __init__(self, config: LoopConfig, mailbox: Mailbox) -> None:
        self.config = config
        self.mailbox = mailbox
        self.recorder = Recorder(config.spec, num_envs=config.num_envs, max_rows=config.max_rows)
        self.episodes = EpisodeStatistics(config.num_envs)
        self.acting: ActingPolicy | None = None
        self.versions_seen = 0
        self.round_left = 0
        self.block_began_s = 0.0
        self.act_us: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self._noise = noise_of(config)
        (seen,) = config.spec.observations
        self._frames = LastFrames(seen, num_envs=config.num_envs) if seen.stack > 1 else None
        self._fresh = True
        self._new = False

    def _reset_envs(self, seed: int) -> NDArray[Any]:
        """Reset every environment with a seed; returns observations [N, *shape]."""
        raise NotImplementedError

    def _singles(self) -> Sequence[gymnasium.Env[Any, Any]]:
        """Return the environments that can be asked for their spaces."""
        raise NotImplementedError

    def _begin_block(self, rows: int) -> ActingPolicy | None:
        """Take the newest policy, reset if that is due, draw noise; `None` if there is no policy or a wish to stop."""
        self.mailbox.raised = False
        self.mailbox.flush = False
        self.mailbox.alive()
        acting = self._swap(self._next_policy())
        if acting is None or self.mailbox.stop:
            return None
        self.round_left = self.round_left or self.config.round_rows
        reset = self.config.lockstep and acting.reset and self._new
        if self._fresh or reset:
            self._restart(acting.version)
        self._new = False
        self.recorder.begin()
        if self._frames is not None:
            self.recorder.before[...] = self._frames.stacks[:-1]
        self.recorder.acted_by(0, acting.epoch, acting.version)
        self._noise.begin_block(rows, acting.exploration)
        self.block_began_s = time.monotonic()
        return acting

    def _next_policy(self) -> ActingPolicy | None:
        """Return the newest policy, but the one that acts while its round goes on, unless its learner is no more."""
        newest, acting = self.mailbox.policy, self.acting
        if newest is None or acting is None or not self.round_left:
            return newest
        if newest.epoch == acting.epoch:
            return acting
        self.round_left = 0
        return newest

    def _swap(self, policy: ActingPolicy | None) -> ActingPolicy | None:
        if policy is not None and policy is not self.acting:
            self.acting = policy
            self._new = True
            self.versions_seen += 1
        return self.acting

    def _attend(self, row: int, acting: ActingPolicy) -> tuple[ActingPolicy, bool]:
        """Look into the raised mailbox before `row`; returns the policy for it, and whether the block ends here."""
        self.mailbox.raised = False
        self.mailbox.alive()
        if self.mailbox.stop or (self.mailbox.flush and row > 0):
            return acting, True
        # In lockstep a block belongs to one policy, as a round does, whatever arrives meanwhile.
        if self.config.lockstep or self.round_left:
            return acting, False
        newest = self._swap(self.mailbox.policy) or acting
        if newest is not acting:
            self.recorder.acted_by(row, newest.epoch, newest.version)
            self._noise.change(row, newest.exploration)
        return newest, False

    def _end_block(self, rows: int) -> int:
        recorder = self.recorder
        recorder.end(rows)
        self._noise.end_block(rows)
        self.block_began_s = 0.0
        self.round_left = max(0, self.round_left - rows)
        if rows:
            self._check_values(rows)
            valid = recorder.valid[:rows]
            ended = recorder.terminated[:rows] | recorder.truncated[:rows]
            self.episodes.add(recorder.reward[:rows], valid, recorder.start[:rows], ended)
        return rows

    def _restart(self, version: int) -> None:
        config = self.config
        if config.lockstep:
            seed = lockstep_env_seed(config.seed, version=version)
        else:
            seed = stream_env_seed(config.seed, config.actor_index)
        self._noise.restart(version)
        observation = self._reset_envs(seed)
        for env in self._singles():
            check_unchanged(config.env_id, env, config.spec.observations, config.spec.action)
        self._check_shape("reset", observation)
        self.recorder.restart(observation)
        if self._frames is not None:
            self._frames.begin(observation)
        self._fresh = False

    def _check_shape(self, what: str, observations: NDArray[Any]) -> None:
        """Refuse observations [N, *shape] that numpy would only have stretched to their place."""
        expected = self.recorder.observation.shape[1:]
        if np.shape(observations) != expected:
            raise EnvironmentMisbehaved(
                f"environment {self.config.env_id!r}: {what} gave observations of shape {np.shape(observations)[1:]}, "
                f"its space says {expected[1:]}"
            )

    def _check_values(self, rows: int) -> None:
        """Name the first step whose action, reward or observation is NaN or Inf; once per block, not per step."""
        recorder = self.recorder
        # An observation belongs to the step before the one that acts on it: it is no fault of the policy's.
        checked = (
            ("action", recorder.action[:rows], 0),
            ("reward", recorder.reward[:rows], 0),
            ("observation", recorder.observation[: rows + 1], 1),
        )
        found = [
            (place[0] - later, place[1], what, array[place])
            for what, array, later in checked
            if (place := self._first_not_finite(array))
        ]
        if found:
            # Of one step the action came first.
            row, env, what, value = min(found, key=lambda first: first[0])
            self._not_finite(what, value, row, env)
        if recorder.final_index and recorder.observation.dtype.kind == "f":
            last = recorder.finals()
            for (row, env), observation in zip(recorder.final_index, last, strict=True):
                if not np.isfinite(observation).all():
                    self._not_finite("observation", observation, row, env)

    def _first_not_finite(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return row and environment of the first NaN or Inf in [T, N, ...]."""
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return None
        bad = ~np.isfinite(array).reshape(*array.shape[:2], -1).all(axis=2)
        row, env = np.argwhere(bad)[0].tolist()
        return row, env

    def _not_finite(self, what: str, value: NDArray[Any], row: int, env: int) -> NoReturn:
        shown = np.array2string(value, threshold=8, edgeitems=4).replace("\n", "")
        found = f"{what} {shown} {self._where(row, env)} is not finite"
        if what == "action":
            raise ModelFileError(f"the policy's {found}")
        raise EnvironmentMisbehaved(f"environment {self.config.env_id!r}: {found}")

    def _tell(self, row: int, error: Exception, *, policy: bool) -> NoReturn:
        """Say with the step whose fault an exception is."""
        if policy:
            raise ModelFileError(f"the policy failed {self._where(row)}: {first_line(error)}") from error
        if isinstance(error, QuarlError) and not isinstance(error, EnvironmentMisbehaved):
            raise error
        self._raised(row, error)

    def _raised(self, row: int, error: BaseException) -> NoReturn:
        action = self.recorder.action[row]
        if action.dtype.kind == "f" and (bad := self._first_not_finite(action[None])):
            self._not_finite("action", action[bad[1]], row, bad[1])
        # What an adapter of environments says names them already.
        told = isinstance(error, EnvironmentMisbehaved)
        said = first_line(error) if told else f"{type(error).__name__}: {first_line(error)}"
        raise missing_part(self.config.env_id, error) or EnvironmentMisbehaved(
            f"environment {self.config.env_id!r} failed {self._where(row)}: {said}"
        ) from error

    def _where(self, row: int, env: int | None = None) -> str:
        step = self.episodes.steps + int(self.recorder.valid[: row + 1].sum())
        which = f" of environment {env}" if env is not None and self.config.num_envs > 1 else ""
        return f"at step {step:,}{which}"


def noise_of(config: LoopConfig) -> Noise:
    """Return what draws a loop's noise."""
    action = config.spec.action
    width = 1 if action.kind == "discrete" else math.prod(action.shape)
    size = {"num_envs": config.num_envs, "max_rows": config.max_rows, "width": width}
    draws: Draws
    if config.lockstep:
        draws = LockstepDraws(seed=config.seed, **size)
    else:
        draws = StreamDraws(seed=config.seed, actor_index=config.actor_index, **size)
    return DiscreteNoise(draws, num_actions=action.n) if action.kind == "discrete" else BoxNoise(draws, action=action)
