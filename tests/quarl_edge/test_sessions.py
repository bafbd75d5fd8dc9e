from __future__ import annotations

import dataclasses
import json

import pytest
from block_factory import boot_id
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import JournalError
from quarl_device.wire.loss import encode_loss, read_loss
from quarl_edge.ingest.sessions import (
    MAX_LIVES,
    MAX_REFUSED,
    Account,
    SessionTable,
    Verdict,
)

A, B = boot_id(1), boot_id(2)
ACCEPT, DUPLICATE, GAP = Verdict.ACCEPT, Verdict.DUPLICATE, Verdict.GAP


def test_w1_the_same_block_twice_is_accepted_once():
    table = SessionTable()
    assert table.admit("d", A, 0, 0) is ACCEPT
    assert table.admit("d", A, 0, 0) is DUPLICATE
    assert table.admit("d", A, 1, 0) is ACCEPT
    assert table.admit("d", A, 0, 0) is DUPLICATE
    assert table.admit("other", A, 0, 0) is ACCEPT


@settings(max_examples=200, deadline=None)
@given(
    base=st.integers(0, 5),
    arrivals=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), max_size=60),
)
def test_w1_whatever_the_broker_does(base, arrivals):
    """Duplicated, reordered, lost, of two lives: accepted sequences ascend, once each, without unexplained holes."""
    table = SessionTable()
    accepted: dict[int, list[int]] = {0: [], 1: []}
    for life, sequence in arrivals:
        if sequence >= base and table.admit("d", boot_id(life), sequence, base) is ACCEPT:
            accepted[life].append(sequence)
    for sequences in accepted.values():
        assert sequences == sorted(set(sequences))
    assert sum(max(s) - base + 1 for s in accepted.values() if s) == sum(map(len, accepted.values())) + table.lost


def test_w2_durable_covers_only_what_was_accepted():
    table = SessionTable(epoch=9)
    table.open("d", A)
    assert (table.ack("d").inserted, table.ack("d").durable) == (-1, -1)
    assert table.examine("d", A, 0, 0) is ACCEPT
    assert table.ack("d").durable == -1, "examined is not accepted"
    table.accept("d", A)
    assert table.admit("d", A, 2, 0) is GAP
    ack = table.ack("d")
    assert (ack.boot_id, ack.epoch, ack.inserted, ack.durable) == (A, 9, 0, 0)


def test_an_unknown_life_begins_at_its_base():
    table = SessionTable()
    assert table.admit("d", A, 7, 5) is GAP
    assert table.expected("d") == 5
    assert [table.admit("d", A, s, 5) for s in (5, 6, 7)] == [ACCEPT] * 3
    assert table.expected("nobody") is None


def test_an_announced_base_counts_before_the_first_block():
    table = SessionTable()
    table.open("d", A, 40)
    assert table.expected("d") == 40
    assert table.grant("d", 2)
    ack = table.ack("d")
    assert (ack.inserted, ack.credit) == (39, 42)
    # An older birth that comes late takes nothing back.
    table.open("d", A, 3)
    assert table.expected("d") == 40


def test_base_moves_a_known_life_over_what_the_actor_has_freed():
    table = SessionTable()
    table.admit("d", A, 0, 0)
    assert table.admit("d", A, 5, 5) is ACCEPT
    assert table.lost == 4
    assert table.admit("d", A, 4, 0) is DUPLICATE


def test_declared_dropped_ranges_are_passed():
    table = SessionTable()
    table.admit("d", A, 0, 0)
    assert table.admit("d", A, 4, 0, [(1, 3)]) is ACCEPT
    assert table.lost == 3
    # A range right behind the block, and one behind that.
    assert table.admit("d", A, 5, 0, [(8, 9), (6, 7)]) is ACCEPT
    assert table.ack("d").inserted == 9
    # A range that has been received by now, or lies ahead, changes nothing.
    assert table.admit("d", A, 10, 0, [(2, 4), (20, 30)]) is ACCEPT
    assert table.ack("d").inserted == 10


def test_a_range_declared_in_a_block_that_is_too_early_counts():
    table = SessionTable()
    table.admit("d", A, 0, 0)
    assert table.admit("d", A, 4, 0, [(1, 2)]) is GAP
    assert table.expected("d") == 3


def test_what_the_actor_can_still_send_is_never_given_up():
    """However often later blocks come first: a lossy broker, with a learner that has seen nothing of this life."""
    table = SessionTable()
    for _ in range(20):
        assert table.admit("d", A, 2, 0) is GAP
        assert table.admit("d", A, 3, 0) is GAP
    assert [table.admit("d", A, s, 0) for s in range(4)] == [ACCEPT] * 4
    assert table.lost == 0


def test_what_the_actor_has_freed_is_not_waited_for():
    """A learner that lost its journal: the block that is sent again says what can still be sent."""
    table = SessionTable()
    assert table.admit("d", A, 9, 5) is GAP
    assert table.admit("d", A, 9, 9) is ACCEPT
    assert table.lost == 4
    assert table.admit("d", A, 8, 5) is DUPLICATE


