"""Manifests, chunks and needs: what is signed holds, and nothing else does."""

import hashlib
import json
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import BadSignature, PayloadRefused, PayloadTooLarge
from quarl_device.wire.envelope import seal
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.limits import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_INLINE_PUSH_BYTES,
    MAX_NEEDED_CHUNKS,
    MAX_POLICY_BYTES,
)
from quarl_device.wire.manifest import (
    Manifest,
    decode_header,
    decode_manifest,
    encode_manifest,
    is_manifest,
    make_manifest,
)
from quarl_device.wire.messages import Need
from quarl_device.wire.push import Exploration, PushHeader, encode_push, fits_inline
from quarl_device.wire.topics import Topics

KEY = LearnerKey(bytes(range(32)))
POLICY = bytes(range(256)) * 5
SHA256 = hashlib.sha256(POLICY).hexdigest()


def header(**changes):
    return PushHeader(
        **{"epoch": 3, "version": 4, "env_steps": 5, "sha256": SHA256, "exploration": Exploration(), **changes}
    )


MANIFEST = make_manifest(header(), POLICY, chunk_bytes=500)
PAYLOAD = encode_manifest(MANIFEST, KEY.sign)


def signed(size_bytes, chunk_bytes, digests):
    return seal(b"QMAN", header().encode(), struct.pack("<QI", size_bytes, chunk_bytes) + digests, KEY.sign, what="x")


def test_a_manifest_reads_back_equal():
    found = decode_manifest(PAYLOAD, KEY.public.verify)
    assert (found.size_bytes, found.chunk_bytes, found.count, found.version) == (1280, 500, 3, (3, 4))
    assert found.digests == MANIFEST.digests
    assert found.header.encode() == header().encode()


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, len(PAYLOAD) - 1), bit=st.integers(0, 7))
def test_a_manifest_tampered_with_anywhere_is_refused(position, bit):
    data = bytearray(PAYLOAD)
    data[position] ^= 1 << bit
    with pytest.raises((BadSignature, PayloadRefused)):
        decode_manifest(bytes(data), KEY.public.verify)


@given(cut=st.integers(0, len(PAYLOAD) - 1))
@settings(deadline=None)
def test_a_truncated_manifest_is_refused(cut):
    with pytest.raises((BadSignature, PayloadRefused)):
        decode_manifest(PAYLOAD[:cut], KEY.public.verify)


def test_another_learners_manifest_is_refused():
    with pytest.raises(BadSignature):
        decode_manifest(PAYLOAD, LearnerKey(bytes([1]) * 32).public.verify)


