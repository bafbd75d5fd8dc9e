"""Why an actor stands still: reasons, times, what is news, and no flood of lines."""

import logging

from quarl_device.actor.standstill import Standstill


def test_seconds_by_reason():
    still = Standstill(0.0)
    for now_s, reason in ((1, "no learner"), (3, "no policy"), (3.5, ""), (9, "no learner"), (10, "")):
        still.note(reason, now_s)
    assert still.by_reason() == {"no learner": 3.0, "no policy": 0.5}
    assert still.total_s == 3.5
    assert still.since_unix_s(10.0, 1000.0) == 0.0


def test_a_reason_is_news_when_it_lasts_and_was_not_announced():
    still = Standstill(0.0)
    still.note("no credit", 5.0)
    assert [still.is_news(now_s) for now_s in (5.5, 6.5)] == [False, True]
    assert still.since_unix_s(6.5, 1000.0) == 998.5
    still.announced(6.5)
    assert not still.is_news(99.0)
    still.note("", 99.0)
    assert still.is_news(99.1)  # who runs again is told so at once


def test_a_fast_actor_that_waits_for_credit_many_times_a_second_does_not_stand_still():
    still, births = Standstill(0.0), []
    for step in range(3_000):
        now_s = step / 100
        still.note("no credit" if step % 2 else "", now_s)
        if step % 7 == 0 or still.is_news(now_s):
            still.announced(now_s)
            births.append(still.lasting(now_s))
    assert set(births) == {""}


def test_who_stands_still_for_changing_reasons_stands_still():
    still = Standstill(0.0)
    for step in range(300):
        still.note("no credit" if step % 2 else "catching up", 1.0 + step / 100)
    assert still.lasting(4.0)
    assert still.since_unix_s(4.0, 1000.0) == 997.0


def test_the_time_is_that_of_the_reason_which_is_named():
    """A learner that left 6 s ago has not left since the loop began to catch up with the outage before."""
    still = Standstill(0.0)
    for now_s, reason in ((10.0, "no credit"), (20.0, "catching up"), (79.0, "learner left")):
        still.note(reason, now_s)
    assert still.since_unix_s(85.0, 1000.0) == 994.0
    assert still.lasting(79.5) == "learner left", "it has stood still for long"


def test_a_reason_whose_numbers_change_lasts():
    still = Standstill(0.0)
    for second in range(10, 20):
        still.note(f"the next update needs {second:,} more transitions", float(second))
    assert still.since_unix_s(20.0, 1000.0) == 990.0


def test_news_come_once_a_second_at_most():
    still, told = Standstill(0.0), 0
    for step in range(10_000):
        now_s = step / 100
        still.note("no credit" if now_s % 1.3 < 1.2 else "", now_s)
        if still.is_news(now_s):
            still.announced(now_s)
            told += 1
    assert 0 < told <= 100


def test_a_learner_that_comes_and_goes_fills_no_log(caplog):
    with caplog.at_level(logging.INFO):
        still = Standstill(0.0)
        for step in range(1000):
            still.note("no learner" if step % 2 else "", step / 100)
        assert len(caplog.records) == 20
        still.note("no policy", 500.0)
    assert len(caplog.records) == 21
