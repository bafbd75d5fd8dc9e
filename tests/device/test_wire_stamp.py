"""A block's place in its stream, read and changed without knowing what else is in it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import PayloadRefused, SpaceMismatch
from quarl_device.wire.block import Block, BlockCodec, BlockSpec
from quarl_device.wire.block_stamp import METADATA_BYTES, Stamp, read_stamp, restamped

SPEC = BlockSpec(observations=(ObservationSpec(key="o", shape=(3,)),), action=ActionSpec(kind="discrete", n=2))
CODEC = BlockCodec(SPEC)
HIGH = 2**53 - 1


def block(**fields):
    rows = np.zeros((2, 1), np.bool_)
    return Block(
        **{
            "boot_id": "0123456789abcdef", "sequence": 9, "base": 4, "first_step": 288, "dropped": (),
            "observation": {"o": np.arange(9, dtype=np.float32).reshape(3, 1, 3)},
            "action": np.array([[0], [1]], np.uint8), "reward": np.ones((2, 1), np.float32),
            "terminated": rows, "truncated": rows, "start": rows, "valid": ~rows,
            "policy_epoch": np.ones(2, np.uint32), "policy_version": np.ones(2, np.uint32),
            "final_index": np.zeros((0, 2), np.int32), "final_observation": {"o": np.zeros((0, 3), np.float32)},
            **fields,
        }
    )  # fmt: skip


def test_a_stamp_is_read_without_the_spec():
    stamp = read_stamp(CODEC.encode(block(dropped=((7, 8),))))
    assert stamp == Stamp(boot_id="0123456789abcdef", sequence=9, base=4, first_step=288, dropped=((7, 8),))


@given(
    base=st.integers(0, 9),
    first=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted).map(tuple), max_size=1),
)
def test_restamped_is_what_encode_would_have_written(base, first):
    dropped = tuple(first)
    again = restamped(CODEC.encode(block()), base=base, dropped=dropped)
    assert again == CODEC.encode(block(base=base, dropped=dropped))
    assert CODEC.decode(again).dropped == dropped


def test_what_says_so_already_is_not_copied():
    payload = CODEC.encode(block())
    assert restamped(payload, base=4) is payload


def test_a_place_that_does_not_hold_is_refused():
    payload = CODEC.encode(block())
    with pytest.raises(SpaceMismatch):
        restamped(payload, base=10)
    with pytest.raises(SpaceMismatch):
        restamped(payload, base=0, dropped=((9, 9),))


@pytest.mark.parametrize("spoil", [
    lambda p: b"", lambda p: p[:7], lambda p: p[:40], lambda p: p.replace(b"__metadata__", b"__metalata__"),
    lambda p: p.replace(b'"sequence":"9"', b'"sequence":"x"'), lambda p: b"\xff" * 8 + p[8:],
    lambda p: p.replace(b'"first_step":"288"', b'"first_step":"-28"'),
    lambda p: p.replace(b'"base":"4"', b'"base":"10"'),
])  # fmt: skip
def test_w4_what_has_no_sound_stamp_is_refused(spoil):
    with pytest.raises(PayloadRefused):
        read_stamp(spoil(CODEC.encode(block())))


def test_the_longest_metadata_fit_what_is_kept_free_for_them():
    ranges = tuple((HIGH - 300 + 4 * n, HIGH - 299 + 4 * n) for n in range(64))
    longest = block(sequence=HIGH, base=HIGH, first_step=HIGH, dropped=ranges)
    stamp = Stamp(boot_id=longest.boot_id, sequence=HIGH, base=HIGH, first_step=HIGH, dropped=ranges)
    payload = CODEC.encode(longest)
    assert read_stamp(payload) == stamp
    header = 8 + int.from_bytes(payload[:8], "little")
    assert header - payload.index(b'"__metadata__"') <= METADATA_BYTES
