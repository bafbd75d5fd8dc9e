"""A learner that is gone is said once, how and since when; so is one that comes back, and one that is not followed."""

import logging

import pytest

from quarl_device.actor.absence import Absence


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "quarl_device")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("learner", "max_offline_s", "said"),
    [
        ("left", 60.0, "the learner (epoch 7) said goodbye; standing still until one is back"),
        ("lost", 60.0, "its connection to the broker broke; going on for up to 60 s, as far as the spool takes it"),
        ("lost", 0.0, "its connection to the broker broke; going on as far as its credit goes"),
        ("silent", 0.0, "nothing has been heard of it for a while; going on as far as its credit goes"),
    ],
)
def test_it_says_once_how_the_learner_went_and_what_follows(lines, learner, max_offline_s, said):
    absence = Absence(max_offline_s)
    for tenth in range(50):
        absence.note("here", 7, tenth / 10)
    assert lines() == []
    for tenth in range(50, 500):
        absence.note(learner, 7, tenth / 10)
    assert len(lines()) == 1
    assert said in lines()[0]
    absence.note("here", 8, 65.0)
    assert lines()[1:] == ["a learner is there (epoch 8), after 60 s without"]


def test_a_goodbye_after_silence_is_said_too_and_the_time_counts_from_the_silence(lines):
    absence = Absence(0.0)
    absence.note("silent", 7, 10.0)
    absence.note("left", 7, 20.0)
    absence.note("here", 7, 40.0)
    assert [("said goodbye" in line, "after 30 s" in line) for line in lines()] == [
        (False, False), (True, False), (False, True),
    ]  # fmt: skip


def test_it_says_how_many_blocks_may_wait_and_once_that_so_many_do(lines):
    absence = Absence(60.0, 1_064)
    absence.note("lost", 7, 1.0)
    assert "going on for up to 60 s and until 1,064 blocks wait, as far as" in lines()[0]
    for tenth in range(20, 100):
        absence.note_stop(tenth / 10, stopped=tenth > 30)
    assert len(lines()) == 2
    assert "1,064 blocks wait" in lines()[1]
    assert "--max-offline-blocks" in lines()[1]
    absence.note_stop(11.0, stopped=False)
    absence.note_stop(12.0, stopped=True)
    assert len(lines()) == 3, "of the next outage it is said again"


def test_who_never_met_a_learner_misses_none(lines):
    Absence(0.0).note("unmet", -1, 10.0)
    assert lines() == []


def test_an_older_learner_is_named_once_and_only_while_nobody_is_followed(lines):
    absence = Absence(0.0)
    absence.note("here", 9, 0.0)
    absence.overhear(8, followed=9, now_s=1.0)
    assert lines() == []
    absence.note("lost", 9, 2.0)
    for second in range(3, 30):
        absence.overhear(8, followed=9, now_s=float(second))
    assert len(lines()) == 2
    assert "epoch 8" in lines()[1]
    assert "has met epoch 9" in lines()[1]
    assert "--resume" in lines()[1]


def test_forged_births_fill_no_log(lines):
    absence = Absence(0.0)
    for step in range(10_000):
        absence.note("lost" if step % 2 else "here", step, step / 1_000)
        absence.overhear(step, followed=10_000, now_s=step / 1_000)
    assert len(lines()) == 20