@pytest.mark.parametrize(
    ("size_bytes", "chunk_bytes", "digests"),
    [
        (0, 500, 0),
        (1, 0, 1),
        (1280, 500, 2),
        (1280, 500, 4),
        (MAX_POLICY_BYTES + 1, MAX_CHUNK_BYTES, MAX_CHUNKS // 4 + 1),
        (2**63, MAX_CHUNK_BYTES, 3),
        (MAX_CHUNKS + 1, 1, MAX_CHUNKS + 1),
        (1280, MAX_CHUNK_BYTES + 1, 1),
    ],
)
def test_w4_signed_sizes_that_do_not_hold_are_refused(size_bytes, chunk_bytes, digests):
    with pytest.raises(PayloadRefused):
        decode_manifest(signed(size_bytes, chunk_bytes, bytes(32) * digests), KEY.public.verify)


def test_w4_a_body_without_sizes_and_a_payload_over_its_cap_are_refused():
    for body in (b"", bytes(11)):
        with pytest.raises(PayloadRefused):
            decode_manifest(seal(b"QMAN", header().encode(), body, KEY.sign, what="x"), KEY.public.verify)
    with pytest.raises(PayloadRefused, match="over its cap"):
        decode_manifest(b"QMAN" + bytes(MAX_INLINE_PUSH_BYTES), KEY.public.verify)


def test_a_manifest_of_the_largest_policy_fits_and_allocates_nothing_of_its_size():
    payload = signed(MAX_POLICY_BYTES, MAX_CHUNK_BYTES, bytes(32) * 1024)
    tracemalloc.start()
    try:
        assert decode_manifest(payload, KEY.public.verify).count == 1024
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert decode_manifest(signed(MAX_CHUNKS, 1, bytes(32) * MAX_CHUNKS), KEY.public.verify).count == MAX_CHUNKS


def test_a_policy_over_the_caps_is_not_sent():
    with pytest.raises(PayloadTooLarge):
        make_manifest(header(), bytes(MAX_POLICY_BYTES + 1))
    with pytest.raises(PayloadTooLarge):
        make_manifest(header(), bytes(MAX_CHUNKS + 1), chunk_bytes=1)


def test_each_chunk_holds_in_its_place_alone():
    chunks = [POLICY[:500], POLICY[500:1000], POLICY[1000:]]
    for index, chunk in enumerate(chunks):
        MANIFEST.check(MANIFEST.index_of(500 * index), chunk)
    for index, chunk in ((0, chunks[1][:-1]), (0, chunks[0] + b"x"), (2, chunks[2] + bytes(220)), (0, b""), (2, b"")):
        with pytest.raises(PayloadRefused, match="bytes, expected"):
            MANIFEST.check(index, chunk)
    for wrong in (bytes(500), bytes([chunks[0][0] ^ 1]) + chunks[0][1:]):
        with pytest.raises(PayloadRefused, match="another sha256"):
            MANIFEST.check(0, wrong)
    for offset in (1, 499, 1500, -500, 2**40):
        with pytest.raises(PayloadRefused, match="none begins"):
            MANIFEST.index_of(offset)


def test_the_inline_cap_is_exact():
    room = MAX_INLINE_PUSH_BYTES - len(encode_push(header(), b"", KEY.sign))
    assert fits_inline(header(), room)
    assert not fits_inline(header(), room + 1)
    assert len(encode_push(header(), bytes(room), KEY.sign)) == MAX_INLINE_PUSH_BYTES
    with pytest.raises(PayloadTooLarge):
        encode_push(header(), bytes(room + 1), KEY.sign)


def test_pushes_and_manifests_are_told_apart_and_both_have_a_header():
    push = encode_push(header(version=9), POLICY, KEY.sign)
    assert (is_manifest(PAYLOAD), is_manifest(push)) == (True, False)
    assert decode_header(PAYLOAD, KEY.public.verify).version == 4
    assert decode_header(push, KEY.public.verify).version == 9
    # One kind is never taken for the other, though both are signed by the same key.
    with pytest.raises(PayloadRefused):
        decode_manifest(push, KEY.public.verify)
    for junk in (b"", b"QXXX" + bytes(200)):
        with pytest.raises(PayloadRefused):
            decode_header(junk, KEY.public.verify)


def test_a_topic_says_where_a_chunk_belongs():
    topics = Topics("lab")
    assert topics.chunk_of(topics.blob(SHA256, 65_536)) == (SHA256, 65_536)
    assert topics.blobs(SHA256) == f"q/v1/lab/blob/{SHA256}/+"
    for topic in (
        topics.blob("ab", 0), topics.blob(SHA256, -1), f"q/v1/lab/blob/{SHA256}/", f"q/v1/lab/blob/{SHA256}/1x",
        f"q/v1/lab/blob/{SHA256}/٣", f"q/v1/lab/blob/{SHA256}/{10**8}", f"q/v1/other/blob/{SHA256}/0", "x", "",
    ):  # fmt: skip
        with pytest.raises(PayloadRefused):
            topics.chunk_of(topic)


def test_w4_a_need_that_does_not_hold_is_refused():
    whole = json.loads(Need(sha256=SHA256, offsets=(0, 65_536)).encode())
    for changes in (
        {"sha256": "ab"}, {"sha256": SHA256.upper()}, {"offsets": []}, {"offsets": [5, 5]}, {"offsets": [6, 5]},
        {"offsets": [-1]}, {"offsets": [True]}, {"offsets": [0.0]}, {"offsets": ["0"]}, {"offsets": [MAX_POLICY_BYTES]},
        {"offsets": list(range(MAX_NEEDED_CHUNKS + 1))}, {"offsets": {}}, {"offsets": [[0]]}, {"schema": 2},
    ):  # fmt: skip
        with pytest.raises(PayloadRefused):
            Need.decode(json.dumps({**whole, **changes}).encode())


@given(size=st.integers(1, 4_000), chunk_bytes=st.integers(1, 700))
@settings(deadline=None)
def test_every_policy_is_the_sum_of_its_chunks(size, chunk_bytes):
    policy = bytes(number % 251 for number in range(size))
    manifest = make_manifest(header(), policy, chunk_bytes=chunk_bytes)
    assert isinstance(decode_manifest(encode_manifest(manifest, KEY.sign), KEY.public.verify), Manifest)
    parts = [policy[start : start + chunk_bytes] for start in range(0, size, chunk_bytes)]
    assert manifest.count == len(parts)
    for index, part in enumerate(parts):
        manifest.check(manifest.index_of(index * chunk_bytes), part)
