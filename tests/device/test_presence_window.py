"""What a session knows of its learner's presence, and of the blocks that are on their way."""

from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.blocked import spool_full
from quarl_device.actor.presence import Presence
from quarl_device.actor.window import Window


def present():
    presence = Presence(silent_s=30.0)
    presence.link_up = True
    assert presence.born(beat=1, anew=True, now_s=0.0)
    return presence


def test_first_the_link_then_the_learner():
    presence = Presence(silent_s=30.0)
    assert presence.absent == "link down"
    presence.link_up = True
    assert presence.absent == "no learner"
    presence.born(beat=1, anew=True, now_s=0.0)
    assert presence.absent == ""


def test_a_birth_that_was_heard_before_says_nothing_of_now():
    presence = present()
    assert presence.parted(left=False)
    assert not presence.born(beat=1, anew=False, now_s=5.0)
    assert presence.absent == "learner lost"
    assert presence.born(beat=2, anew=False, now_s=5.0)
    assert presence.absent == ""
    assert not presence.born(beat=3, anew=False, now_s=6.0), "it was there"


def test_an_ack_brings_back_one_that_was_silent_and_none_that_has_left():
    presence = present()
    presence.note(30.5)
    assert presence.absent == "learner lost"
    presence.answered(31.0)
    assert presence.absent == ""
    assert presence.parted(left=True)
    assert not presence.parted(left=True), "once"
    presence.answered(32.0)
    assert presence.absent == "learner left"


def test_a_goodbye_is_news_after_a_will_and_not_the_other_way_round():
    presence = Presence(silent_s=30.0)
    assert not presence.parted(left=True), "nobody was met"
    presence = present()
    assert presence.parted(left=False)
    assert presence.parted(left=True)
    assert not presence.parted(left=False)
    assert presence.learner == "left"


def test_an_absence_has_a_length_until_it_ends():
    presence = present()
    presence.note(1.0)
    presence.link_up = False
    for now_s in (2.0, 5.0):
        presence.note(now_s)
    assert presence.absent_s == 3.0
    presence.link_up = True
    presence.note(6.0)
    assert presence.absent_s == 0.0


def window(**changes):
    settings = {"max_blocks": 3, "max_bytes": 100, "resend_after_s": 1.0, "resend_max_s": 4.0, **changes}
    return Window(**settings)


def test_it_is_open_by_blocks_and_by_bytes_and_one_block_may_go_over_them():
    one = window()
    one.add(0, 99)
    assert one.open
    one.add(1, 500)
    assert not one.open
    one.arrived(1)
    assert (one.open, len(one)) == (True, 0)
    for sequence in (2, 3, 4):
        one.add(sequence, 1)
    assert not one.open


def test_only_the_last_one_is_taken_back():
    one = window()
    one.add(0, 60)
    one.add(1, 60)
    assert (one.take_back(0), one.take_back(1), len(one), one.open) == (0, 60, 1, True)


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(-1, 20))
def test_what_arrived_weighs_nothing(sizes, inserted):
    one = window(max_blocks=100, max_bytes=10**9)
    for sequence, size in enumerate(sizes):
        one.add(sequence, size)
    one.arrived(inserted)
    assert len(one) == max(0, len(sizes) - inserted - 1)
    assert one._bytes == sum(sizes[inserted + 1 :])
    one.clear()
    assert (len(one), one._bytes) == (0, 0)


def test_patience_doubles_to_its_end_and_begins_anew_with_an_answer():
    one, now_s, waits = window(), 0.0, []
    one.listen(0.0)
    while len(waits) < 4:
        before = now_s
        while not one.silent_for_too_long(now_s):
            now_s += 0.5
        waits.append(now_s - before)
    assert waits == [1.0, 2.0, 4.0, 4.0]
    one.answered(now_s)
    assert one.silent_for_too_long(now_s + 1.0)
    assert not one.silent_for_too_long(now_s + 3.5, at_least_s=60.0)


def test_a_full_spool_is_explained_by_the_first_thing_that_is_in_the_way():
    assert spool_full("link down", sets_aside=True, lacks_credit=True) == "spool full: link down"
    for absence in ("no learner", "learner left", "learner lost"):
        assert spool_full(absence, sets_aside=True, lacks_credit=True) == f"spool full: {absence}"
    assert spool_full("", sets_aside=True, lacks_credit=True) == "spool full: learner of another task"
    assert spool_full("", sets_aside=False, lacks_credit=True) == "spool full: no credit"
    assert spool_full("", sets_aside=False, lacks_credit=False) == "spool full: learner slow"
