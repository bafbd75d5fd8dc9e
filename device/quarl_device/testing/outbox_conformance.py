"""What every `Outbox` must do, as plain functions that raise AssertionError.

::

    @pytest.mark.parametrize("check", OUTBOX_CHECKS, ids=lambda check: check.__name__)
    def test_conforms(check):
        check(MyOutbox)

A check is given a function that makes an empty outbox of `max_bytes` for a life, with nothing of any life before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from quarl_device.actor.outbox import Outbox, WhenFull
from quarl_device.errors import UsageError
from quarl_device.wire.loss import read_loss

BOOT_ID = "00000000000000b0"
MAX_BYTES = 256 * 1024
_BLOCK = b"x" * 8_000


class MakeOutbox(Protocol):
    """Makes an empty outbox."""

    def __call__(self, boot_id: str, *, max_bytes: int, when_full: WhenFull) -> Outbox: ...


OutboxCheck = Callable[[MakeOutbox], None]


def check_an_empty_one_expects_block_0(make: MakeOutbox) -> None:
    """Nothing is held, and nothing comes out."""
    outbox = _made(make)
    assert (outbox.base, outbox.end, len(outbox), outbox.pending_bytes) == (0, 0, 0, 0)
    assert (outbox.full, outbox.fault, outbox.delivering) == (False, "", BOOT_ID)
    assert (outbox.dropped_blocks, outbox.dropped_steps) == (0, 0)
    assert outbox.get(0) is None
    assert outbox.next_held(0) is None
    assert outbox.free(10) == 0


def check_no_two_blocks_share_a_sequence_and_none_is_skipped(make: MakeOutbox) -> None:
    """What is put is the next one, always."""
    outbox = _made(make)
    _refuses(outbox, -1, 1, 5)
    outbox.put(0, b"x")
    _refuses(outbox, 0, 2)
    outbox.free(0)
    _refuses(outbox, 0)
    outbox.put(1, b"y")
    assert outbox.get(1) == b"y"


def check_contents_follow_puts_and_frees(make: MakeOutbox) -> None:
    """A random history, beside a dictionary that does the same."""
    rng = random.Random(7)  # noqa: S311
    outbox = _made(make)
    model: dict[int, bytes] = {}
    following = 0
    for _ in range(300):
        if rng.random() < 0.7:
            payload = rng.randbytes(rng.randrange(3_000))
            outbox.put(following, payload, steps=1)
            model[following] = payload
            following += 1
        else:
            durable = rng.randrange(-1, following + 1)
            gone = [sequence for sequence in model if sequence <= durable]
            assert outbox.free(durable) == len(gone)
            for sequence in gone:
                del model[sequence]
        assert outbox.base == min(model, default=following)
        assert (outbox.end, len(outbox)) == (following, len(model))
        assert outbox.pending_bytes >= sum(map(len, model.values()))
        assert outbox.next_held(0) == min(model, default=None)
        assert outbox.next_held(following) is None
    assert {n: outbox.get(n) for n in range(following) if outbox.get(n) is not None} == model
    assert (outbox.dropped_blocks, outbox.dropped_steps) == (0, 0)


def check_it_is_full_at_its_cap_and_not_for_ever(make: MakeOutbox) -> None:
    """`full` comes within the cap, and goes when blocks leave; until then nothing is dropped."""
    outbox = _made(make)
    count = _fill(outbox)
    assert outbox.full
    assert MAX_BYTES / 2 < outbox.pending_bytes <= MAX_BYTES + 2 * len(_BLOCK)
    assert [outbox.get(sequence) for sequence in range(count)] == [_BLOCK] * count
    outbox.free(count // 2)
    assert not outbox.full
    assert outbox.dropped_blocks == 0


def check_a_block_of_any_size_fits_an_empty_one(make: MakeOutbox) -> None:
    """An actor with blocks over the cap makes them one by one instead of none."""
    outbox = _made(make)
    outbox.put(0, b"x" * 2 * MAX_BYTES)
    assert outbox.full
    assert outbox.free(0) == 1
    assert not outbox.full


def check_when_full_the_oldest_leave_and_are_counted(make: MakeOutbox) -> None:
    """With `drop-oldest` it is never full; whole blocks leave, and `base` says which."""
    outbox = _made(make, when_full="drop-oldest")
    for sequence in range(100):
        outbox.put(sequence, _BLOCK, steps=16)
        assert not outbox.full
    assert outbox.pending_bytes <= MAX_BYTES
    dropped = outbox.dropped_blocks
    assert dropped == 101 - len(outbox) > 1, "what is dropped is held as one loss"
    assert outbox.dropped_steps == 16 * dropped
    _tells(outbox, first=0, last=dropped - 1, steps=16 * dropped)
    assert outbox.get(dropped) == outbox.get(99) == _BLOCK
    assert outbox.next_held(dropped) == dropped
    assert outbox.gap_before(dropped) == ()


def check_a_loss_leaves_as_a_block_does(make: MakeOutbox) -> None:
    """It is held until its last block is done with, whatever part of it the learner has."""
    outbox = _made(make, when_full="drop-oldest")
    for sequence in range(100):
        outbox.put(sequence, _BLOCK, steps=16)
    last = outbox.dropped_blocks - 1
    held = len(outbox)
    assert outbox.free(last - 1) == 0
    assert (outbox.free(last), len(outbox), outbox.base) == (1, held - 1, last + 1)
    for sequence in range(100, 130):
        outbox.put(sequence, _BLOCK, steps=16)
    _tells(outbox, first=last + 1, last=outbox.dropped_blocks - 1, steps=16 * (outbox.dropped_blocks - 1 - last))
    outbox.begin_task("another")
    assert (len(outbox), outbox.base) == (0, 130), "of another task nobody is told"


def check_a_block_over_the_cap_drops_all_others(make: MakeOutbox) -> None:
    """And is held itself."""
    outbox = _made(make, when_full="drop-oldest")
    for sequence in range(5):
        outbox.put(sequence, _BLOCK, steps=1)
    outbox.put(5, b"x" * 2 * MAX_BYTES)
    assert (len(outbox), outbox.next_held(5), outbox.dropped_blocks) == (2, 5, 5)
    _tells(outbox, first=0, last=4, steps=5)


def check_another_task_drops_what_was_made_for_the_one_before(make: MakeOutbox) -> None:
    """And the same task, said again, drops nothing."""
    outbox = _made(make)
    assert outbox.begin_task("one") == 0
    for sequence in range(3):
        outbox.put(sequence, _BLOCK, steps=4)
    assert outbox.begin_task("one") == 0
    assert (outbox.holds_other_task("one"), outbox.holds_other_task("two"), len(outbox)) == (False, True, 3)
    assert outbox.begin_task("two") == 3
    assert not outbox.holds_other_task("one"), "nothing is held"
    assert (len(outbox), outbox.base, outbox.end) == (0, 3, 3)
    assert (outbox.dropped_blocks, outbox.dropped_steps) == (3, 12)
    outbox.put(3, b"new", steps=4)
    assert outbox.get(3) == b"new"
    assert outbox.begin_task("two") == 0


def check_upkeep_and_close_lose_nothing(make: MakeOutbox) -> None:
    """At any time, as often as anybody likes."""
    outbox = _made(make)
    for sequence in range(20):
        outbox.put(sequence, _BLOCK)
        slow = outbox.upkeep(100.0 * sequence)
        if slow is not None:
            slow()
        outbox.free(sequence - 5)
    assert (outbox.base, len(outbox), outbox.fault) == (15, 5, "")
    assert outbox.get(17) == _BLOCK
    outbox.close()
    outbox.close()


OUTBOX_CHECKS: tuple[OutboxCheck, ...] = (
    check_an_empty_one_expects_block_0,
    check_no_two_blocks_share_a_sequence_and_none_is_skipped,
    check_contents_follow_puts_and_frees,
    check_it_is_full_at_its_cap_and_not_for_ever,
    check_a_block_of_any_size_fits_an_empty_one,
    check_when_full_the_oldest_leave_and_are_counted,
    check_a_loss_leaves_as_a_block_does,
    check_a_block_over_the_cap_drops_all_others,
    check_another_task_drops_what_was_made_for_the_one_before,
    check_upkeep_and_close_lose_nothing,
)


def _made(make: MakeOutbox, when_full: WhenFull = "block") -> Outbox:
    return make(BOOT_ID, max_bytes=MAX_BYTES, when_full=when_full)


def _tells(outbox: Outbox, *, first: int, last: int, steps: int) -> None:
    assert (outbox.base, outbox.next_held(0)) == (first, last)
    payload = outbox.get(last)
    loss = None if payload is None else read_loss(payload)
    assert loss is not None, "no loss"
    assert (loss.boot_id, loss.sequence, loss.base, loss.lost_steps) == (outbox.delivering, last, first, steps)
    assert outbox.gap_before(last) == (((first, last - 1),) if first < last else ())


def _fill(outbox: Outbox) -> int:
    count = 0
    while not outbox.full:
        outbox.put(count, _BLOCK)
        count += 1
        assert count < MAX_BYTES, "it is never full"
    return count


def _refuses(outbox: Outbox, *sequences: int) -> None:
    for sequence in sequences:
        try:
            outbox.put(sequence, b"z")
        except UsageError:
            continue
        raise AssertionError(f"it took block {sequence} out of turn")
