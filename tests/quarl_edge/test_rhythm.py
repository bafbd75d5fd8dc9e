"""Checkpoints: with the first push of something learned, then by steps and by time, and not too often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_edge.learner.rhythm import CheckpointRhythm


def rhythm(**changes):
    fields = {"period_steps": 1_000, "period_s": 30.0, "updates": 0, "env_steps": 0, "now_s": 0.0}
    return CheckpointRhythm(**{**fields, **changes})


def write(one, *, updates, env_steps, now_s, took_s=0.0):
    one.begin(updates=updates, env_steps=env_steps, now_s=now_s)
    one.end(updates=updates, now_s=now_s + took_s)


def test_the_first_is_due_with_the_first_push_of_something_learned():
    one = rhythm()
    assert not one.due(updates=0, pushed_updates=0, env_steps=5_000, now_s=99.0), "nothing was learned"
    assert not one.due(updates=4, pushed_updates=0, env_steps=10, now_s=1.0), "nobody acts with it yet"
    assert one.due(updates=8, pushed_updates=8, env_steps=10, now_s=1.0)
    write(one, updates=8, env_steps=10, now_s=1.0)
    assert not one.due(updates=12, pushed_updates=8, env_steps=11, now_s=2.0)


@pytest.mark.parametrize(("env_steps", "now_s", "due"), [(999, 29.0, False), (1_000, 1.0, True), (1, 31.5, True)])
def test_then_by_steps_and_by_time(env_steps, now_s, due):
    one = rhythm()
    write(one, updates=8, env_steps=0, now_s=1.0)
    assert one.due(updates=12, pushed_updates=8, env_steps=env_steps, now_s=now_s) == due
    assert not one.due(updates=8, pushed_updates=8, env_steps=env_steps, now_s=now_s), "nothing new was learned"


def test_a_run_that_is_resumed_counts_from_what_is_kept_and_at_the_same_steps():
    one = rhythm(updates=500, env_steps=2_700, now_s=100.0)
    assert not one.due(updates=504, pushed_updates=504, env_steps=2_999, now_s=129.0)
    assert one.due(updates=504, pushed_updates=500, env_steps=3_000, now_s=101.0)
    assert one.due(updates=504, pushed_updates=500, env_steps=2_701, now_s=130.0)


def test_neither_period_is_none():
    one = rhythm(period_steps=0, period_s=0.0)
    write(one, updates=8, env_steps=0, now_s=0.0)
    assert not one.due(updates=10**6, pushed_updates=10**6, env_steps=10**9, now_s=1e9)
    assert not one.passed(10**9)


def test_slow_checkpoints_come_seldom_and_one_that_failed_is_not_tried_at_once():
    one = rhythm()
    write(one, updates=8, env_steps=0, now_s=0.0, took_s=2.0)
    assert not one.due(updates=12, pushed_updates=8, env_steps=1, now_s=101.0)
    assert one.due(updates=12, pushed_updates=8, env_steps=1, now_s=102.0)
    one.begin(updates=12, env_steps=1, now_s=102.0)
    assert not one.due(updates=16, pushed_updates=8, env_steps=1, now_s=131.0)
    assert one.due(updates=16, pushed_updates=8, env_steps=1, now_s=132.0)


@given(
    took_s=st.floats(0.0, 5.0), period_s=st.floats(0.1, 60.0), step_s=st.floats(0.05, 5.0), count=st.integers(50, 300)
)
def test_no_more_than_two_percent_of_the_time_goes_into_checkpoints_by_time(took_s, period_s, step_s, count):
    one, now_s, spent_s = rhythm(period_steps=0, period_s=period_s), 0.0, 0.0
    write(one, updates=1, env_steps=0, now_s=0.0, took_s=took_s)
    for updates in range(2, count):
        now_s += step_s
        if one.due(updates=updates, pushed_updates=updates, env_steps=updates, now_s=now_s):
            write(one, updates=updates, env_steps=updates, now_s=now_s, took_s=took_s)
            now_s += took_s
            spent_s += took_s
    assert spent_s <= 0.02 * now_s + took_s
