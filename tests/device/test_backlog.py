"""What waits: how fast it leaves, and when it will be gone."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.backlog import BACKLOG_BLOCKS, Backlog, lasting
from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.actor.shared import Shared
from quarl_device.actor.ticker import Ticker

KIB = 1024


def seen(*pairs):
    backlog = Backlog()
    for now_s, pending in pairs:
        backlog.note(pending, now_s)
    return backlog.delivery


def test_a_backlog_that_shrinks_has_an_end():
    delivery = seen((0.0, 100 * KIB), (5.0, 50 * KIB))
    assert (delivery.bytes_per_s, delivery.left_s) == (10 * KIB, 5.0)
    assert str(delivery) == "10 KiB/s, about 5 s left"


@pytest.mark.parametrize("pairs", [(), ((0.0, 5),), ((0.0, 5), (1.0, 5)), ((0.0, 5), (1.0, 9))])
def test_one_that_does_not_shrink_has_none(pairs):
    assert (seen(*pairs).left_s, str(seen(*pairs))) == (None, "no end in sight")


def test_what_was_long_ago_says_nothing_of_now():
    assert seen((0.0, 1000), (1.0, 900), (50.0, 900), (60.0, 890)).bytes_per_s == 1.0


def test_one_block_in_half_a_minute_is_an_end_in_sight():
    taken = [(float(now_s), 1000 - 100 * (now_s // 25)) for now_s in range(95)]
    delivery = seen(*taken)
    assert delivery.left_s == pytest.approx(700 / 4, rel=0.5)


def test_what_was_watched_for_a_moment_is_not_known():
    assert [seen((0.0, 5), (now_s, 5)).known for now_s in (1.0, 9.0, 10.0)] == [False, False, True]
    assert not seen((0.0, 5)).known
    assert seen((0.0, 5), (1.0, 4)).known


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 2**40)), max_size=30))
def test_any_history_gives_numbers_that_can_be_shown(pairs):
    delivery = seen(*sorted(pairs))
    assert delivery.bytes_per_s >= 0
    assert delivery.left_s is None or delivery.left_s >= 0
    assert str(delivery)


@pytest.mark.parametrize(("seconds", "words"), [(7, "7 s"), (119, "119 s"), (120, "2 min"), (7_200, "2.0 h")])
def test_a_duration_is_short(seconds, words):
    assert lasting(seconds) == words


class Nobody:
    """A link that is down, and a speaker that says nothing."""

    connected = is_outdated = False

    def announce(self):
        pass

    def send_blocks(self):
        pass


def test_a_device_says_every_ten_seconds_how_its_delivery_goes_and_what_holds_it_up(caplog):
    caplog.set_level(logging.INFO)
    outbox = MemoryOutbox("0" * 16)
    shared = Shared(outbox)
    ticker = Ticker(Nobody(), shared=shared, speaker=Nobody(), inbox=None)
    ticker.tick(0.0)
    for sequence in range(2 * BACKLOG_BLOCKS + 1):
        outbox.put(sequence, bytes(KIB))
    ticker.tick(5.0)
    assert caplog.text == "", "not yet"
    ticker.tick(10.0)
    assert "129 blocks (129 KiB) wait for the learner: no end in sight; link down for 10 s" in caplog.text
    outbox.free(49)
    ticker.tick(15.0)
    ticker.tick(20.0)
    assert "79 blocks (79 KiB) wait for the learner: 5 KiB/s, about 16 s left; link down for 20 s" in caplog.text
    outbox.free(2 * BACKLOG_BLOCKS)
    ticker.tick(30.0)
    assert caplog.text.count("wait for the learner") == 2


def test_a_device_whose_backlog_stands_says_so_ever_seldomer(caplog):
    caplog.set_level(logging.INFO)
    outbox = MemoryOutbox("0" * 16)
    ticker = Ticker(Nobody(), shared=Shared(outbox), speaker=Nobody(), inbox=None)
    for sequence in range(2 * BACKLOG_BLOCKS):
        outbox.put(sequence, bytes(KIB))
    for second in range(0, 700, 5):
        ticker.tick(float(second))
    assert caplog.text.count("wait for the learner") == 5, "at 0, 10, 60, 300 and 600 s"
