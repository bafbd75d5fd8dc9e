"""One policy file from chunks: what is refused, what is asked for, and which policy wins."""

import hashlib
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.fetch import Fetch
from quarl_device.errors import PayloadRefused
from quarl_device.wire.manifest import Manifest, make_manifest
from quarl_device.wire.push import Exploration, PushHeader

CHUNK = 10


def policy_of(version, chunks=20):
    return random.Random(version).randbytes(CHUNK * chunks - 3)


def manifest_of(version, *, epoch=1, policy=None, sha256=None):
    policy = policy_of(version) if policy is None else policy
    sha256 = sha256 or hashlib.sha256(policy).hexdigest()
    header = PushHeader(epoch=epoch, version=version, env_steps=0, sha256=sha256, exploration=Exploration())
    return make_manifest(header, policy, chunk_bytes=CHUNK)


def give(fetch, version, *indices, now_s=0.0, policy=None):
    """Deliver chunks of a version; return what the last of them made whole."""
    policy = policy_of(version) if policy is None else policy
    sha256, whole = hashlib.sha256(policy).hexdigest(), None
    for index in indices:
        whole = fetch.chunk(sha256, index * CHUNK, policy[index * CHUNK : (index + 1) * CHUNK], now_s)
    return whole


@pytest.fixture
def fetch():
    return Fetch(random.Random(0))


@settings(deadline=None)
@given(order=st.permutations(range(20)), again=st.lists(st.integers(0, 19), max_size=10))
def test_in_any_order_and_with_duplicates_it_becomes_whole_once(order, again):
    fetch = Fetch(random.Random(0))
    fetch.want(manifest_of(1), 0.0)
    first, last = list(order[:-1]), order[-1]
    assert give(fetch, 1, *first, *[index for index in again if index != last]) is None
    header, policy = give(fetch, 1, last)
    assert (header.version, policy) == (1, policy_of(1))
    assert fetch.manifest is None
    assert (fetch.counters.kept, fetch.counters.completed) == (20, 1)


def test_f7_what_does_not_belong_is_counted_and_hurts_nothing(fetch):
    fetch.want(manifest_of(1), 0.0)
    good, sha256 = policy_of(1), manifest_of(1).header.sha256
    for offset, payload in (
        (0, good[:CHUNK] + b"x"), (0, good[: CHUNK - 1]), (0, b""), (0, bytes(CHUNK)), (CHUNK, good[:CHUNK]),
        (3, good[3 : 3 + CHUNK]), (20 * CHUNK, good[:CHUNK]), (10**8, b""), (19 * CHUNK, bytes(CHUNK)),
    ):  # fmt: skip
        with pytest.raises(PayloadRefused):
            fetch.chunk(sha256, offset, payload, 0.0)
    assert give(fetch, 2, *range(20)) is None
    assert (fetch.counters.refused, fetch.counters.foreign, fetch.held) == (9, 20, 0)
    assert give(fetch, 1, *range(20))[1] == good


def test_f8_endless_chunks_do_not_grow_what_is_held_nor_keep_it_from_asking(fetch):
    fetch.want(manifest_of(1), 0.0)
    assert fetch.ask(0.0) is not None
    give(fetch, 1, 0)
    asked, now_s = 0, 0.0
    while now_s < 300.0:
        now_s += 0.05
        give(fetch, 1, 0, now_s=now_s)
        asked += fetch.ask(now_s) is not None
    assert fetch.held == 1
    assert asked >= 5


def test_it_says_that_it_listens_from_the_end_and_waits_while_a_fan_out_runs(fetch):
    fetch.want(manifest_of(1), 0.0)
    assert fetch.ask(0.0).offsets == tuple(index * CHUNK for index in range(12, 20))
    for index in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14):
        give(fetch, 1, index, now_s=0.001 * index)
        assert fetch.ask(0.001 * index) is None
    # The end of the fan-out shows at once what it left out.
    give(fetch, 1, 15, 16, 17, now_s=0.02)
    assert fetch.ask(0.02).offsets == (5 * CHUNK,)
    assert 0.05 < fetch.wait_s(0.02) < 1.5


