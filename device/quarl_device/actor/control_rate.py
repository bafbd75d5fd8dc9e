"""Work at a fixed rate, and how late each period of it began."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UsageError
from quarl_device.grid import MAX_HZ, NS, Grid


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
            time.sleep(left_ns / NS)


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
    grid = Grid(hz, clock.now_ns() + round(NS / hz))
    # Made and touched before the first period: a list would grow in the midst of what it measures.
    late_ns = np.full(wanted, 0, np.int64)
    periods = beyond = spoken = 0
    while grid.number < wanted:
        clock.sleep_until(grid.due_ns)
        late_ns[periods] = clock.now_ns() - grid.due_ns
        periods += 1
        work()
        grid.deliver(clock.now_ns())
        beyond = max(0, grid.number - wanted)
        if int(grid.number / hz) > spoken:
            spoken = int(grid.number / hz)
            between()
            grid.leave_out(clock.now_ns())
    return rate_of(late_ns[:periods], hz=hz, overruns=grid.overruns, skipped=grid.skipped - beyond)


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
