"""The records of a spool's files: damage costs those it hits and no others."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.loss import Loss
from quarl_device.spool.records import (
    BLOCK,
    FREED,
    HEADER_BYTES,
    LOST,
    PREAMBLE,
    encode_header,
    encode_loss,
    payload_of,
    read_header,
    scan,
)
from quarl_device.wire.limits import MAX_BLOCK_BYTES

LIFE = "00000000000000aa"


def record(sequence, payload=b"", *, kind=BLOCK, steps=3):
    head = encode_header(kind=kind, life=LIFE, task=2**63 + 5, sequence=sequence, steps=steps, payload=payload)
    return head + payload


def test_a_header_comes_back_as_it_was_written():
    data = record(2**53 - 1, b"payload", steps=2**32 - 1)
    header = read_header(data)
    assert (header.kind, header.life, header.task, header.sequence) == (BLOCK, LIFE, 2**63 + 5, 2**53 - 1)
    assert (header.steps, header.length, header.size_bytes) == (2**32 - 1, 7, HEADER_BYTES + 7)
    assert payload_of(header, data) == b"payload"
    assert len(data) == header.size_bytes


@pytest.mark.parametrize("cut", range(HEADER_BYTES))
def test_a_header_that_is_cut_off_is_none(cut):
    assert read_header(record(1)[:cut]) is None


@pytest.mark.parametrize("place", range(HEADER_BYTES))
def test_a_header_with_any_byte_flipped_is_none(place):
    data = bytearray(record(1, b"abc"))
    data[place] ^= 0x10
    assert read_header(bytes(data)) is None


def test_a_header_that_claims_too_much_or_an_unknown_kind_is_none():
    import zlib

    for kind, length in ((BLOCK, MAX_BLOCK_BYTES + 1), (9, 3)):
        fields = struct.pack("<4sB3xQQQQIII", b"\xf5QS2", kind, 1, 2, 3, 4, 5, length, 0)
        assert read_header(fields + struct.pack("<I", zlib.crc32(fields)) + b"x" * 64) is None


def test_an_empty_file_and_a_bare_preamble_hold_nothing():
    for data in (b"", PREAMBLE[:3], PREAMBLE):
        found = scan(data)
        assert (found.records, found.damaged, found.lost_bytes, found.torn_bytes) == ([], [], 0, 0)


def test_all_kinds_are_found_in_order():
    data = PREAMBLE + record(4, b"one") + record(4, kind=FREED) + record(5, b"")
    found = scan(data)
    assert [(header.kind, header.sequence) for _, header in found.records] == [(BLOCK, 4), (FREED, 4), (BLOCK, 5)]
    assert (found.lost_bytes, found.torn_bytes) == (0, 0)


PAYLOADS = st.lists(
    # Payloads that look like records, among others.
    st.one_of(st.binary(max_size=60), st.just(b"\xf5QS2" * 9), st.just(record(7, b"inner")[:40])),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(PAYLOADS, st.data())
def test_a_torn_tail_costs_the_last_record_alone(payloads, data):
    records = [record(sequence, payload) for sequence, payload in enumerate(payloads)]
    whole = PREAMBLE + b"".join(records)
    cut = data.draw(st.integers(1, len(records[-1])))
    found = scan(whole[:-cut])
    assert [header.sequence for _, header in found.records] == list(range(len(records) - 1))
    assert found.torn_bytes == len(records[-1]) - cut
    assert found.lost_bytes == 0


@settings(deadline=None, max_examples=200)
@given(PAYLOADS, st.data())
def test_damage_anywhere_costs_what_it_hits_and_nothing_behind_it(payloads, data):
    records = [record(sequence, payload) for sequence, payload in enumerate(payloads)]
    whole = bytearray(PREAMBLE + b"".join(records))
    start = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=len(whole) - start))
    before = bytes(whole)
    whole[start : start + len(junk)] = junk
    ends = [len(PREAMBLE)]
    for one in records:
        ends.append(ends[-1] + len(one))
    spared = [n for n in range(len(records)) if whole[ends[n] : ends[n + 1]] == before[ends[n] : ends[n + 1]]]
    found = scan(bytes(whole))
    assert [header.sequence for _, header in found.records if header.life == LIFE] == spared
    for offset, header in found.records:
        assert payload_of(header, bytes(whole), offset) == payloads[header.sequence]


def test_a_payload_alone_that_is_damaged_says_whose_it_was():
    data = bytearray(PREAMBLE + record(0, b"x" * 50) + record(1, b"y" * 50, steps=16) + record(2, b"z" * 50))
    data[len(PREAMBLE) + 2 * HEADER_BYTES + 60] ^= 1
    found = scan(bytes(data))
    assert [header.sequence for _, header in found.records] == [0, 2]
    [lost] = found.damaged
    assert (lost.sequence, lost.steps) == (1, 16)
    assert found.lost_bytes == HEADER_BYTES + 50


def test_a_loss_comes_back_as_it_was_written_and_one_that_cannot_be_is_none():
    loss = Loss(life=LIFE, first=3, last=9, first_step=48, end_step=2**40, task=2**63 + 5)
    found = scan(PREAMBLE + b"".join(encode_loss(loss)))
    assert (found.losses, found.torn_bytes) == ([loss], 0)
    for payload in (b"", struct.pack("<QQ", 10, 2**40), struct.pack("<QQ", 3, 47)):
        head = encode_header(kind=LOST, life=LIFE, sequence=9, first_step=48, payload=payload)
        assert scan(PREAMBLE + head + payload).losses == []
