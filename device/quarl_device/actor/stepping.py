"""What the two loops share: taking policies, resets, noise, statistics, and the check of what an environment gave."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.episodes import EpisodeStatistics
from quarl_device.actor.exploration import LockstepNoise, Noise, StreamNoise, lockstep_env_seed, stream_env_seed
from quarl_device.actor.recorder import Recorder
from quarl_device.environments import first_line
from quarl_device.errors import EnvironmentMisbehaved, UnsupportedSpace
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
    """

    env_id: str
    spec: BlockSpec
    num_envs: int
    max_rows: int
    seed: int
    actor_index: int = 0
    lockstep: bool = False

    def __post_init__(self) -> None:
        if self.spec.action.kind != "discrete":
            raise UnsupportedSpace(f"this version acts in discrete spaces; the learner has {self.spec.action.kind}")


class Loop(Protocol):
    """Steps environments, a block at a time, on one thread."""

    config: LoopConfig
    mailbox: Mailbox
    recorder: Recorder
    episodes: EpisodeStatistics
    acting: ActingPolicy | None
    versions_seen: int
    block_began_s: float
    act_us: deque[float]

    def run_block(self, rows: int) -> int:
        """Make at most `rows` rows; returns how many are in `recorder`, fewer after a wish to stop or flush.

        Raises:
            EnvironmentMisbehaved: the environment raised, or gave what is no observation or reward.
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
        self.block_began_s = 0.0
        self.act_us: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self._noise = _noise(config)
        self._fresh = True
        self._new = False

    def _reset_envs(self, seed: int) -> NDArray[Any]:
        """Reset every environment with a seed; returns observations [N, *shape]."""
        raise NotImplementedError

    def _begin_block(self, rows: int) -> ActingPolicy | None:
        """Take the newest policy, reset if that is due, draw noise; `None` if there is no policy or a wish to stop."""
        self.mailbox.raised = False
        self.mailbox.flush = False
        acting = self._swap(self.mailbox.policy)
        if acting is None or self.mailbox.stop:
            return None
        reset = self.config.lockstep and acting.reset and self._new
        if self._fresh or reset:
            self._restart(acting.version)
        self._new = False
        self.recorder.begin()
        self.recorder.acted_by(0, acting.epoch, acting.version)
        self._noise.begin_block(rows, acting.epsilon)
        self.block_began_s = time.monotonic()
        return acting

    def _swap(self, policy: ActingPolicy | None) -> ActingPolicy | None:
        if policy is not None and policy is not self.acting:
            self.acting = policy
            self._new = True
            self.versions_seen += 1
        return self.acting

    def _attend(self, row: int, acting: ActingPolicy) -> tuple[ActingPolicy, bool]:
        """Look into the raised mailbox before `row`; returns the policy for it, and whether the block ends here."""
        self.mailbox.raised = False
        if self.mailbox.stop or (self.mailbox.flush and row > 0):
            return acting, True
        # In lockstep a block belongs to one policy, whatever arrives meanwhile.
        if self.config.lockstep:
            return acting, False
        newest = self._swap(self.mailbox.policy) or acting
        if newest is not acting:
            self.recorder.acted_by(row, newest.epoch, newest.version)
            self._noise.set_epsilon(row, newest.epsilon)
        return newest, False

    def _end_block(self, rows: int) -> int:
        recorder = self.recorder
        recorder.end(rows)
        self._noise.end_block(rows)
        self.block_began_s = 0.0
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
        self._check_shape("reset", observation)
        self.recorder.restart(observation)
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
        """Name the first step whose reward or observation is NaN or Inf; once per block, not per step."""
        recorder = self.recorder
        for what, array in (("reward", recorder.reward[:rows]), ("observation", recorder.observation[1 : rows + 1])):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                bad = ~np.isfinite(array).reshape(rows, self.config.num_envs, -1).all(axis=2)
                row, env = np.argwhere(bad)[0].tolist()
                self._not_finite(what, array[row, env], row, env)
        if recorder.final_index and recorder.observation.dtype.kind == "f":
            last = recorder.finals()
            for (row, env), observation in zip(recorder.final_index, last, strict=True):
                if not np.isfinite(observation).all():
                    self._not_finite("observation", observation, row, env)

    def _not_finite(self, what: str, value: NDArray[Any], row: int, env: int) -> NoReturn:
        shown = np.array2string(value, threshold=8, edgeitems=4).replace("\n", "")
        raise EnvironmentMisbehaved(
            f"environment {self.config.env_id!r}: {what} {shown} {self._where(row, env)} is not finite"
        )

    def _raised(self, row: int, error: BaseException) -> NoReturn:
        raise EnvironmentMisbehaved(
            f"environment {self.config.env_id!r} failed {self._where(row)}: {type(error).__name__}: {first_line(error)}"
        ) from error

    def _where(self, row: int, env: int | None = None) -> str:
        step = self.episodes.steps + int(self.recorder.valid[: row + 1].sum())
        which = f" of environment {env}" if env is not None and self.config.num_envs > 1 else ""
        return f"at step {step:,}{which}"


def _noise(config: LoopConfig) -> Noise:
    size = {"num_actions": config.spec.action.n, "num_envs": config.num_envs, "max_rows": config.max_rows}
    if config.lockstep:
        return LockstepNoise(seed=config.seed, **size)
    return StreamNoise(seed=config.seed, actor_index=config.actor_index, **size)