def test_a_resend_from_the_missing_block_is_no_sign_of_loss():
    table = SessionTable()
    table.admit("d", A, 0, 0)
    for _ in range(10):
        assert table.admit("d", A, 3, 0) is GAP
        if table.expected("d") == 1:
            assert table.admit("d", A, 2, 0) is GAP
        if table.admit("d", A, 1, 0) is ACCEPT:
            break
    assert table.admit("d", A, 2, 0) is ACCEPT
    assert table.lost == 0


def test_lives_stand_beside_each_other_and_none_is_over():
    """Two processes with one id, or a spool that brings an earlier life's blocks among those of the newest."""
    table = SessionTable()
    table.open("d", A)
    assert table.admit("d", A, 0, 0) is ACCEPT
    table.open("d", B)
    assert table.admit("d", B, 0, 0) is ACCEPT
    assert table.admit("d", A, 1, 0) is ACCEPT
    assert table.admit("d", A, 0, 0) is DUPLICATE
    assert table.admit("d", B, 0, 0) is DUPLICATE
    assert (table.ack("d", A).inserted, table.ack("d", B).inserted) == (1, 0)


def test_credit_goes_to_the_life_that_is_delivered():
    table = SessionTable()
    table.open("d", A)
    assert table.grant("d", 5)
    assert (table.ack("d").boot_id, table.ack("d").credit) == (A, 5)
    assert table.admit("d", A, 3, 3) is ACCEPT
    table.open("d", B)
    assert (table.ack("d").boot_id, table.ack("d").credit) == (B, 0)
    assert table.grant("d", 2)
    assert table.ack("d", A).credit == 3 + 5, "what was granted to the earlier life stays with it, from its base on"


def test_lives_are_remembered_within_bounds_and_the_quietest_is_forgotten():
    table = SessionTable()
    for life in range(100):
        table.open("d", boot_id(life))
        assert table.admit("d", boot_id(life), 0, 0) is ACCEPT
        assert table.admit("d", boot_id(0), life + 1, 0) is ACCEPT
    entry = table.snapshot()["d"]
    assert len(entry["lives"]) == MAX_LIVES
    assert table.admit("d", boot_id(99), 0, 0) is DUPLICATE
    assert not table.remembers("d", boot_id(50))
    assert table.remembers("d", boot_id(0))


def test_the_account_knows_every_step_between_two_blocks():
    table = SessionTable()
    table.admit("d", A, 0, 0, first_step=0, steps=10)
    # Two blocks were dropped by the actor, one was refused: 7 + 8 steps and 5.
    table.admit("d", A, 3, 3, first_step=25, steps=10)
    table.refuse("d", A, 4, 3, code=34)
    table.admit("d", A, 5, 3, first_step=40, steps=10)
    account = table.account("d")
    assert (account.stored_steps, account.lost_steps, account.lost_blocks) == (30, 20, 2)
    # An earlier life that this learner has not met: what it made before may be stored elsewhere.
    table.admit("d", B, 9, 9, first_step=900, steps=10)
    assert (table.account("d").stored_steps, table.lost_steps) == (40, 20)
    assert table.account("nobody").stored_steps == 0


def test_the_account_of_a_life_of_which_nothing_was_stored():
    """Every block was too stale: each could be read, so its steps are lost and counted."""
    table = SessionTable()
    for sequence in range(3):
        table.refuse("d", A, sequence, 0, code=39, first_step=10 * sequence, steps=10)
    assert (table.account("d").stored_steps, table.account("d").lost_steps) == (0, 30)
    assert table.admit("d", A, 3, 0, first_step=30, steps=10) is ACCEPT
    assert (table.account("d").stored_steps, table.account("d").lost_steps) == (10, 30)


def test_the_account_of_a_life_whose_first_block_could_not_be_read():
    table = SessionTable()
    table.refuse("d", A, 0, 0, code=34)
    assert table.account("d").lost_steps == 0, "nobody knows yet how many"
    table.admit("d", A, 1, 0, first_step=10, steps=10)
    assert (table.account("d").stored_steps, table.account("d").lost_steps) == (10, 10)


def test_refused_blocks_are_done_with_and_named():
    table = SessionTable()
    table.admit("d", A, 0, 0)
    assert table.refuse("d", A, 1, 0, code=34) is ACCEPT
    ack = table.ack("d")
    assert (ack.inserted, ack.refused) == (1, {1: 34})
    assert table.refuse("d", A, 1, 0, code=34) is DUPLICATE
    assert table.refuse("d", A, 9, 0, code=34) is GAP
    assert table.admit("d", A, 2, 0) is ACCEPT
    for sequence in range(3, 300):
        table.refuse("d", A, sequence, 0, code=34)
    assert len(table.ack("d").refused) == MAX_REFUSED
    assert table.ack("d").decode(table.ack("d").encode()) == table.ack("d")
    table.admit("d", B, 0, 0)
    assert table.ack("d").refused == {}, "of another life"


