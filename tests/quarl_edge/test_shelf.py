"""Which chunk goes out next."""

import pytest
from push_world import CHUNK, manifest_of, policy_of

from quarl_device.errors import PayloadRefused
from quarl_device.wire.messages import Need
from quarl_edge.learner.shelf import GATHER_S, REPEAT_S, Shelf


def put(shelf, version, now_s, chunks=4):
    policy = policy_of(version, chunks)
    manifest = manifest_of(version, policy)
    shelf.put(manifest, policy, now_s)
    return manifest


def need(manifest, *indices):
    return Need(sha256=manifest.header.sha256, offsets=tuple(index * CHUNK for index in indices))


def drain(shelf, now_s, audience=1):
    found = []
    while (chunk := shelf.next(now_s, audience)) is not None:
        found.append(chunk.offset // CHUNK)
    return found


def test_nothing_goes_out_before_somebody_listens():
    shelf = Shelf()
    manifest = put(shelf, 1, 0.0)
    assert drain(shelf, 100.0, audience=0) == []
    shelf.need("a", need(manifest, 3), 100.0)
    assert drain(shelf, 100.0) == [0, 1, 2, 3]


def test_the_fan_out_waits_for_all_who_are_there_but_not_for_long():
    shelf = Shelf()
    manifest = put(shelf, 1, 0.0)
    shelf.need("a", need(manifest, 3), 0.0)
    shelf.need("a", need(manifest, 3), 0.0)
    assert drain(shelf, 0.001, audience=2) == []
    assert 0 < shelf.wait_s(0.001) <= GATHER_S
    shelf.need("b", need(manifest, 3), 0.002)
    assert drain(shelf, 0.002, audience=2) == [0, 1, 2, 3]
    second = put(shelf, 2, 1.0)
    shelf.need("a", need(second, 3), 1.0)
    assert drain(shelf, 1.0 + GATHER_S, audience=2) == [0, 1, 2, 3]


def test_a_chunk_that_many_ask_for_goes_out_once_in_a_while():
    shelf = Shelf()
    manifest = put(shelf, 1, 0.0)
    shelf.need("a", need(manifest, 3), 0.0)
    drain(shelf, 0.0)
    for device in "abcdefgh":
        shelf.need(device, need(manifest, 1, 2), REPEAT_S)
    assert sorted(drain(shelf, REPEAT_S)) == [1, 2]
    shelf.need("a", need(manifest, 1), 1.5 * REPEAT_S)
    assert drain(shelf, 1.5 * REPEAT_S) == []
    shelf.need("a", need(manifest, 1), 2 * REPEAT_S)
    assert drain(shelf, 2 * REPEAT_S) == [1]
    assert (shelf.counters.fanned_out, shelf.counters.repaired, shelf.counters.spared) == (4, 3, 15)


def test_what_the_fan_out_is_still_to_bring_is_not_sent_twice():
    shelf = Shelf()
    manifest = put(shelf, 1, 0.0, chunks=6)
    shelf.need("a", need(manifest, 5), 0.0)
    assert [shelf.next(0.0, 1).offset // CHUNK for _ in range(3)] == [0, 1, 2]
    shelf.need("b", need(manifest, 0, 4), REPEAT_S)
    assert sorted(drain(shelf, REPEAT_S)) == [0, 3, 4, 5]


def test_repairs_and_a_fan_out_take_turns():
    shelf = Shelf()
    old = put(shelf, 1, 0.0, chunks=8)
    shelf.need("a", need(old, 7), 0.0)
    drain(shelf, 0.0)
    new = put(shelf, 2, 1.0, chunks=8)
    shelf.need("b", need(new, 7), 1.0)
    shelf.need("a", need(old, 0, 1, 2), 1.0)
    sent = [shelf.next(1.0, 1).sha256 == new.header.sha256 for _ in range(6)]
    assert sorted(sent) == [False] * 3 + [True] * 3
    assert sent in ([False, True] * 3, [True, False] * 3)


def test_two_policies_are_held_and_the_older_one_while_it_is_wanted():
    shelf = Shelf()
    first = put(shelf, 1, 0.0)
    shelf.need("slow", need(first, 3), 0.0)
    put(shelf, 2, 1.0)
    put(shelf, 3, 2.0)
    assert [version for _, version in shelf.held] == [1, 3]
    shelf.need("slow", need(first, 3), 9.0)
    put(shelf, 4, 18.0)
    assert [version for _, version in shelf.held] == [1, 4]
    put(shelf, 5, 19.5)
    assert [version for _, version in shelf.held] == [4, 5]


def test_a_device_that_asks_for_another_policy_wants_the_first_no_more():
    shelf = Shelf()
    first = put(shelf, 1, 0.0)
    shelf.need("a", need(first, 3), 0.0)
    second = put(shelf, 2, 0.1)
    shelf.need("a", need(second, 3), 0.2)
    put(shelf, 3, 0.3)
    assert [version for _, version in shelf.held] == [2, 3]
    # A question about one that is not held says so too.
    shelf.need("a", need(first, 3), 0.4)
    put(shelf, 4, 0.5)
    assert [version for _, version in shelf.held] == [3, 4]
    assert shelf.counters.strange == 1


def test_the_same_policy_again_changes_nothing():
    shelf = Shelf()
    manifest = put(shelf, 1, 0.0)
    shelf.need("a", need(manifest, 3), 0.0)
    drain(shelf, 0.0)
    put(shelf, 1, 1.0)
    assert not shelf.busy(1.0)
    assert drain(shelf, 1.0) == []
    assert len(shelf.held) == 1


def test_w4_a_question_for_what_does_not_exist_is_refused():
    shelf = Shelf()
    manifest = put(shelf, 1, 0.0)
    for offset in (1, 4 * CHUNK, 10**7):
        with pytest.raises(PayloadRefused):
            shelf.need("a", Need(sha256=manifest.header.sha256, offsets=(offset,)), 0.0)
    assert drain(shelf, 1.0) == []


def test_it_is_busy_until_the_newest_is_out():
    shelf = Shelf()
    assert not shelf.busy(0.0)
    manifest = put(shelf, 1, 0.0)
    # Devices need a moment to say that they listen; where nobody is, nothing waits.
    assert shelf.busy(0.01)
    assert not shelf.busy(0.2)
    shelf.need("a", need(manifest, 3), 0.3)
    assert shelf.busy(0.3)
    drain(shelf, 0.3)
    assert not shelf.busy(0.3)
    shelf.clear()
    assert not shelf.busy(0.0)


def test_who_asks_for_something_that_lies_elsewhere_wants_nothing_here_any_more():
    shelf = Shelf()
    old, new = put(shelf, 1, 0.0), put(shelf, 2, 0.0)
    shelf.need("pi", need(old, 0), 0.1)
    assert shelf.holds(old.header.sha256)
    assert not shelf.holds("0" * 64)
    shelf.asks_elsewhere("pi")
    put(shelf, 3, 0.2)
    assert not shelf.holds(old.header.sha256), "nobody asks for it, so the newest two stay"
    assert shelf.holds(new.header.sha256)
    assert shelf.counters.strange == 0