def test_where_only_answers_come_it_asks_on_a_small_window_at_a_time(fetch):
    fetch.want(manifest_of(1), 0.0)
    asked = set(fetch.ask(0.0).offsets)
    most = 0
    for step in range(1, 20):
        index = max(asked) // CHUNK
        asked.discard(index * CHUNK)
        whole = give(fetch, 1, index, now_s=0.001 * step)
        need = fetch.ask(0.001 * step)
        asked |= set(need.offsets) if need else set()
        most = max(most, len(asked))
    assert whole is None
    assert most == 8
    assert give(fetch, 1, 0) is not None


def test_silence_makes_it_ask_again_later_and_later(fetch):
    fetch.want(manifest_of(1), 0.0)
    times, now_s = [], 0.0
    while now_s < 300.0:
        if fetch.ask(now_s) is not None:
            times.append(now_s)
        now_s += 0.01
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert gaps[0] < 2.0
    assert 20.0 < gaps[-1] < 40.0
    assert len(times) < 20


def test_two_devices_that_lost_the_same_ask_at_different_times():
    times = set()
    for seed in range(20):
        fetch = Fetch(random.Random(seed))
        fetch.want(manifest_of(1), 0.0)
        fetch.ask(0.0)
        times.add(round(fetch.wait_s(0.0), 3))
    assert len(times) > 10


def test_after_a_reconnection_it_asks_at_once_for_what_is_missing(fetch):
    fetch.want(manifest_of(1), 0.0)
    fetch.ask(0.0)
    give(fetch, 1, *range(18), now_s=1.0)
    fetch.reconnected(50.0)
    assert fetch.ask(50.0).offsets == (18 * CHUNK, 19 * CHUNK)
    assert fetch.ask(50.0) is None
    assert give(fetch, 1, 18, 19, now_s=50.1)[1] == policy_of(1)


def test_the_newest_wins_while_less_than_half_is_here_but_not_twice_in_a_row(fetch):
    fetch.want(manifest_of(1), 0.0)
    give(fetch, 1, *range(9))
    fetch.want(manifest_of(2), 0.0)
    assert fetch.manifest.header.version == 2
    assert fetch.held == 0
    give(fetch, 2, 0)
    fetch.want(manifest_of(4), 0.0)
    fetch.want(manifest_of(3), 0.0)
    assert (fetch.manifest.header.version, fetch.waiting.header.version) == (2, 4)
    assert give(fetch, 2, *range(1, 20))[0].version == 2
    assert fetch.manifest.header.version == 4
    assert fetch.counters.abandoned == 1


def test_half_of_it_is_finished_and_versions_between_are_skipped(fetch):
    fetch.want(manifest_of(1), 0.0)
    give(fetch, 1, *range(10))
    for version in (2, 3, 4):
        fetch.want(manifest_of(version), 0.0)
    assert give(fetch, 1, *range(10, 20))[0].version == 1
    assert (fetch.manifest.header.version, fetch.waiting) == (4, None)


def test_a_new_learners_policy_replaces_whatever_is_here(fetch):
    fetch.want(manifest_of(9), 0.0)
    give(fetch, 9, *range(19))
    fetch.want(manifest_of(1, epoch=2, policy=policy_of(77)), 0.0)
    assert fetch.manifest.version == (2, 1)
    fetch.want(manifest_of(10), 0.0)
    assert (fetch.manifest.version, fetch.waiting) == ((2, 1), None)


def test_the_same_file_under_a_new_header_keeps_its_chunks(fetch):
    fetch.want(manifest_of(1), 0.0)
    give(fetch, 1, *range(3))
    fetch.want(manifest_of(5, policy=policy_of(1)), 0.0)
    assert fetch.held == 3
    assert give(fetch, 1, *range(3, 20))[0].version == 5


def test_w3_what_is_not_newer_than_the_policy_in_use_is_not_assembled(fetch):
    fetch.want(manifest_of(3), 0.0)
    give(fetch, 3, *range(15))
    fetch.want(manifest_of(4), 0.0)
    fetch.outdated((1, 3), 0.0)
    assert fetch.manifest.header.version == 4
    fetch.outdated((1, 4), 0.0)
    assert fetch.manifest is None
    assert fetch.wait_s(0.0) == float("inf")
    assert fetch.ask(1e9) is None


def test_a_manifest_alone_takes_no_room(fetch):
    digests = bytes(32) * 1024
    header = manifest_of(1).header
    fetch.want(Manifest(header=header, size_bytes=64 * 2**20, chunk_bytes=65_536, digests=digests), 0.0)
    assert fetch._chunks == [None] * 1024
