"""Where a step's time goes: clocks around the calls that the actor's loop makes, less what the clocks cost."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quarl_device.policy import Policy

_CALIBRATIONS, _CALIBRATION_CALLS = 9, 500


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """What one environment step costs, by part, in µs of the thread's CPU time; together they are the whole loop.

    CPU time, since a busy machine takes the processor away in the middle of a step, for longer than thousands of them.

    Attributes:
        env_us: in the environment's `step` and `reset`.
        inference_us: in the policy: observation in, greedy action out.
        record_us: all the rest of the loop: exploration, rows written, checks, statistics.
        encode_us: in encoding blocks.
    """

    env_us: float
    inference_us: float
    record_us: float
    encode_us: float


@dataclass(frozen=True, kw_only=True)
class ClockCost:
    """What timing one call adds.

    Attributes:
        inside_s: to the time that the clock shows.
        outside_s: to the loop around, beyond that.
    """

    inside_s: float
    outside_s: float


class CallClock:
    """Adds up how long the calls of some functions take.

    Attributes:
        spent_s: in these calls, the clock's own part included.
        calls: how many.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.calls = 0

    def clear(self) -> None:
        """Begin anew."""
        self.spent_s, self.calls = 0.0, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, timed."""
        clock = time.thread_time

        def timed(*arguments: Any, **named: Any) -> Any:
            began = clock()
            result = function(*arguments, **named)
            self.spent_s += clock() - began
            self.calls += 1
            return result

        return timed


class TimedEnv:
    """An environment, single or vector, whose `step` and `reset` are timed; everything else is its own."""

    def __init__(self, env: Any, clock: CallClock) -> None:
        self._env = env
        self.step = clock.around(env.step)
        self.reset = clock.around(env.reset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def time_policy(policy: Policy, clock: CallClock) -> Policy:
    """Have `policy` act as it does, timed; returns it."""
    policy.act_index = clock.around(policy.act_index)
    policy.act_batch = clock.around(policy.act_batch)
    return policy


def clock_cost() -> ClockCost:
    """Measure what a clock costs on this machine, beside bare calls of nothing; the median of several rounds."""
    costs = [_clock_cost() for _ in range(_CALIBRATIONS)]
    return ClockCost(
        inside_s=statistics.median(cost.inside_s for cost in costs),
        outside_s=statistics.median(cost.outside_s for cost in costs),
    )


def _clock_cost() -> ClockCost:
    clock, now = CallClock(), time.thread_time
    timed, calls = clock.around(_nothing), range(_CALIBRATION_CALLS)
    began = now()
    for _ in calls:
        _nothing(None)
    bare_s = now() - began
    began = now()
    for _ in calls:
        timed(None)
    added_s = (now() - began - bare_s) / _CALIBRATION_CALLS
    inside_s = max(0.0, clock.spent_s - bare_s) / _CALIBRATION_CALLS
    return ClockCost(inside_s=inside_s, outside_s=max(0.0, added_s - inside_s))


def _nothing(_: Any) -> None:
    pass


def split_of(
    *, steps: int, looping_s: float, encoding_s: float, env: CallClock, inference: CallClock, cost: ClockCost
) -> StepSplit:
    """Return the parts of `looping_s`.

    Args:
        steps: environment steps made.
        looping_s: the whole loop's time, clocks included.
        encoding_s: of it, in encoding.
        env: what the environment's clock shows.
        inference: what the policy's clock shows.
        cost: of each timed call.
    """
    env_s = env.spent_s - env.calls * cost.inside_s
    inference_s = inference.spent_s - inference.calls * cost.inside_s
    clocks_s = (env.calls + inference.calls) * (cost.inside_s + cost.outside_s)
    record_s = looping_s - clocks_s - env_s - inference_s - encoding_s
    step_us = 1e6 / max(1, steps)
    return StepSplit(
        env_us=env_s * step_us,
        inference_us=inference_s * step_us,
        record_us=record_s * step_us,
        encode_us=encoding_s * step_us,
    )


def median_split(blocks: Sequence[StepSplit]) -> StepSplit:
    """Return the median of each part over `blocks`, of which there is one at least."""
    return StepSplit(
        **{
            part.name: round(statistics.median(getattr(block, part.name) for block in blocks), 3)
            for part in dataclasses.fields(StepSplit)
        }
    )
