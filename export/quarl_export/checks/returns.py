"""Q13: what the file returns in its environment, beside the float policy on the same start seeds.

Single actions say little of what a file is worth: where two of them are nearly as good, quantization picks the other
one and loses nothing, and where one episode hangs on a few states, the best agreement may lose all of it. So where the
environment can be played, playing decides. Both policies are files in the TFLite runtime, played greedily in whole
episodes; episode i of both starts from the same seed, so that luck of the start is in neither's favour. Random actions
on the same seeds say what a return of nothing learned is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quarl_device.contract import PolicyContract
from quarl_device.environments import EnvSpec, check_matches, make_single
from quarl_device.errors import EnvironmentMisbehaved, QuarlError, UsageError
from quarl_device.evaluate import MAX_EPISODE_STEPS, evaluate
from quarl_device.policy_file import PolicyFile
from quarl_export.checks.chance import random_returns
from quarl_export.checks.paired import MAX_LOSS, Comparison, Verdict
from quarl_export.checks.report import CheckResult, finer

MIN_EPISODES = 10
MAX_EPISODES = 10_000
# What one policy may take on average: a step without limit would be a wait without deadline.
MAX_STEPS_PER_EPISODE = 4_000
# How many times as many steps the file may take: episodes a little longer than the float policy's are no endless ones.
_PATIENCE = 2
# An end for an environment that takes its time. It fails and is not undecided: a verdict would follow the machine.
MAX_S = 900.0
_LOOK_AT_CLOCK_EVERY = 256
_TELL_EVERY_S = 2.0


def _tell_nobody(_: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Play:
    """Where a file is to be played.

    Attributes:
        env: the environment.
        episodes: that each policy plays, and random actions; more of them tell smaller differences apart.
        seed: episode i starts from `seed + i`; none that calibration has played.
        allow_module: see `environments.check_registered`.
        tell: called with a line about how far it is, at the start and every two seconds.
    """

    env: EnvSpec
    episodes: int = 50
    seed: int = 100_000
    allow_module: bool = False
    tell: Callable[[str], None] = _tell_nobody

    def __post_init__(self) -> None:
        if not MIN_EPISODES <= self.episodes <= MAX_EPISODES:
            raise UsageError(
                f"{self.episodes} episodes to compare returns on: expected {MIN_EPISODES} to {MAX_EPISODES:,}",
                hint="--episodes 0 leaves the comparison out",
            )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What playing said.

    Attributes:
        result: Q13.
        decided: whether it answers what observations can only hint at.
    """

    result: CheckResult
    decided: bool = False


def not_judged(why: str) -> Judged:
    """Return that nothing was played, and why."""
    return Judged(result=CheckResult(code="Q13", passed=True, message=f"not judged: {why}", detail=_said("not judged")))


def judge_returns(file: PolicyFile, reference: Callable[[], PolicyFile], play: Play) -> Judged:
    """Play `file`, the float policy and random actions.

    Args:
        file: complete, as a device loads it.
        reference: makes a float32 file of the same policy; only called where the environment can be played.
        play: where and how long.

    Raises:
        UsageError: one policy plays for more than `MAX_S`.
    """
    try:
        world = make_single(play.env, allow_module=play.allow_module)
        try:
            check_matches(world, file.contract.observations, file.contract.action)
        finally:
            world.close()
    except QuarlError as error:
        return not_judged(error.message)
    try:
        theirs = reference()
    except QuarlError as error:
        # A float policy that is no file says something of the policy, and nothing in favour of the file made of it.
        return _lost(f"there is no float32 file to play against: {error.message}")
    try:
        found = _compared(file, theirs, play)
    except EnvironmentMisbehaved as error:
        # A file whose returns cannot be told is not one that keeps them.
        return _lost(error.message)
    except _NeverEnds as why:
        return _lost(str(why))
    except _CannotTell as why:
        result = CheckResult(
            code="Q13", passed=True, limit=MAX_LOSS, message=f"undecided: {why}", detail=_said("undecided")
        )
        return Judged(result=result)
    return _judged(found, play, file.contract)


def _compared(file: PolicyFile, theirs: PolicyFile, play: Play) -> Comparison:
    """Play the float policy `theirs`, the file and random actions.

    Raises:
        _CannotTell: too few episodes of the float policy or of random actions ended, or the environment misbehaves with
            random actions.
        _NeverEnds: an episode of the file did not end that ended with the float policy.
        EnvironmentMisbehaved: the environment does so with one of the files.
    """
    floats = _enough(_returns(theirs, play, play.episodes, "the float policy"), play, of="the float policy")
    ours = _returns(file, play, len(floats), "the file")
    if len(ours) < len(floats):
        # To compare those alone that ended would judge a file by the starts in which it does well.
        raise _NeverEnds(
            f"the file ended {len(ours)} of {len(floats)} episodes of {play.env.env_id} within "
            f"{_limit(play, 'the file')}: episode {len(ours)} (seed {play.seed + len(ours)}) did not end, "
            "which ends with the float policy. If to go on is worth more there, give the environment a time limit "
            "(max_episode_steps)"
        )
    try:
        chance = _enough(_chance(play, len(ours)), play, of="random actions")
    except EnvironmentMisbehaved as error:
        # What random actions meet is no fault of the file.
        raise _CannotTell(f"what random actions return is not known: {error.message}") from error
    return Comparison.of(floats, ours, chance)


def _enough(returns: tuple[float, ...], play: Play, *, of: str) -> tuple[float, ...]:
    if len(returns) >= MIN_EPISODES:
        return returns
    raise _CannotTell(f"fewer than {MIN_EPISODES} episodes of {of} ended within {_limit(play, of)}")


