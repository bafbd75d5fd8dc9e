"""Plays pushed int8 files in a process of its own, so that the learner never waits for an evaluation."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

from quarl_device.environments import EnvSpec
from quarl_device.errors import ModelError, QuarlError
from quarl_device.evaluate import Evaluation, evaluate
from quarl_device.parent import end_with_parent
from quarl_device.policy_file import GoldenVectors, read_policy

_LOG = logging.getLogger(__name__)
_Played = tuple[Evaluation, Evaluation | None]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One finished evaluation.

    Attributes:
        version: policy version that was judged.
        env_steps: environment steps behind that version.
        result: returns of the int8 file in the TFLite runtime, on the start seeds that every judgement has.
        confirmation: the same on other starts, of a file whose `result` reaches the goal; `None` for any other.
    """

    version: int
    env_steps: int
    result: Evaluation
    confirmation: Evaluation | None = None

    @property
    def return_mean(self) -> float:
        """The mean return that the file counts for: the lower one of both, for many are judged and lucky ones kept."""
        means = [each.return_mean for each in (self.result, self.confirmation) if each is not None]
        return min(means)


class Evaluator:
    """One evaluation at a time; what arrives meanwhile is skipped, never queued (latest wins).

    Args:
        env_id: what this machine's user trains in, with the module that registers it where it needs one.
        episodes: greedy episodes per evaluation.
        seed: start seeds are seed, seed + 1, ...
        goal_return: a file that reaches it plays as many episodes again, to confirm it; `None`: none does.
        confirm_seed: start seeds of those, likewise.
    """

    def __init__(
        self, *, env_id: str, episodes: int, seed: int, goal_return: float | None = None, confirm_seed: int = 0
    ) -> None:
        self._playing = functools.partial(
            _judge,
            env=EnvSpec(env_id=env_id),
            episodes=episodes,
            seed=seed,
            goal_return=goal_return,
            confirm_seed=confirm_seed,
        )
        self._pool = _new_pool()
        self._running: tuple[int, int, Future[_Played]] | None = None

    def submit(self, policy: bytes, golden: GoldenVectors, *, version: int, env_steps: int) -> bool:
        """Start judging `policy` unless one is being judged.

        Args:
            policy: the int8 file.
            golden: its answers, as the push header carries them: those in the file are the template's.
            version: its policy version.
            env_steps: environment steps behind it.

        Returns:
            Whether it was taken.
        """
        if self._running is not None:
            return False
        work = functools.partial(self._playing, policy, golden)
        try:
            future = self._pool.submit(work)
        except BrokenProcessPool:
            self._replace_pool()
            future = self._pool.submit(work)
        self._running = (version, env_steps, future)
        return True

    def poll(self, *, timeout_s: float = 0.0) -> Judged | None:
        """Return the finished evaluation, if any, waiting at most `timeout_s`.

        Raises:
            QuarlError: the file could not be played; a ModelError for whatever the runtime or environment threw.
        """
        if self._running is None:
            return None
        version, env_steps, future = self._running
        wait([future], timeout_s)
        if not future.done():
            return None
        self._running = None
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            _LOG.warning("policy version %d was not judged", version)
            self._replace_pool()
            return None
        if error is not None:
            raise error if isinstance(error, QuarlError) else ModelError(f"judging failed: {error!r}") from error
        result, confirmation = future.result()
        return Judged(version=version, env_steps=env_steps, result=result, confirmation=confirmation)

    def cancel(self) -> None:
        """Give up what is being judged."""
        if self._running is not None:
            self._running = None
            self._kill()
            self._replace_pool()

    @property
    def busy(self) -> bool:
        """Whether a policy is being judged."""
        return self._running is not None

    def _replace_pool(self) -> None:
        _LOG.warning("the evaluator process has ended; starting another")
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = _new_pool()

    def close(self) -> None:
        """End the evaluator process; an unfinished evaluation is dropped."""
        self._kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _kill(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            process.kill()


def _new_pool() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_quiet)
    pool.submit(_warm)
    return pool


def _quiet() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The pool's pipes do not tell a worker that its parent was killed; Linux does.
    end_with_parent(os.getppid())


def _warm() -> None:
    """Import the runtime before the first policy comes."""
    from quarl_device.runtime import find_runtime

    find_runtime()


def _judge(
    policy: bytes,
    golden: GoldenVectors,
    *,
    env: EnvSpec,
    episodes: int,
    seed: int,
    goal_return: float | None,
    confirm_seed: int,
) -> _Played:
    """Play a file, and on other starts too where it reaches the goal: of many files judged, some are lucky."""
    file = replace(read_policy(policy), golden=golden)
    play = functools.partial(evaluate, file, env=env, episodes=episodes, allow_module=True)
    result = play(seed=seed)
    reaches = goal_return is not None and result.return_mean >= goal_return
    return result, play(seed=confirm_seed) if reaches else None
