"""What stands in the place of blocks that will never come: read as it was written, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import PayloadRefused
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.block_stamp import restamped
from quarl_device.wire.loss import encode_loss, read_loss

LIFE = "00000000000000aa"
SPEC = BlockSpec(
    observations=(ObservationSpec(key="observation", shape=(2,)),), action=ActionSpec(kind="discrete", n=2)
)
PLACES = st.tuples(st.integers(0, 2**53 - 1), st.integers(0, 2**53 - 1)).map(sorted)


def lost(first=4, last=9, first_step=64, end_step=160):
    return encode_loss(boot_id=LIFE, first=first, last=last, first_step=first_step, end_step=end_step)


@given(PLACES, PLACES)
def test_it_comes_back_as_it_was_written(sequences, steps):
    stamp = read_loss(lost(*sequences, *steps))
    assert (stamp.boot_id, stamp.base, stamp.sequence) == (LIFE, *sequences)
    assert (stamp.first_step, stamp.lost_steps) == (steps[0], steps[1] - steps[0])
    assert stamp.dropped == (((sequences[0], sequences[1] - 1),) if sequences[0] < sequences[1] else ())


def test_it_is_stamped_anew_as_a_block_is():
    stamp = read_loss(restamped(lost(), base=2, dropped=((2, 8),)))
    assert (stamp.base, stamp.sequence, stamp.dropped, stamp.lost_steps) == (2, 9, ((2, 8),), 96)


def test_no_spec_takes_it_for_a_block():
    with pytest.raises(PayloadRefused):
        BlockCodec(SPEC).decode(lost())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data + b"x",
        lambda data: data[:-1],
        lambda data: data.replace(b'"lost_steps":"96"', b'"lost_steps":"-6"'),
        lambda data: data.replace(b'"lost_steps":"96"', b'"lost_sleep":"96"'),
        lambda data: data.replace(b'"first_step":"64"', b'"first_step":"x4"'),
        lambda data: data.replace(b'"base":"4"', b'"base":"a"'),
    ],
)
def test_one_that_does_not_hold_is_refused(damage):
    with pytest.raises(PayloadRefused):
        read_loss(damage(lost()))


def test_more_steps_than_there_can_be_are_refused():
    data = lost(first_step=2**53 - 10, end_step=2**53 - 1).replace(b'"lost_steps":"9"', b'"lost_steps":"99"')
    size = int.from_bytes(data[:8], "little") + 1
    with pytest.raises(PayloadRefused, match="lost: not in"):
        read_loss(size.to_bytes(8, "little") + data[8:])


def test_what_has_rows_is_no_loss():
    assert read_loss(b"\x20" + bytes(7) + b'{"reward":{}}') is None
    assert read_loss(b"") is None
