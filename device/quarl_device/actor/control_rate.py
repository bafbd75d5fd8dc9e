"""Work at a fixed rate: an absolute clock, and how late each period began.

A loop that sleeps a period after its work drifts by the work's time and by every late wake-up. Here period k is due at
``start + k / hz`` whatever happened before, so lateness never adds up. A period that is not over when the next one is
due has overrun; periods that are past by then are left out, as a controller must, since commands that are late come
too late in a row otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UsageError

MAX_HZ = 10_000
_NS = 1_000_000_000


class Clock(Protocol):
    """Time that goes evenly, and a way to wait for a moment of it."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        ...

    def sleep_until(self, when_ns: int) -> None:
        """Return at `when_ns` or later; at once if that is past."""
        ...


class MonotonicClock:
    """The system's."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, when_ns: int) -> None:
        """Return at `when_ns` or later; at once if that is past."""
        while (left_ns := when_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / _NS)


@dataclass(frozen=True, kw_only=True)
class ControlRate:
    """How a fixed rate was held.

    Attributes:
        hz: periods per second that were asked for.
        periods: that began.
        overruns: periods that were not over when the next one was due.
        skipped: periods that never began, since they were past already.
        late_us_p50: how long after it was due a period began: the median, in microseconds.
        late_us_p99: 99th percentile.
        late_us_max: the latest.
    """

    hz: float
    periods: int
    overruns: int
    skipped: int
    late_us_p50: float
    late_us_p99: float
    late_us_max: float


def hold_rate(
    work: Callable[[], object],
    *,
    hz: float,
    duration_s: float,
    clock: Clock | None = None,
    between: Callable[[], object] = lambda: None,
) -> ControlRate:
    """Call `work` at `hz` for so long, at least once.

    Args:
        work: what a period does.
        hz: periods per second.
        duration_s: of the whole.
        clock: by default the system's.
        between: called about once a second, outside of what is measured: periods that are due meanwhile count nowhere.

    Raises:
        UsageError: `hz` or `duration_s` out of range.
    """
    if not 0 < hz <= MAX_HZ or not 0 < duration_s <= 3600:
        raise UsageError(f"cannot hold {hz:g} Hz for {duration_s:g} s: expected over 0 to {MAX_HZ:,} Hz, up to 3600 s")
    clock = clock or MonotonicClock()
    wanted = max(1, round(hz * duration_s))
    # A period of grace, so that the first one is not late by what it takes to come here.
    start_ns = clock.now_ns() + round(_NS / hz)
    # Made and touched before the first period: a list would grow in the midst of what it measures.
    late_ns = np.full(wanted, 0, np.int64)
    number = periods = overruns = skipped = spoken = 0
    while number < wanted:
        due_ns = start_ns + round(number * _NS / hz)
        clock.sleep_until(due_ns)
        late_ns[periods] = clock.now_ns() - due_ns
        periods += 1
        work()
        ended_ns = clock.now_ns()
        following = number + 1
        if ended_ns > start_ns + round(following * _NS / hz):
            overruns += 1
            following = max(following, _first_due(ended_ns - start_ns, hz))
        skipped += min(following, wanted) - number - 1
        number = following
        if int(number / hz) > spoken:
            spoken = int(number / hz)
            between()
            # What this took is not the board's doing: the next period is one that is still to come.
            number = max(number, _first_due(clock.now_ns() - start_ns, hz))
    return rate_of(late_ns[:periods], hz=hz, overruns=overruns, skipped=skipped)


def _first_due(since_ns: int, hz: float) -> int:
    """Return the first period that is due so long after the start, or later."""
    return -int(-since_ns * hz // _NS)


def rate_of(late_ns: Sequence[int] | NDArray[np.int64], *, hz: float, overruns: int, skipped: int) -> ControlRate:
    """Return the statistics of periods that began so many nanoseconds after they were due; at least one."""
    late_us = np.asarray(late_ns, np.float64) / 1e3
    p50, p99 = np.percentile(late_us, (50, 99)).tolist()
    return ControlRate(
        hz=hz,
        periods=len(late_us),
        overruns=overruns,
        skipped=skipped,
        late_us_p50=round(p50, 1),
        late_us_p99=round(p99, 1),
        late_us_max=round(float(late_us.max()), 1),
    )