def _steps(play: Play, who: str) -> int:
    """Return what `who` may take in all; the file more than the float policy, which may have just not run out."""
    return play.episodes * MAX_STEPS_PER_EPISODE * (_PATIENCE if who == "the file" else 1)


def _limit(play: Play, who: str) -> str:
    steps = _steps(play, who)
    return f"{steps:,} steps" + (f", {MAX_EPISODE_STEPS:,} an episode" if steps > MAX_EPISODE_STEPS else "")


def _lost(why: str) -> Judged:
    message = f"{why}; --episodes 0 leaves this check out"
    return Judged(result=CheckResult(code="Q13", passed=False, message=message, detail=_said("lost")))


def _judged(found: Comparison, play: Play, contract: PolicyContract) -> Judged:
    verdict = found.verdict
    told = (
        f"{found.file_mean:.4g} against {found.float_mean:.4g} of the float policy and {found.random_mean:.4g} of "
        f"random actions over {_counted(found)} episodes of {play.env.env_id}: {_more_or_less(found.loss)} on average, "
        f"standard error {found.loss_error:.3g}, allowed {found.limit:.3g} less"
    )
    if verdict == "undecided":
        told = f"undecided: {told}{_what_would_tell(found)}"
    if verdict == "lost":
        told = f"{told}; {finer(contract.head.kind, contract.scheme)}"
    result = CheckResult(
        code="Q13",
        passed=verdict != "lost",
        value=round(found.loss / found.learned, 5) if found.has_learned and math.isfinite(found.loss) else None,
        limit=MAX_LOSS,
        message=told,
        detail={
            **_said(verdict),
            "env": play.env.env_id,
            "episodes": found.episodes,
            "random_episodes": found.random_episodes,
            "seed": play.seed,
            "float_return_mean": found.float_mean,
            "file_return_mean": found.file_mean,
            "random_return_mean": found.random_mean,
            "loss": found.loss,
            "standard_error": found.loss_error,
            "scale": found.learned,
            "excess": found.excess,
            "excess_standard_error": found.excess_error,
        },
    )
    return Judged(result=result, decided=verdict in ("held", "lost"))


def _counted(found: Comparison) -> str:
    fewer = found.random_episodes < found.episodes
    return f"{found.episodes} ({found.random_episodes} of random actions ended)" if fewer else f"{found.episodes}"


def _what_would_tell(found: Comparison) -> str:
    if not found.has_learned:
        return (
            f"; the float policy returns no more than random actions by two standard errors in {found.episodes} "
            "episodes, so what a file could keep is not known: more --episodes may tell"
        )
    many = found.episodes_needed
    if many <= MAX_EPISODES:
        return f"; --episodes {many:.0f} would tell"
    return f"; no --episodes up to {MAX_EPISODES:,} would tell"


def _said(verdict: Verdict) -> dict[str, Any]:
    return {"verdict": verdict}


def _more_or_less(loss: float) -> str:
    return f"{abs(loss):.3g} {'less' if loss > 0 else 'more'}" if loss else "the same"


class _CannotTell(Exception):
    """Why playing says nothing."""


class _NeverEnds(Exception):
    """Where the file goes on for ever."""


class _Budget:
    """Ends an evaluation that takes too many steps, in all or in one episode, and refuses one that takes too long.

    An episode is cut a step before `evaluate` would raise: what the float policy or random actions do not end says
    nothing of the file, however many steps were asked for.
    """

    def __init__(self, episodes: int, steps: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._episodes, self._steps_left = episodes, steps
        self._clock, self._deadline_s = clock, clock() + MAX_S
        self.begin_episode()

    def begin_episode(self) -> None:
        """Say that the next step is an episode's first."""
        self._episode_left = MAX_EPISODE_STEPS - 1

    def __call__(self) -> bool:
        self._steps_left -= 1
        self._episode_left -= 1
        if self._steps_left % _LOOK_AT_CLOCK_EVERY == 0 and self._clock() > self._deadline_s:
            raise UsageError(
                f"playing {self._episodes} episodes to compare returns took more than {MAX_S:g} s",
                hint="play fewer with --episodes; --episodes 0 leaves the comparison out",
            )
        return self._steps_left < 0 or self._episode_left < 0


def _returns(file: PolicyFile, play: Play, episodes: int, who: str) -> tuple[float, ...]:
    """Return the greedy returns of `file`, fewer than `episodes` where it ran out of steps."""
    budget = _Budget(play.episodes, _steps(play, who))
    found = evaluate(
        file,
        episodes=episodes,
        seed=play.seed,
        env=play.env,
        stop=budget,
        progress=_progress(play, episodes, who, budget),
        allow_module=play.allow_module,
    )
    return found.returns


def _chance(play: Play, episodes: int) -> tuple[float, ...]:
    """Return the same of random actions."""
    budget = _Budget(play.episodes, _steps(play, "random actions"))
    return random_returns(
        play.env,
        episodes=episodes,
        seed=play.seed,
        stop=budget,
        progress=_progress(play, episodes, "random actions", budget),
        allow_module=play.allow_module,
    )


def _progress(play: Play, episodes: int, who: str, budget: _Budget) -> Callable[[int], None]:
    heading = f"playing {episodes} episodes of {play.env.env_id} with {who}"
    play.tell(heading)
    next_s = time.monotonic() + _TELL_EVERY_S

    def progress(done: int) -> None:
        nonlocal next_s
        budget.begin_episode()
        if time.monotonic() >= next_s and done < episodes:
            next_s = time.monotonic() + _TELL_EVERY_S
            play.tell(f"{heading}: {done} done")

    return progress