def test_credit_is_never_taken_back():
    table = SessionTable()
    table.open("d", A)
    assert table.grant("d", 4)
    assert not table.grant("d", 2)
    assert table.ack("d").credit == 4
    for sequence in range(4):
        table.admit("d", A, sequence, 0)
    assert table.ack("d").credit == 4
    assert table.grant("d", 1)
    assert table.ack("d").credit == 5
    table.open("d", B)
    assert table.ack("d").credit == 0


def test_memory_is_bounded_and_the_quietest_goes_first():
    table = SessionTable(max_devices=3)
    for device in "abc":
        table.admit(device, A, 0, 0)
    table.admit("a", A, 1, 0)
    table.admit("d", A, 0, 0)
    assert len(table) == 3
    assert "b" not in table
    assert "a" in table
    # A forgotten device goes on where it stands.
    assert table.admit("b", A, 5, 5) is ACCEPT


def test_snapshot_comes_back_through_json():
    table = SessionTable()
    table.open("a", A)
    table.admit("a", A, 0, 0, first_step=0, steps=5)
    table.open("a", B)
    table.admit("a", B, 0, 0, first_step=0, steps=5)
    table.admit("a", B, 2, 2, first_step=9, steps=5)
    table.open("b", A)
    other = SessionTable()
    other.restore(json.loads(json.dumps(table.snapshot())))
    assert other.snapshot() == table.snapshot()
    assert other.admit("a", A, 0, 0) is DUPLICATE
    assert other.admit("a", A, 1, 0) is ACCEPT
    assert other.admit("a", B, 2, 0) is DUPLICATE
    assert other.admit("a", B, 3, 0, first_step=14, steps=5) is ACCEPT
    assert other.account("a").lost_steps == 4
    assert other.expected("b") is None


SOUND = {"active": A, "lives": {A: [0, 0]}, "account": [0, 0, 0]}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        3,
        {},
        SOUND | {"active": B},
        SOUND | {"lives": {A: ["x", 0]}},
        SOUND | {"lives": {A: 3}},
        SOUND | {"lives": 3},
        SOUND | {"account": [1, 2]},
    ],
)
def test_a_damaged_snapshot_is_refused(entry):
    with pytest.raises(JournalError, match="session table"):
        SessionTable().restore({"d": entry})


def test_a_sound_snapshot_is_not_refused():
    SessionTable().restore({"d": SOUND})


# -- what actors say to be lost ----------------------------------------------------------------------------------------


def loss(first, last, *, steps=8, boot=A):
    return read_loss(
        encode_loss(boot_id=boot, first=first, last=last, first_step=steps * first, end_step=steps * (last + 1))
    )


def tell(table, one):
    verdict = table.examine("d", one.boot_id, one.sequence, one.base, one.dropped)
    if verdict is ACCEPT:
        table.lose("d", one)
    return verdict


def test_the_head_of_a_life_that_was_never_met_is_on_the_account():
    table = SessionTable()
    assert tell(table, loss(0, 4)) is ACCEPT
    assert table.admit("d", A, 5, 5, first_step=40, steps=8) is ACCEPT
    assert table.account("d") == Account(stored_steps=8, lost_steps=40, lost_blocks=5)


def test_so_are_the_end_of_one_and_a_life_of_which_nothing_is_left():
    table = SessionTable()
    table.admit("d", A, 0, 0, first_step=0, steps=8)
    assert tell(table, loss(1, 3)) is ACCEPT
    assert tell(table, loss(0, 9, boot=B)) is ACCEPT
    assert table.account("d") == Account(stored_steps=8, lost_steps=24 + 80, lost_blocks=3 + 10)
    assert (table.ack("d", A).durable, table.ack("d", B).durable) == (3, 9)


def test_what_is_told_twice_or_grows_is_counted_once_and_what_was_stored_is_not_lost():
    table = SessionTable()
    for sequence in range(3):
        table.admit("d", A, sequence, 0, first_step=8 * sequence, steps=8)
    # The acks of all three were lost, so that their actor gave them up, with two more.
    assert tell(table, loss(0, 4)) is ACCEPT
    assert tell(table, loss(0, 4)) is DUPLICATE
    assert tell(table, loss(0, 6)) is ACCEPT
    assert tell(table, loss(0, 2)) is DUPLICATE
    assert table.account("d") == Account(stored_steps=24, lost_steps=32, lost_blocks=4)


def test_what_an_earlier_learner_had_is_not_lost():
    table = SessionTable()
    assert tell(table, loss(7, 8)) is ACCEPT
    assert table.account("d") == Account(lost_steps=16, lost_blocks=2)


def test_a_loss_behind_a_block_that_is_missing_waits_for_it():
    table = SessionTable()
    table.admit("d", A, 0, 0, first_step=0, steps=8)
    one = dataclasses.replace(loss(2, 4), base=1)
    assert tell(table, one) is GAP
    table.admit("d", A, 1, 1, first_step=8, steps=8)
    assert tell(table, one) is ACCEPT
    assert table.account("d") == Account(stored_steps=16, lost_steps=24, lost_blocks=3)
