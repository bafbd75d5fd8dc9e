"""How long one action takes, beside the runtime's bare call, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UsageError
from quarl_device.policy import Policy


@dataclass(frozen=True, kw_only=True)
class ActLatency:
    """Times of single calls, in microseconds.

    Attributes:
        act_us_p50: observation in, action out: the median.
        act_us_p99: its 99th percentile.
        act_us_p999: its 99.9th percentile; of fewer than 1,000 calls no more than the slowest.
        raw_us_p50: median of the runtime alone (set tensor, invoke, get tensor).
        ratio: `act_us_p50 / raw_us_p50`.
        runtime: name and version of the runtime.
        calls: how many calls of each kind were timed.
    """

    act_us_p50: float
    act_us_p99: float
    act_us_p999: float
    raw_us_p50: float
    ratio: float
    runtime: str
    calls: int


def act_latency(policy: Policy, n: int = 20_000) -> ActLatency:
    """Time `policy.act` and the runtime's bare call alternately, `n` times each, after a warm-up.

    Both kinds alternate in rounds, so that a change of the clock or a busy neighbour meets both. The timer's own cost
    is taken off.

    Raises:
        UsageError: `n` is not in 100..10,000,000.
    """
    if not 100 <= n <= 10_000_000:
        raise UsageError(f"cannot time {n} calls: expected 100 to 10,000,000")
    observation = zero_observation(policy)
    buffers = [np.zeros((1, *binding.shape), binding.dtype) for binding in policy.inputs]
    for _ in range(200):
        policy.act(observation)
        policy.model.infer(*buffers)
    rounds = max(1, min(20, n // 100))
    act = np.empty((rounds, n // rounds), np.int64)
    raw, empty = np.empty_like(act), np.empty_like(act)
    for number in range(rounds):
        _time(act[number], policy.act, observation)
        _time(raw[number], policy.model.infer, *buffers)
        _time(empty[number], _nothing, *buffers)
    # Calling a Python function costs as much here as within both measurements, so it is taken off with the timer.
    timer_ns = float(np.median(empty))
    act_us = np.maximum(act.ravel() - timer_ns, 1.0) / 1e3
    act_p50, act_p99, act_p999 = np.percentile(act_us, (50, 99, 99.9)).tolist()
    raw_p50 = max(float(np.median(raw)) - timer_ns, 1.0) / 1e3
    return ActLatency(
        act_us_p50=round(act_p50, 3),
        act_us_p99=round(act_p99, 3),
        act_us_p999=round(act_p999, 3),
        raw_us_p50=round(raw_p50, 3),
        ratio=round(act_p50 / raw_p50, 3),
        runtime=policy.runtime_name,
        calls=int(act.size),
    )


def zero_observation(policy: Policy) -> Any:
    """Return an observation of zeros, as `policy.act` takes it."""
    parts = {binding.spec.key: np.zeros(binding.spec.shape, binding.spec.dtype) for binding in policy.inputs}
    return parts if len(parts) > 1 else next(iter(parts.values()))


def calls_within(policy: Policy, duration_s: float) -> int:
    """Return how many calls `act_latency` may time to be done in about so long; in 100..20,000."""
    observation, count = zero_observation(policy), 20
    policy.act(observation)
    began = time.perf_counter()
    for _ in range(count):
        policy.act(observation)
    one_s = max((time.perf_counter() - began) / count, 1e-7)
    # Of each kind, the runtime's bare call takes no longer.
    return min(20_000, max(100, int(duration_s / (2 * one_s))))


def _time(into: NDArray[np.int64], call: Callable[..., Any], *arguments: Any) -> None:
    clock = time.perf_counter_ns
    times = []
    if len(arguments) == 1:
        # Without the tuple's unpacking, which a call of an observation has not either.
        [argument] = arguments
        for _ in range(len(into)):
            start = clock()
            call(argument)
            times.append(clock() - start)
    else:
        for _ in range(len(into)):
            start = clock()
            call(*arguments)
            times.append(clock() - start)
    into[:] = times


def _nothing(*_: Any) -> None:
    return None
