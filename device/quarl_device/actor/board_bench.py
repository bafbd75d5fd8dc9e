"""What a controller on this board can count on: how long an action takes, how late it comes, and at what cost."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

from quarl_device.actor.bench import BUILT_IN_POLICY
from quarl_device.actor.control_rate import Clock, ControlRate, hold_rate
from quarl_device.board.energy import EnergyReading, Method, energy_between, read_energy
from quarl_device.board.memory import read_memory
from quarl_device.board.thermal import read_temperature_c, read_throttling
from quarl_device.policy import Policy
from quarl_device.policy_file import PolicyFile, read_policy_path
from quarl_device.runtime import PolicyRuntime
from quarl_device.runtime.bench import act_latency, calls_within, zero_observation

_LATENCY_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Times of single actions, in microseconds, back to back.

    Attributes:
        act_us_p50: observation in, action out: the median.
        act_us_p99: its 99th percentile.
        act_us_p999: its 99.9th percentile.
        calls: how many were timed.
    """

    act_us_p50: float
    act_us_p99: float
    act_us_p999: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class BoardState:
    """What the board said at the end of the time at a fixed rate; `None` is unknown.

    Attributes:
        rss_bytes: resident memory of this process.
        peak_rss_bytes: at most so far.
        temperature_c: of the hottest thermal zone.
        throttled: what slows the board now, see `Throttling`; empty for nothing.
        throttled_since_boot: what has at some time.
        energy_j: what was measured over the time at a fixed rate, of all that the meter sees, not this process alone.
        power_w: the same per second.
        energy_method: "rapl", "hwmon", or "none" where nothing measures it.
    """

    rss_bytes: int | None
    peak_rss_bytes: int | None
    temperature_c: float | None
    throttled: tuple[str, ...] | None
    throttled_since_boot: tuple[str, ...] | None
    energy_j: float | None
    power_w: float | None
    energy_method: Method


@dataclass(frozen=True, kw_only=True)
class BoardBench:
    """All of it.

    Attributes:
        latency: of single actions.
        rate: how a fixed rate was held.
        board: what the board said.
    """

    latency: Latency
    rate: ControlRate
    board: BoardState


def bench_board(
    file: PolicyFile | None = None,
    *,
    hz: float,
    duration_s: float,
    runtime: PolicyRuntime | None = None,
    clock: Clock | None = None,
) -> BoardBench:
    """Time single actions, then act at a fixed rate while the board's meters are read about once a second.

    Args:
        file: the policy; by default the small one for CartPole-v1.
        hz: actions per second.
        duration_s: of the time at that rate; single actions take up to 2 s more.
        runtime: see `Policy.load`.
        clock: by default the system's.

    Raises:
        UsageError: `hz` or `duration_s` out of range.
        ModelError: the policy does not work here.
    """
    policy = Policy.load(file or read_policy_path(BUILT_IN_POLICY), runtime=runtime)
    timed = act_latency(policy, calls_within(policy, min(_LATENCY_S, duration_s)))
    act: Any = functools.partial(policy.act, zero_observation(policy))
    meters: list[EnergyReading] = []

    def read() -> None:
        meters.append(read_energy(time.monotonic()))

    read()
    rate = hold_rate(act, hz=hz, duration_s=duration_s, clock=clock, between=read)
    read()
    return BoardBench(
        latency=Latency(
            act_us_p50=timed.act_us_p50,
            act_us_p99=timed.act_us_p99,
            act_us_p999=timed.act_us_p999,
            calls=timed.calls,
        ),
        rate=rate,
        board=board_state(meters),
    )


def board_state(meters: list[EnergyReading]) -> BoardState:
    """Read what the board says now, and what it took over `meters`."""
    memory, throttling, energy = read_memory(), read_throttling(), energy_between(meters)
    return BoardState(
        rss_bytes=memory.rss_bytes,
        peak_rss_bytes=memory.peak_rss_bytes,
        temperature_c=read_temperature_c(),
        throttled=None if throttling is None else throttling.now,
        throttled_since_boot=None if throttling is None else throttling.since_boot,
        energy_j=energy.energy_j,
        power_w=energy.power_w,
        energy_method=energy.energy_method,
    )
