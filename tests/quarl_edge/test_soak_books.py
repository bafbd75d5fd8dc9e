"""The books of a soak notice whatever is lost, comes twice, or is said and not so."""

import dataclasses
import struct

import numpy as np
import pytest
from block_factory import BOOT as BOOT_ID
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.recorder import Recorder
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.loss import encode_loss
from quarl_edge.replay.journal import Journal
from quarl_edge.soak.books import (
    STEP_NUMBERS,
    StoredBlock,
    balance,
    disagreements,
    read_counts,
    read_journal,
    reward_of,
)
from quarl_edge.soak.learner import soak_spec
from quarl_edge.soak.rollback import roll_back

STEPS = 16


def life(name, blocks, *, sizes=None):
    """Return the blocks of a life that lost nothing."""
    step, made = 0, []
    for sequence in range(blocks):
        size = sizes[sequence] if sizes else STEPS
        made.append(StoredBlock(device="pi", boot_id=name, sequence=sequence, first_step=step, steps=size))
        step += size
    return made


def close(stored, *, made, kills=0):
    [books] = balance(stored, made={"pi": made}, kills={"pi": kills}, block_steps=STEPS)
    return books


def test_what_was_made_is_stored():
    books = close(life("a", 5) + life("b", 3), made=8 * STEPS)
    assert (books.stored, books.lives, books.blocks, books.unfinished, books.faults) == (8 * STEPS, 2, 8, 0, ())


@pytest.mark.parametrize(("missing", "kills", "right"), [(0, 0, True), (1, 0, False), (16, 1, True), (17, 1, False)])
def test_a_kill_may_take_one_unfinished_block_and_no_step_more(missing, kills, right):
    books = close(life("a", 5), made=5 * STEPS + missing, kills=kills)
    assert (books.unfinished, not books.faults) == (missing, right)


def test_more_stored_than_made_is_wrong():
    assert "never made" in close(life("a", 5), made=79).faults[0]


def test_a_device_that_did_nothing_is_wrong():
    assert close([], made=0).faults == ("it made no step",)


def test_a_device_that_nobody_knows_is_wrong():
    books = balance(life("a", 1), made={"other": 1}, kills={"other": 1}, block_steps=STEPS)
    assert [(one.device, bool(one.faults)) for one in books] == [("other", False), ("pi", True)]


def test_a_block_that_is_stored_twice_is_wrong_wherever_it_comes():
    blocks = life("a", 5)
    for again in (blocks[4], blocks[1]):
        books = close([*blocks, again], made=5 * STEPS)
        assert (books.duplicates, books.stored) == (1, 5 * STEPS)
        assert "stored twice" in books.faults[0]


def test_a_gap_that_is_declared_counts_as_dropped_and_one_that_is_not_is_wrong():
    first, second, third, fourth = life("a", 4)
    for declared, right in [(((0, 2),), True), (((1, 2),), True), ((), False), (((0, 1),), False)]:
        books = close([first, dataclasses.replace(fourth, declared=declared)], made=4 * STEPS, kills=4)
        assert (books.declared_dropped, not books.faults) == (2 * STEPS if right else 0, right)
    assert close([first, second, third, fourth], made=4 * STEPS).declared_dropped == 0


def test_a_declared_gap_without_steps_and_steps_without_a_gap_are_wrong():
    first, second, third = life("a", 3)
    late = dataclasses.replace(third, first_step=STEPS, declared=((0, 1),))
    assert "missing before it" in close([first, late], made=2 * STEPS).faults[0]
    jumps = dataclasses.replace(second, first_step=STEPS + 3)
    assert "missing before it" in close([first, jumps], made=2 * STEPS + 3).faults[0]
    overlaps = dataclasses.replace(second, first_step=STEPS - 3)
    assert "missing before it" in close([first, overlaps], made=2 * STEPS).faults[0]


