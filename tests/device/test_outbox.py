"""The outbox: every block exactly once, in order, until it is durable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.errors import UsageError


def test_an_empty_outbox_expects_block_0():
    outbox = MemoryOutbox()
    assert (outbox.base, len(outbox), outbox.pending_bytes, outbox.full) == (0, 0, 0, False)
    assert outbox.get(0) is None
    assert outbox.free(10) == 0


@pytest.mark.parametrize("sequence", [-1, 1, 5])
def test_two_blocks_never_share_a_sequence_and_none_is_skipped(sequence):
    with pytest.raises(UsageError, match="expects block 0"):
        MemoryOutbox().put(sequence, b"x")
    outbox = MemoryOutbox()
    outbox.put(0, b"x")
    with pytest.raises(UsageError, match="expects block 1"):
        outbox.put(0, b"y")


def test_a_block_of_any_size_fits_an_empty_outbox_and_then_it_is_full():
    outbox = MemoryOutbox(max_bytes=10)
    outbox.put(0, b"x" * 9)
    assert not outbox.full
    outbox.put(1, b"x" * 1000)
    assert outbox.full
    outbox.free(0)
    assert outbox.full
    outbox.free(1)
    assert not outbox.full
    assert outbox.pending_bytes == 0


def test_a_cap_that_holds_nothing_is_refused():
    with pytest.raises(UsageError, match="not positive"):
        MemoryOutbox(max_bytes=0)


@given(st.lists(st.one_of(st.binary(max_size=20), st.integers(-1, 30)), max_size=60))
def test_base_bytes_and_contents_follow_puts_and_frees(steps):
    outbox, model, following = MemoryOutbox(), {}, 0
    for step in steps:
        if isinstance(step, bytes):
            outbox.put(following, step)
            model[following] = step
            following += 1
        else:
            gone = [sequence for sequence in model if sequence <= step]
            assert outbox.free(step) == len(gone)
            for sequence in gone:
                del model[sequence]
        assert outbox.base == min(model, default=following)
        assert outbox.pending_bytes == sum(map(len, model.values()))
        assert len(outbox) == len(model)
        assert {n: outbox.get(n) for n in range(following) if outbox.get(n) is not None} == model
