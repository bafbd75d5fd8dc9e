"""Where a step's time goes: the arithmetic by hand, and a loop in which one part is known to be slow."""

import time

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor import bench
from quarl_device.actor.split import CallClock, ClockCost, StepSplit, TimedEnv, clock_cost, median_split, split_of
from quarl_device.wire.block import BlockCodec

SLOW_S = 200e-6
PARTS = ("env_us", "inference_us", "record_us", "encode_us")


def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def slow(function, seconds=SLOW_S):
    def slowed(*arguments, **named):
        spin(seconds)
        return function(*arguments, **named)

    return slowed


def clock(spent_s, calls):
    made = CallClock()
    made.spent_s, made.calls = spent_s, calls
    return made


def test_the_parts_by_hand():
    cost = ClockCost(inside_s=0.001, outside_s=0.002)
    parts = split_of(steps=10, looping_s=1.0, encoding_s=0.1, env=clock(0.31, 10), inference=clock(0.12, 20), cost=cost)
    # Thirty clocks took 0.09 s: 0.03 s of them where they were read.
    assert vars(parts) == pytest.approx(
        {"env_us": 30_000, "inference_us": 10_000, "record_us": 41_000, "encode_us": 10_000}
    )


@given(
    steps=st.integers(1, 10**6),
    parts=st.tuples(*[st.floats(0, 10)] * 4),
    calls=st.tuples(*[st.integers(0, 10**5)] * 2),
    cost=st.tuples(*[st.floats(0, 1e-5)] * 2),
)
def test_what_went_in_comes_out_whatever_the_clocks_cost(steps, parts, calls, cost):
    env_s, inference_s, record_s, encode_s = parts
    inside, outside = cost
    found = split_of(
        steps=steps,
        looping_s=sum(parts) + sum(calls) * (inside + outside),
        encoding_s=encode_s,
        env=clock(env_s + calls[0] * inside, calls[0]),
        inference=clock(inference_s + calls[1] * inside, calls[1]),
        cost=ClockCost(inside_s=inside, outside_s=outside),
    )
    for name, part_s in zip(PARTS, (env_s, inference_s, record_s, encode_s), strict=True):
        assert getattr(found, name) * steps / 1e6 == pytest.approx(part_s, abs=1e-9)


def test_the_median_is_of_each_part_alone():
    blocks = [StepSplit(env_us=n, inference_us=-n, record_us=n * n, encode_us=0.0) for n in (1.0, 9.0, 2.0)]
    assert median_split(blocks) == StepSplit(env_us=2.0, inference_us=-2.0, record_us=4.0, encode_us=0.0)


def test_a_clock_counts_processor_time_and_hands_everything_through():
    watch = CallClock()

    def function(*arguments, **named):
        time.sleep(0.02)
        spin(0.001)
        return arguments, named

    timed = watch.around(function)
    assert timed(1, seed=2) == ((1,), {"seed": 2})
    timed()
    assert watch.calls == 2
    assert 0.002 <= watch.spent_s < 0.02
    watch.clear()
    assert (watch.calls, watch.spent_s) == (0, 0.0)


def test_a_timed_environment_is_its_environment():
    watch = CallClock()
    with gymnasium.make("CartPole-v1") as env:
        timed = TimedEnv(env, watch)
        timed.reset(seed=0)
        timed.step(0)
        assert watch.calls == 2
        assert timed.action_space is env.action_space


def test_clocks_cost_something_and_little():
    cost = clock_cost()
    assert 0 < cost.inside_s + cost.outside_s < 100e-6


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("part", PARTS)
def test_the_part_that_is_slow_shows_it(monkeypatch, part, envs):
    if part == "env_us":
        for name in ("make_single", "make_vector"):
            monkeypatch.setattr(bench, name, _with_slow_step(getattr(bench, name)))
    elif part == "inference_us":
        load = bench.Policy.load
        monkeypatch.setattr(bench.Policy, "load", lambda *a, **k: _with_slow_act(load(*a, **k)))
    elif part == "encode_us":
        # Once a block of 32 rows.
        monkeypatch.setattr(BlockCodec, "encode", slow(BlockCodec.encode, 32 * SLOW_S))
    else:
        for loop in (bench.SingleLoop, bench.VectorLoop):
            monkeypatch.setattr(loop, "_end_block", slow(loop._end_block, 32 * SLOW_S))
    monkeypatch.setattr(bench, "_BLOCK_ROWS", 32)
    found = vars(bench.actor_speed(num_envs=envs, duration_s=0.02).split)
    assert found.pop(part) >= 0.9 * SLOW_S / envs * 1e6
    assert all(0 <= other < 0.5 * SLOW_S * 1e6 for other in found.values()), found


def _with_slow_step(make):
    def made(*arguments, **named):
        env = make(*arguments, **named)
        env.step = slow(env.step)
        return env

    return made


def _with_slow_act(policy):
    policy.act_index, policy.act_batch = slow(policy.act_index), slow(policy.act_batch)
    return policy


@pytest.mark.parametrize("envs", [1, 3])
def test_every_environment_that_was_opened_is_closed(monkeypatch, envs):
    name = "make_single" if envs == 1 else "make_vector"
    make, open_envs = getattr(bench, name), []

    def made(*arguments, **named):
        env = make(*arguments, **named)
        open_envs.append(env)
        close = env.close
        env.close = lambda: (open_envs.remove(env), close())
        return env

    monkeypatch.setattr(bench, name, made)
    bench.actor_speed(num_envs=envs, duration_s=0.01)
    assert open_envs == []