def test_a_block_that_comes_after_a_later_one_is_wrong():
    first, second, third = life("a", 3)
    late = dataclasses.replace(third, declared=((0, 1),))
    assert any("came after" in fault for fault in close([first, late, second], made=3 * STEPS).faults)


def test_rows_of_other_steps_are_wrong():
    [block] = life("a", 1)
    assert "its rows" in close([dataclasses.replace(block, rows_hold=False)], made=STEPS).faults[0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_loss_of_any_stored_block_is_found(data):
    lives = [life(name, data.draw(st.integers(1, 6))) for name in "abc"]
    order = [block for one in lives for block in one]
    made = sum(block.steps for block in order)
    assert not close(order, made=made).faults
    index = data.draw(st.integers(0, len(order) - 1))
    assert close(order[:index] + order[index + 1 :], made=made).faults


def test_what_is_said_to_be_lost_is_dropped_also_where_no_block_follows():
    first, second, third, fourth = life("a", 4)
    lost = dataclasses.replace(fourth, first_step=4 * STEPS, steps=0, declared=((2, 2), (3, 3)), lost=True)
    books = close([first, second, lost], made=4 * STEPS)
    assert (books.stored, books.declared_dropped, books.blocks, books.faults) == (2 * STEPS, 2 * STEPS, 2, ())
    assert "declared" in close([first, second, dataclasses.replace(lost, declared=((3, 3),))], made=4 * STEPS).faults[0]
    short = dataclasses.replace(lost, first_step=2 * STEPS)
    assert "missing before it" in close([first, second, short], made=4 * STEPS).faults[0]
    assert third.sequence == 2


def test_what_a_restored_learner_forgot_is_no_unfinished_block_and_bounded_by_what_was_stored():
    first, second, third, fourth = life("a", 4)
    other = life("b", 2)

    def closed(stored, rolled_back, made):
        [books] = balance(stored, made={"pi": made}, kills={"pi": 0}, block_steps=STEPS, rolled_back=rolled_back)
        return books

    # The end of one life and the whole of another were freed by their actor, and are gone.
    books = closed([first, second], [third, fourth, *other], 6 * STEPS)
    assert (books.stored, books.forgotten, books.declared_dropped, books.faults) == (2 * STEPS, 4 * STEPS, 0, ())
    # One that still comes says what will not come any more.
    late = dataclasses.replace(fourth, declared=((0, 2),))
    books = closed([first, late], [second, third], 4 * STEPS)
    assert (books.stored, books.forgotten, books.declared_dropped, books.faults) == (2 * STEPS, 0, 2 * STEPS, ())
    # What its actor had kept and sends again is stored.
    assert closed([first, second, third, fourth], [third, fourth], 4 * STEPS).forgotten == 0
    assert "nowhere" in closed([first, second], [third], 4 * STEPS).faults[0]


def test_an_actor_that_drops_nothing_may_declare_only_what_was_rolled_back():
    first, second, third, fourth = life("a", 4)
    stored_now = [first, dataclasses.replace(fourth, declared=((1, 2),))]

    def faults(rolled_back, may_drop):
        [books] = balance(
            stored_now, made={"pi": 4 * STEPS}, kills={"pi": 0}, block_steps=STEPS, rolled_back=rolled_back,
            may_drop=may_drop,
        )  # fmt: skip
        return books.faults

    assert faults([], {"pi"}) == faults([], None) == faults([second, third], {"other"}) == ()
    assert "1 blocks are declared dropped, and nothing was to drop them" in faults([second], {"other"})[0]


def test_a_journal_is_rolled_back_by_its_newest_records(tmp_path):
    blocks = [payload([n + 1], sequence=n, first_step=n) for n in range(10)]
    assert len(stored(tmp_path, *blocks)) == 10
    gone = roll_back(tmp_path / "journal", soak_spec(), share=0.35)
    assert [block.sequence for block in gone] == [7, 8, 9]
    assert [block.sequence for block in read_journal(tmp_path / "journal", soak_spec())] == list(range(7))
    assert roll_back(tmp_path / "journal", soak_spec(), share=0.1) == ()


def test_a_restored_learner_may_not_know_what_came_before_it_met_a_life():
    first, _, third = life("a", 3)
    books = close([first, dataclasses.replace(third, declared=((1, 1),))], made=3 * STEPS)
    less = {"stored_steps": 2 * STEPS, "lost_steps": 0}
    assert disagreements([books], {"pi": less})
    assert disagreements([books], {"pi": less}, restored=True) == ()
    assert disagreements([books], {"pi": {**less, "lost_steps": 3 * STEPS}}, restored=True)


def test_an_account_of_the_learner_that_is_not_the_journals_is_wrong():
    first, _, third = life("a", 3)
    books = close([first, dataclasses.replace(third, declared=((1, 1),))], made=3 * STEPS)
    right = {"stored_steps": 2 * STEPS, "lost_steps": STEPS}
    assert disagreements([books], {"pi": right}) == disagreements([books], {}) == ()
    for name in right:
        [fault] = disagreements([books], {"pi": {**right, name: 5}})
        assert fault.startswith(f"pi: the learner's account says {name} 5, the journal")


# -- files -----------------------------------------------------------------------------------------------------------


def payload(rewards, *, sequence=0, base=0, first_step=0, valid=None):
    spec = soak_spec()
    recorder = Recorder(spec, num_envs=1, max_rows=len(rewards))
    recorder.restart(np.zeros((1, 4), np.float32))
    recorder.begin()
    recorder.reward[:, 0] = reward_of(np.array(rewards))
    if valid is not None:
        recorder.valid[:, 0] = valid
    recorder.acted_by(0, 1, 1)
    recorder.end(len(rewards))
    return BlockCodec(spec).encode(recorder.block(boot_id=BOOT_ID, sequence=sequence, base=base, first_step=first_step))


def stored(tmp_path, *payloads):
    journal = Journal(tmp_path / "journal")
    journal.bind(lambda: (0, {}))
    for one in payloads:
        journal.append("pi", one)
    journal.close()
    return list(read_journal(tmp_path / "journal", soak_spec()))


def test_the_journal_is_read_as_it_was_written(tmp_path):
    first, second = stored(tmp_path, payload([1, 2, 3]), payload([8, 9], sequence=4, base=2, first_step=7))
    assert first == StoredBlock(device="pi", boot_id=BOOT_ID, sequence=0, first_step=0, steps=3)
    assert (second.sequence, second.steps, second.declared, second.rows_hold) == (4, 2, ((0, 1),), True)


def test_a_loss_is_read_from_the_journal(tmp_path):
    told = encode_loss(boot_id=BOOT_ID, first=2, last=4, first_step=6, end_step=15)
    [one] = stored(tmp_path, told)
    assert (one.sequence, one.first_step, one.steps, one.lost) == (4, 15, 0, True)
    assert one.declared == ((0, 1), (2, 3), (4, 4))


@pytest.mark.parametrize("rewards", [[1, 2, 2], [1, 3, 4], [2, 3, 4], [0, 1, 2], [3, 2, 1]])
def test_a_row_that_is_missing_double_or_astray_is_seen(tmp_path, rewards):
    assert not stored(tmp_path, payload(rewards))[0].rows_hold


def test_dummy_rows_are_no_steps_and_numbers_begin_again(tmp_path):
    [dummy] = stored(tmp_path, payload([1, 7, 2], valid=[True, False, True]))
    assert (dummy.steps, dummy.rows_hold) == (2, True)
    [last] = stored(tmp_path / "2", payload([STEP_NUMBERS - 1, 0, 1], first_step=STEP_NUMBERS - 2))
    assert last.rows_hold


def test_counts_of_all_lives_are_added_and_one_that_was_just_begun_is_none(tmp_path):
    for name, data in {"1": struct.pack("<Q", 5), "2": struct.pack("<Q", 7), "3": b""}.items():
        (tmp_path / name).write_bytes(data)
    assert read_counts(tmp_path) == 12
