"""Plain and compiled pushes, together: never backwards, the TPU where it can, the CPU where that would be too old."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.two_streams import TwoStreams, Verdict
from quarl_device.errors import PayloadRefused
from quarl_device.wire.push import Exploration, PushHeader

LAG_S = 30.0


def push(version, *, epoch=1, compiled=False):
    exploration = Exploration(kind="none", values=())
    return PushHeader(
        epoch=epoch, version=version, env_steps=0, sha256="0" * 64, exploration=exploration, edge_tpu=compiled
    )


def judge(streams, version, now_s, *, take=True, **more):
    """Judge a push, and take it where it is to be taken, as the inbox does."""
    header = push(version, **more)
    verdict = streams.judge(header, now_s)
    if verdict is Verdict.TAKE and take:
        streams.taken(header)
    return verdict.name.lower()


@pytest.fixture
def streams():
    return TwoStreams(edge_tpu=True, max_lag_s=LAG_S)


def test_w3_without_a_tpu_every_newer_plain_push_acts_and_a_compiled_one_is_refused():
    streams = TwoStreams(edge_tpu=False)
    assert [judge(streams, version, 0.0) for version in (1, 2, 2, 1, 3)] == ["take", "take", "ignore", "ignore", "take"]
    with pytest.raises(PayloadRefused, match="compiled for the Edge TPU"):
        judge(streams, 4, 0.0, compiled=True)
    assert judge(streams, 4, 0.0) == "take"


def test_plain_pushes_act_until_a_compiled_one_was_heard_of(streams):
    assert [judge(streams, version, version) for version in (1, 2, 3)] == ["take"] * 3
    # It is older than what acts: no reason to go back, but one to wait for the next.
    assert judge(streams, 2, 4.0, compiled=True) == "ignore"
    assert judge(streams, 4, 5.0) == "wait"
    assert judge(streams, 4, 6.0, compiled=True) == "take"
    assert judge(streams, 5, 7.0) == "wait"
    assert judge(streams, 5, 8.0, compiled=True) == "take"
    assert streams.latest == (1, 5)


def test_a_version_that_was_replaced_for_too_long_makes_place_for_a_plain_one(streams):
    judge(streams, 1, 0.0, compiled=True)
    assert judge(streams, 2, 10.0) == "wait"
    assert judge(streams, 0, 39.0, compiled=True) == "ignore"  # heard of, but no news
    assert judge(streams, 3, 39.9) == "wait"
    assert streams.due_s == 10.0 + LAG_S
    assert judge(streams, 3, 40.0) == "take"
    # Its own lag begins anew.
    assert judge(streams, 4, 41.0) == "wait"
    assert streams.due_s == 69.0  # when nothing compiled was heard of for as long


def test_lag_counts_from_the_first_version_that_is_newer_than_what_acts(streams):
    judge(streams, 1, 0.0, compiled=True)
    for version, now_s in ((2, 1.0), (3, 5.0), (4, 9.0)):
        assert judge(streams, version, now_s) == "wait"
    assert judge(streams, 3, 10.0, compiled=True) == "take"
    assert judge(streams, 2, 30.0, compiled=True) == "ignore"
    assert streams.due_s == 9.0 + LAG_S


def test_where_no_compiled_one_comes_any_more_the_cpu_follows_every_push(streams):
    judge(streams, 1, 0.0, compiled=True)
    assert judge(streams, 2, 29.9) == "wait"
    assert [judge(streams, version, 30.0 + version) for version in (2, 3, 4)] == ["take"] * 3


def test_the_same_push_twice_does_not_put_off_anything(streams):
    judge(streams, 1, 0.0, compiled=True)
    for now_s in (1.0, 20.0):
        assert judge(streams, 2, now_s) == "wait"
    assert judge(streams, 1, 25.0, compiled=True) == "ignore"
    assert streams.due_s == 31.0


def learn(compile_s, *, seconds=900, period=20):
    """A push a second, every so manieth compiled in so many seconds, one at a time; returns how long the TPU acted."""
    streams, on_tpu, taken, busy_until, due = TwoStreams(edge_tpu=True, max_lag_s=LAG_S), 0, False, 0, []
    held = None
    for second in range(1, seconds):
        if second % period == 0 and second >= busy_until:
            busy_until = second + compile_s
            due.append((busy_until, second))
        events = [(version, True) for at, version in due if at == second] + [(second, False)]
        if held is not None and second >= streams.due_s:
            events.insert(0, (held, False))
        for version, compiled in events:
            verdict = judge(streams, version, float(second), compiled=compiled)
            taken = compiled if verdict == "take" else taken
            held = version if verdict == "wait" else held
        on_tpu += taken
    return on_tpu / seconds, seconds - streams.latest[1]


def test_compiled_pushes_that_come_in_time_act_and_those_that_never_do_hold_nobody_back():
    assert learn(5)[0] > 0.9
    share, behind = learn(45)
    assert share < 0.1
    assert behind <= LAG_S


def test_after_two_late_ones_the_cpu_follows_every_push_until_it_is_tried_again(streams):
    judge(streams, 100, 0.0)
    for version in (1, 2):
        assert judge(streams, version, 1.0, compiled=True) == "ignore"
        assert judge(streams, version, 1.0, compiled=True) == "ignore"  # the same again counts once
        assert judge(streams, 101, 1.5, take=False) == "wait"
    for version in range(3, 10):
        assert judge(streams, version, 2.0, compiled=True) == "ignore"
        assert judge(streams, 100 + version, 2.5) == "take"
    assert judge(streams, 10, 3.0, compiled=True) == "ignore"
    assert judge(streams, 120, 3.5) == "wait"


@pytest.mark.parametrize("compiled", [False, True])
def test_w3_a_later_epoch_acts_at_once_and_an_older_one_never(streams, compiled):
    judge(streams, 9, 0.0, compiled=True)
    assert judge(streams, 1, 1.0, epoch=2, compiled=compiled) == "take"
    assert judge(streams, 99, 2.0, epoch=1, compiled=not compiled) == "ignore"
    assert streams.latest == (2, 1)


def test_compiled_pushes_of_an_older_epoch_hold_nobody_up(streams):
    judge(streams, 1, 0.0, epoch=2)
    assert judge(streams, 50, 1.0, epoch=1, compiled=True) == "ignore"
    assert judge(streams, 2, 2.0, epoch=2) == "take"


def test_a_compiled_one_that_fails_rests_ever_longer_and_the_cpu_goes_on(streams):
    judge(streams, 1, 0.0)
    now_s = 1.0
    for rest_s in (30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
        assert judge(streams, 50, now_s, compiled=True, take=False) == "take"
        streams.failed(push(50, compiled=True), now_s)
        assert judge(streams, 50, now_s + rest_s - 0.1, compiled=True) == "ignore"
        assert judge(streams, streams.latest[1] + 1, now_s + rest_s - 0.1) == "take"
        now_s += rest_s
    assert judge(streams, 50, now_s, compiled=True) == "take"
    streams.failed(push(51, compiled=True), now_s)
    assert judge(streams, 52, now_s + 30.0, compiled=True) == "take", "one that works is the end of a row of failures"


def test_a_plain_one_that_fails_changes_nothing(streams):
    judge(streams, 1, 0.0, compiled=True)
    streams.failed(push(2), 1.0)
    assert judge(streams, 2, 1.0, compiled=True) == "take"


def test_without_any_lag_compiled_ones_act_where_they_are_the_newest():
    streams = TwoStreams(edge_tpu=True, max_lag_s=0.0)
    assert judge(streams, 1, 0.0, compiled=True) == "take"
    assert judge(streams, 2, 0.0) == "take"
    assert judge(streams, 1, 0.0, compiled=True) == "ignore"
    assert judge(streams, 3, 0.0, compiled=True) == "take"


events = st.lists(st.tuples(st.floats(0.0, 20.0), st.booleans(), st.integers(1, 3), st.integers(0, 40)), max_size=60)


@given(events)
def test_w3_never_backwards_and_never_older_than_the_bound_while_pushes_come(given_events):
    streams, now_s, before = TwoStreams(edge_tpu=True, max_lag_s=LAG_S), 0.0, (-1, -1)
    newer_since = {}
    for wait_s, compiled, epoch, version in given_events:
        now_s += wait_s
        verdict = judge(streams, version, now_s, epoch=epoch, compiled=compiled)
        assert streams.latest >= before
        if not compiled and (epoch, version) > streams.latest:
            newer_since.setdefault((epoch, version), now_s)
            assert verdict == "wait"
            assert now_s - newer_since[epoch, version] < LAG_S
        before = streams.latest


def test_what_came_is_forgotten_once_it_is_old(streams):
    judge(streams, 0, 0.0, compiled=True)
    judge(streams, 0, 1.0, compiled=True)
    for version in range(1, 10_000):
        assert judge(streams, version, 1.0 + version * 1e-3, take=False) == "wait"
    assert streams.due_s == 1.0 + LAG_S
    assert len(streams._arrivals) == 4_096
    streams.taken(dataclasses.replace(push(10_000), edge_tpu=True))
    assert not streams._arrivals
