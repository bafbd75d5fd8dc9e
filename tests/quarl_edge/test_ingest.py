from __future__ import annotations

import dataclasses
import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from block_factory import ACTION, BOOT, OBSERVATION, SPEC, World, boot_id, payload
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.contract import ObservationSpec
from quarl_device.errors import JournalError, UnsupportedSpace, UsageError
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.block_spec import MAX_SEQUENCE
from quarl_device.wire.limits import MAX_BLOCK_BYTES
from quarl_device.wire.loss import encode_loss
from quarl_device.wire.messages import Ack
from quarl_edge.algorithms.dqn import DqnConfig
from quarl_edge.ingest.credit import MAX_AHEAD
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.ingest.sessions import SessionTable, Verdict
from quarl_edge.replay.buffer import ReplayBuffer
from quarl_edge.replay.experience import ReplayExperience
from quarl_edge.replay.journal import Journal, iterate
from quarl_edge.replay.limiter import SampleToInsertRatio, default_error_buffer, smallest_error_buffer
from quarl_edge.replay.nstep import NStepAssembler

ACCEPT = Verdict.ACCEPT
CONFIG = DqnConfig(
    env_id="CartPole-v1",
    block_steps=8,
    batch_size=4,
    updates_per_call=2,
    samples_per_insert=1.0,
    learning_starts=16,
    replay_capacity=1_000,
    n_step=2,
    actors=1,
    journal_segment_bytes=4_096,
)


def open_bounded(directory: Path, **changes: object) -> Ingest:
    return Ingest.open(CONFIG.replace(**changes), SPEC, directory, epoch=7)


def open_ingest(directory: Path, **changes: object) -> Ingest:
    """With room for everything: nobody learns in these tests, and they are about the stream."""
    ingest = open_bounded(directory, **changes)
    ingest.experience.limiter = SampleToInsertRatio(1.0, 10**9, 1_000.0, insert_unit=8, sample_unit=8)
    return ingest


@pytest.fixture
def ingest(tmp_path):
    opened = open_ingest(tmp_path)
    yield opened
    opened.close()


def offer_all(
    ingest: Ingest, device: str, count: int, *, start: int = 0, world: World | None = None, **fields
) -> World:
    world = world or World(1, seed=3)
    for sequence in range(start, start + count):
        assert ingest.offer(device, payload(world.block(8, sequence, **fields))) is ACCEPT
    return world


def ring(ingest: Ingest) -> list:
    replay = ingest.replay
    batch = replay.sample(1, 400)
    return [batch.observation.tolist(), batch.reward.tolist(), batch.discount.tolist(), batch.next_observation.tolist()]


# -- storing -----------------------------------------------------------------------------------------------------------


def test_a_block_becomes_transitions_and_an_ack(ingest):
    ingest.opened("pi", BOOT)
    ((device, ack),) = ingest.acks()
    assert (device, ack.boot_id, ack.epoch, ack.inserted, ack.durable) == ("pi", BOOT, 7, -1, -1)
    assert ack.credit >= 2
    offer_all(ingest, "pi", 3)
    ((_, ack),) = ingest.acks()
    assert (ack.inserted, ack.durable) == (2, 2)
    assert ack.decode(ack.encode()) == ack
    assert ingest.acks() == []
    assert ingest.env_steps == ingest.counters["env_steps"] == 24
    # n = 2: the last row waits for its second step, unless its episode is over.
    assert 23 <= len(ingest.replay) <= 24
    assert ingest.limiter.inserts == len(ingest.replay)


def test_w1_a_block_that_comes_twice_is_stored_once(ingest):
    data = payload(World(1, end_chance=0.0).block(8))
    assert ingest.offer("pi", data) is ACCEPT
    ingest.acks()
    assert ingest.offer("pi", data) is Verdict.DUPLICATE
    assert (ingest.env_steps, ingest.counters["duplicates"]) == (8, 1)
    # The ack of the first one was lost, so it is said again.
    assert [ack.inserted for _, ack in ingest.acks()] == [0]
    assert len(list(iterate(ingest._journal.directory))) == 1


def test_a_gap_is_not_stored_and_says_where_it_stands(ingest):
    world = offer_all(ingest, "pi", 1)
    ingest.acks()
    assert ingest.offer("pi", payload(world.block(8, 2))) is Verdict.GAP
    assert [ack.inserted for _, ack in ingest.acks()] == [0]
    assert ingest.counters["gaps"] == 1


def test_an_earlier_life_still_comes_and_is_acknowledged_under_its_own_name(ingest):
    """The actor was killed and has started again: its spool brings what it had made before."""
    one, two = boot_id(1), boot_id(2)
    world = offer_all(ingest, "pi", 2, boot=one)
    ingest.acks()
    ingest.opened("pi", one)
    ((_, ack),) = ingest.acks()
    assert (ack.boot_id, ack.inserted) == (one, 1)
    assert ack.credit > 2
    assert ingest.offer("pi", payload(world.block(8, 1, boot=one))) is Verdict.DUPLICATE
    offer_all(ingest, "pi", 1, boot=one, start=2, world=world)
    offer_all(ingest, "pi", 1, boot=two)
    assert {(ack.boot_id, ack.inserted) for _, ack in ingest.acks()} == {(one, 2), (two, 0)}
    assert (ingest.counters["blocks"], ingest.counters["duplicates"], ingest.counters["lost_steps"]) == (4, 1, 0)


def test_what_an_actor_gave_up_is_on_the_account_in_steps(ingest, caplog):
    world = World(1, seed=3)
    ingest.offer("pi", payload(world.block(8, 0, first_step=0)))
    ingest.offer("pi", payload(world.block(8, 3, base=3, first_step=24)))
    assert (ingest.counters["lost_blocks"], ingest.counters["lost_steps"], ingest.env_steps) == (2, 16, 16)
    assert ingest.sessions.account("pi").stored_steps == 16
    assert "16 steps of pi before block 3 never came" in caplog.text


def test_what_an_actor_says_to_be_lost_is_on_the_account_once_and_survives_a_resume(tmp_path, caplog):
    """Nothing follows it in its life: an actor was killed after it had given up the last blocks."""
    ingest, world = open_ingest(tmp_path), World(1, seed=3)
    told = encode_loss(boot_id=BOOT, first=1, last=4, first_step=8, end_step=40)
    other = encode_loss(boot_id=boot_id(2), first=0, last=1, first_step=0, end_step=16)
    assert ingest.offer("pi", payload(world.block(8, 0, first_step=0))) is ACCEPT
    assert [ingest.offer("pi", told), ingest.offer("pi", told)] == [ACCEPT, Verdict.DUPLICATE]
    assert ingest.offer("pi", other) is ACCEPT
    assert "32 steps of pi up to block 4 never come: lost, given up or discarded on the device" in caplog.text
    assert {(ack.boot_id, ack.durable) for _, ack in ingest.acks()} == {(BOOT, 4), (boot_id(2), 1)}
    wanted = ingest.counters
    assert (wanted["blocks"], wanted["lost_blocks"], wanted["lost_steps"], ingest.env_steps) == (1, 6, 48, 8)
    ingest.close()
    again = open_ingest(tmp_path)
    again.rebuild()
    assert {**again.counters, "duplicates": 1} == wanted
    assert again.offer("pi", told) is Verdict.DUPLICATE
    again.close()


def test_a_loss_that_the_journal_refuses_is_not_acknowledged(ingest, monkeypatch):
    told = encode_loss(boot_id=BOOT, first=0, last=4, first_step=0, end_step=40)
    with monkeypatch.context() as patch:
        patch.setattr(ingest._journal, "append", lambda *_: (_ for _ in ()).throw(JournalError("full")))
        assert ingest.offer("pi", told) is None
    assert (ingest.counters["lost_steps"], ingest.blocked) == (0, "full")
    assert ingest.offer("pi", told) is ACCEPT
    assert (ingest.counters["lost_steps"], ingest.blocked) == (40, "")


@settings(max_examples=40, deadline=None)
@given(
    order=st.lists(st.integers(0, 9), max_size=60),
    seed=st.integers(0, 99),
)
def test_w1_exactly_once_through_a_bad_broker(tmp_path_factory, order, seed):
    """Whatever is lost, repeated or reordered on the way, after the resends replay holds every step once."""
    world = World(1, seed=seed)
    blocks = [payload(world.block(4, sequence)) for sequence in range(10)]
    ingest = open_ingest(tmp_path_factory.mktemp("j"), n_step=1)
    for sequence in order:
        ingest.offer("pi", blocks[sequence])
    for _ in range(10):
        acked = ingest.sessions.expected("pi") or 0
        for sequence in range(acked, 10):
            ingest.offer("pi", blocks[sequence])
    kept = ingest.counters
    ingest.close()
    assert kept["blocks"] == 10
    assert kept["lost_blocks"] == 0
    assert kept["transitions"] == kept["env_steps"] == 4 * kept["blocks"]


# -- refusing (W4) -----------------------------------------------------------------------------------------------------


def broken(kind: str) -> bytes:
    block = World(1, end_chance=0.0).block(8, 0)
    if kind == "nan":
        block.reward[3, 0] = np.nan
    elif kind == "action":
        block.action[3, 0] = 200
    elif kind == "space":
        other = BlockSpec(
            observations=(ObservationSpec(key="observation", shape=(2,), dtype="float64"),), action=ACTION
        )
        wide = {"observation": block.observation["observation"].astype(np.float64)}
        finals = {"observation": block.final_observation["observation"].astype(np.float64)}
        return BlockCodec(other).encode(dataclasses.replace(block, observation=wide, final_observation=finals))
    elif kind == "cut":
        return payload(block)[:-5]
    elif kind == "huge":
        return payload(block) + bytes(MAX_BLOCK_BYTES)
    return payload(block)


@pytest.mark.parametrize("kind", ["nan", "action", "space", "cut", "huge"])
def test_w4_a_payload_that_does_not_hold_is_refused_by_name_and_hurts_nothing(ingest, kind, caplog):
    assert ingest.offer("bad", broken(kind)) is None
    assert ingest.refused == {34: 1}
    assert "payload of bad refused" in caplog.text
    # Its identity could be read, so the device is told not to send it again.
    ((device, ack),) = ingest.acks()
    assert (device, ack.inserted, dict(ack.refused)) == ("bad", 0, {0: 34})
    offer_all(ingest, "good", 2)
    assert ingest.offer("bad", payload(World(1).block(8, 1))) is ACCEPT
    assert ingest.env_steps == 24


@pytest.mark.parametrize("data", [b"", b"x", bytes(8), b"\xff" * 100, bytes(2 * MAX_BLOCK_BYTES), b"{}" * 1_000])
def test_w4_noise_is_refused_and_acknowledged_to_nobody(ingest, data):
    assert ingest.offer("bad", data) is None
    assert ingest.refused == {34: 1}
    assert ingest.acks() == []
    assert ingest.counters["refused"] == {"34": 1}


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 900), value=st.integers(0, 255), cut=st.integers(0, 900))
def test_w4_damaged_payloads_never_raise(tmp_path_factory, place, value, cut):
    ingest = open_ingest(tmp_path_factory.mktemp("j"))
    data = bytearray(payload(World(1).block(8, 0)))
    data[place % len(data)] = value
    ingest.offer("pi", bytes(data[: len(data) - cut % len(data)]))
    assert ingest.offer("other", payload(World(1).block(8, 0))) is ACCEPT
    ingest.acks()
    ingest.close()


def test_refusals_do_not_flood_the_log(ingest, caplog):
    for _ in range(200):
        ingest.offer("bad", b"noise")
    assert ingest.refused == {34: 200}
    assert len(caplog.records) < 30


# -- the journal fails -------------------------------------------------------------------------------------------------


def test_w2_what_the_journal_refuses_is_neither_stored_nor_acknowledged(ingest, monkeypatch, caplog):
    world = offer_all(ingest, "pi", 2)
    ingest.acks()
    steps, inserted = ingest.env_steps, ingest.replay.inserted
    data = payload(world.block(8, 2))

    def full(_device: str, _payload: bytes) -> int:
        raise JournalError("journal cannot be written: /somewhere: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ingest._journal, "append", full)
        for _ in range(3):
            assert ingest.offer("pi", data) is None
        assert "No space left" in ingest.blocked
        assert "/somewhere" in ingest.blocked
        assert [ack.durable for _, ack in ingest.acks()] in ([], [1])
        assert (ingest.env_steps, ingest.replay.inserted) == (steps, inserted)
    assert caplog.text.count("not stored") == 1
    # Space is there again: the resend goes on as if nothing had been.
    assert ingest.offer("pi", data) is ACCEPT
    assert ingest.blocked == ""
    assert [(ack.inserted, ack.durable) for _, ack in ingest.acks()] == [(2, 2)]


def test_w1_a_failed_fsync_does_not_have_a_block_stored_twice(tmp_path, monkeypatch):
    ingest = open_ingest(tmp_path, journal_fsync_interval_s=1e-6)
    world = World(1, seed=3)
    blocks = [payload(world.block(8, sequence)) for sequence in range(3)]

    def broken(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert ingest.offer("pi", blocks[0]) is ACCEPT
    with monkeypatch.context() as patch:
        patch.setattr("quarl_edge.replay.journal.os.fdatasync", broken)
        assert ingest.offer("pi", blocks[1]) is ACCEPT, "it survives kill -9, which is what durable says"
        with pytest.raises(JournalError, match="Input/output error"):
            ingest.sync()
    assert ingest.offer("pi", blocks[1]) is Verdict.DUPLICATE
    assert ingest.offer("pi", blocks[2]) is ACCEPT
    steps, transitions = ingest.env_steps, ingest.replay.inserted
    ingest.close()
    again = open_ingest(tmp_path)
    assert again.rebuild().blocks == 3
    assert (again.env_steps, again.replay.inserted) == (steps, transitions)
    again.close()


def test_w1_a_journal_that_holds_a_block_twice_fills_replay_once(tmp_path, caplog):
    """However it came about: an older version wrote one again after a failed fsync."""
    world = World(1, seed=3)
    blocks = [payload(world.block(8, sequence)) for sequence in (0, 1)]
    journal = Journal(tmp_path)
    for data in (blocks[0], blocks[0], blocks[1], blocks[0]):
        journal.append("pi", data)
    journal.close()
    again = open_ingest(tmp_path)
    again.rebuild()
    assert (again.env_steps, again.counters["blocks"], again.counters["duplicates"]) == (16, 2, 2)
    assert again.sessions.account("pi").stored_steps == 16
    assert again.replay.inserted <= 16
    assert "twice" in caplog.text
    again.close()


def test_blocks_come_in_while_the_disk_takes_its_time(tmp_path, monkeypatch):
    ingest = open_ingest(tmp_path, journal_fsync_interval_s=1e-6)
    world = offer_all(ingest, "pi", 1)
    began, may_end = threading.Event(), threading.Event()

    def slow(_file: int) -> None:
        began.set()
        assert may_end.wait(30)

    with monkeypatch.context() as patch:
        patch.setattr("quarl_edge.replay.journal.os.fdatasync", slow)
        thread = threading.Thread(target=ingest.sync, daemon=True)
        thread.start()
        assert began.wait(30)
        offering = threading.Thread(target=offer_all, args=(ingest, "pi", 1), kwargs={"start": 1, "world": world})
        offering.start()
        offering.join(10)
        held_up = offering.is_alive()
        may_end.set()
        thread.join(30)
        offering.join(30)
    assert not held_up
    assert ingest.env_steps == 16
    ingest.close()


# -- credit ------------------------------------------------------------------------------------------------------------


def credits_of(ingest: Ingest) -> dict[str, int]:
    return {device: ack.credit for device, ack in ingest.acks()}


def test_credit_shares_the_room_and_stops_at_the_window(tmp_path):
    ingest = open_bounded(tmp_path)
    for device in ("a", "b"):
        ingest.opened(device, BOOT)
    room = ingest.limiter.insert_room()
    granted = credits_of(ingest)
    assert granted == {"a": room // 2 // 8, "b": room // 2 // 8}
    assert granted["a"] >= 2
    sent = {"a": 0, "b": 0}
    worlds = {"a": World(1, seed=1), "b": World(1, seed=2)}
    for _ in range(1_000):
        ready = [device for device in sent if sent[device] < granted[device]]
        if not ready:
            break
        offer_all(ingest, ready[0], 1, start=sent[ready[0]], world=worlds[ready[0]])
        sent[ready[0]] += 1
        granted |= credits_of(ingest)
    assert ready == [], "the learner does not learn, so credit must end"
    assert ingest.limiter.insert_room() == 0
    assert ingest.limiter.can_sample(8)
    while ingest.limiter.can_sample(8):
        ingest.limiter.sample(8)
    assert all(credit > sent[device] for device, credit in credits_of(ingest).items())
    ingest.close()


def test_a_device_far_past_its_credit_starves_nobody(tmp_path):
    """Three actors heed their credit; a fourth sends whatever it can, all the time."""
    ingest = open_bounded(tmp_path, actors=4)
    worlds = {name: World(1, seed=i) for i, name in enumerate(("a", "b", "c"))}
    sent, credit = dict.fromkeys(worlds, 0), dict.fromkeys(worlds, 0)
    hostile, flood = World(1, seed=9), 0
    next_of_flood = payload(hostile.block(8, flood, boot=boot_id(5)))
    for name in worlds:
        ingest.opened(name, BOOT)
    widest = ingest.limiter.insert_room()
    rounds = 60
    for _ in range(rounds):
        for _ in range(30):
            if ingest.offer("flood", next_of_flood) is ACCEPT:
                flood += 1
                next_of_flood = payload(hostile.block(8, flood, boot=boot_id(5)))
        credit |= {name: bound for name, bound in credits_of(ingest).items() if name in worlds}
        for name, world in worlds.items():
            if sent[name] < credit[name]:
                offer_all(ingest, name, 1, start=sent[name], world=world)
                sent[name] += 1
        while ingest.limiter.can_sample(8):
            ingest.limiter.sample(8)
        widest = max(widest, ingest.limiter.insert_room())
    assert min(sent.values()) >= rounds - 2, "honest devices go on in every round"
    # It had all the room that the others left, and not a block more.
    limiter = ingest.limiter
    assert flood < 30 * rounds
    assert limiter.inserts - limiter.samples - limiter.min_size <= widest + 8 * (len(worlds) + 1)
    assert ingest.counters["gaps"] > rounds, "and what was too much comes again later"
    ingest.close()


def test_after_a_resume_what_was_under_way_under_the_old_credit_waits_for_room_and_no_longer(tmp_path):
    ingest = open_bounded(tmp_path)
    ingest.opened("pi", BOOT)
    credit = credits_of(ingest)["pi"]
    world = World(1, seed=3)
    blocks = [payload(world.block(8, sequence)) for sequence in range(credit)]
    for data in blocks[:-1]:
        assert ingest.offer("pi", data) is ACCEPT
    ingest.close()
    again = open_bounded(tmp_path)
    again.rebuild()
    again.limiter.insert(again.limiter.insert_room())
    assert again.offer("pi", blocks[-1]) is Verdict.GAP
    ((_, ack),) = again.acks()
    assert (ack.inserted, ack.credit) == (credit - 2, credit - 1), "none beyond what is stored"
    while again.limiter.can_sample(8):
        again.limiter.sample(8)
    assert again.offer("pi", blocks[-1]) is ACCEPT, "where the learner has to wait there is room"
    again.close()


def test_credit_counts_from_the_block_that_can_still_come():
    """A life that this learner meets late, and one whose actor gave blocks up: neither uses credit for these."""
    table = SessionTable(1)
    table.open("pi", BOOT)
    table.grant("pi", 3)
    assert [table.admit("pi", BOOT, sequence, 40) for sequence in (40, 41)] == [ACCEPT] * 2
    assert table.has_credit("pi", BOOT)
    assert table.examine("pi", BOOT, 50, 50) is ACCEPT
    assert table.has_credit("pi", BOOT), "the third of three, though eight were given up"
    table.accept("pi", BOOT)
    assert not table.has_credit("pi", BOOT)
    assert table.ack("pi").credit == 51
    assert not table.has_credit("nobody", BOOT)


def test_a_new_life_is_no_new_credit(tmp_path):
    ingest = open_bounded(tmp_path)
    ingest.limiter.insert(ingest.limiter.insert_room())
    for life in range(40):
        assert ingest.offer("pi", payload(World(1).block(8, 0, boot=boot_id(life)))) is Verdict.GAP
    assert ingest.env_steps == 0
    ingest.close()


def test_a_dead_device_gives_its_share_back_and_gets_no_acks(tmp_path):
    ingest = open_bounded(tmp_path)
    for device in ("a", "b"):
        ingest.opened(device, BOOT)
    before = credits_of(ingest)
    ingest.closed("b")
    after = credits_of(ingest)
    assert after["a"] > before["a"]
    assert "b" not in after
    ingest.closed("nobody")
    # A block that was under way brings it back.
    offer_all(ingest, "b", 1)
    assert "b" in credits_of(ingest)
    ingest.close()


def test_a_renewed_birth_is_answered(ingest):
    ingest.opened("a", BOOT)
    first = ingest.acks()
    assert ingest.acks() == []
    ingest.opened("a", BOOT)
    assert ingest.acks() == first
    ingest.opened("b", BOOT, 40)
    acks = dict(ingest.acks())
    assert acks["b"].inserted == 39
    assert acks["b"].credit > 40


def test_credit_is_capped(tmp_path):
    ingest = open_ingest(tmp_path, learning_starts=1_000)
    ingest.opened("a", BOOT)
    assert credits_of(ingest) == {"a": MAX_AHEAD}
    ingest.close()


def test_an_evicted_device_is_no_longer_live(tmp_path):
    ingest = Ingest(
        SPEC,
        sessions=SessionTable(1, max_devices=2),
        journal=Journal(tmp_path),
        experience=ReplayExperience(
            ReplayBuffer(100, observation=OBSERVATION, action=ACTION, seed=0),
            NStepAssembler(1, 0.9),
            SampleToInsertRatio(1.0, 10, 100.0),
        ),
    )
    for device in ("a", "b", "c"):
        ingest.opened(device, BOOT)
    assert set(credits_of(ingest)) == {"b", "c"}
    ingest.limiter.sample(50)
    assert set(credits_of(ingest)) == {"b", "c"}
    ingest.close()


@settings(max_examples=40, deadline=None)
@given(
    spi=st.sampled_from([0.5, 1.0, 8.0, 32.0]),
    starts=st.integers(1, 200),
    steps=st.integers(1, 12),
    envs=st.integers(1, 3),
    actors=st.integers(1, 4),
    sample_unit=st.integers(1, 600),
    n_step=st.integers(1, 3),
    default=st.booleans(),
    seed=st.integers(0, 99),
)
def test_actors_and_learner_never_wait_in_a_circle(
    tmp_path_factory, spi, starts, steps, envs, actors, sample_unit, n_step, default, seed
):
    """A simulated learner and actors in any order, acks arriving late: samples go on, and the ratio holds."""
    unit = steps * envs
    buffer = (
        default_error_buffer(spi, insert_unit=unit, sample_unit=sample_unit, actors=actors)
        if default
        else smallest_error_buffer(spi, insert_unit=unit, sample_unit=sample_unit)
    )
    limiter = SampleToInsertRatio(spi, starts, buffer, insert_unit=unit, sample_unit=sample_unit)
    ingest = Ingest(
        SPEC,
        sessions=SessionTable(1),
        journal=Journal(tmp_path_factory.mktemp("j")),
        experience=ReplayExperience(
            ReplayBuffer(10_000, observation=OBSERVATION, action=ACTION, seed=0),
            NStepAssembler(n_step, 0.9),
            limiter,
        ),
        block_transitions=unit,
    )
    worlds = {f"a{i}": World(envs, seed=seed + i) for i in range(actors)}
    sequence = dict.fromkeys(worlds, 0)
    credit = dict.fromkeys(worlds, 0)
    for name in worlds:
        ingest.opened(name, BOOT)
    rng = np.random.default_rng(seed)
    idle, widest = 0, limiter.insert_room()
    for _ in range(250):
        widest = max(widest, limiter.insert_room())
        ready = [name for name in worlds if sequence[name] < credit[name]]
        moved = False
        if ready and (rng.random() < 0.5 or not limiter.can_sample(sample_unit)):
            name = ready[int(rng.integers(len(ready)))]
            assert ingest.offer(name, payload(worlds[name].block(steps, sequence[name]))) is ACCEPT
            sequence[name] += 1
            moved = True
        elif limiter.can_sample(sample_unit):
            limiter.sample(sample_unit)
            moved = True
        if not moved or rng.random() < 0.3:
            credit |= credits_of(ingest)
        idle = 0 if moved else idle + 1
        assert idle < 2, f"standstill: {limiter.why_blocked(sample_unit)}"
    ingest.close()
    # Overshoot: what idle actors hold was once room, or one block for each.
    off = limiter.inserts * spi - limiter.samples - spi * starts
    assert off <= buffer + spi * (widest + unit * (actors + 1))


# -- resume ------------------------------------------------------------------------------------------------------------


def test_an_ordinary_resume_brings_everything_back(tmp_path):
    ingest = open_ingest(tmp_path)
    worlds = {name: World(1, seed=i) for i, name in enumerate(("a", "b"))}
    for sequence in range(20):
        for name, world in worlds.items():
            offer_all(ingest, name, 1, start=sequence, world=world)
    ingest.limiter.sample(40)
    with ingest.paused() as cut:
        state = ingest.replay.random_state()
    for name, world in worlds.items():
        offer_all(ingest, name, 3, start=20, world=world)
    wanted_counters, total = ingest.counters, ingest.replay.inserted
    ingest.replay.set_random_state(state)
    wanted = ring(ingest)
    acks = {name: ingest.sessions.ack(name) for name in worlds}
    ingest.close()

    again = open_ingest(tmp_path)
    rebuilt = again.rebuild()
    again.replay.set_random_state(state)
    again.limiter.restore_samples(cut.samples)
    assert (rebuilt.blocks, rebuilt.env_steps, rebuilt.discarded_bytes, rebuilt.torn_bytes) == (46, 368, 0, 0)
    assert ring(again) == wanted
    assert again.counters == wanted_counters
    assert (again.limiter.inserts, again.limiter.samples) == (total, 40)
    for name, world in worlds.items():
        assert again.sessions.ack(name).inserted == acks[name].inserted == 22
        assert again.offer(name, payload(World(1).block(8, 22))) is Verdict.DUPLICATE
        # The waiting rows of before go on in the next block.
        offer_all(again, name, 1, start=23, world=world)
    again.close()


def test_w2_everything_acknowledged_as_durable_is_there_after_a_crash(tmp_path):
    ingest = open_ingest(tmp_path)
    offer_all(ingest, "pi", 15)
    ((_, ack),) = ingest.acks()
    # As kill -9 does: nothing is closed or synced, only the lock goes with the process.
    os.close(ingest._journal._lock)
    again = open_ingest(tmp_path)
    again.rebuild()
    assert again.sessions.ack("pi").inserted >= ack.durable == 14
    assert again.env_steps == 15 * 8
    ingest._journal._lock = -1
    ingest.close()
    again.close()


def test_a_refused_block_does_not_stop_a_resume(tmp_path):
    """The refusal was acknowledged and is in no journal: the actor cannot send that block again."""
    ingest = open_ingest(tmp_path)
    world = offer_all(ingest, "pi", 2)
    bad = world.block(8, 2)
    bad.reward[0, 0] = np.inf
    assert ingest.offer("pi", payload(bad)) is None
    ingest.close()
    again = open_ingest(tmp_path)
    again.rebuild()
    assert again.offer("pi", payload(world.block(8, 3, base=3))) is ACCEPT
    again.close()


def test_a_lockstep_resume_discards_what_came_after(tmp_path):
    ingest = open_ingest(tmp_path)
    world = offer_all(ingest, "pi", 12)
    with ingest.paused() as cut:
        state = ingest.replay.random_state()
        wanted = ring(ingest)
        counters = ingest.counters
    assert cut.env_steps == 96
    offer_all(ingest, "pi", 9, start=12, world=world)
    ingest.close()

    again = open_ingest(tmp_path)
    rebuilt = again.rebuild(until=cut.journal_position)
    again.replay.set_random_state(state)
    assert rebuilt.discarded_bytes > 0
    assert ring(again) == wanted
    assert again.counters == counters
    assert again._journal.position == cut.journal_position
    # The actor is a new process and begins anew; so it did in the run that was never interrupted.
    offer_all(again, "pi", 1, boot=boot_id(5))
    again.close()


def test_old_segments_go_and_the_ring_still_lies_as_it_did(tmp_path):
    ingest = open_ingest(tmp_path, replay_capacity=100, n_step=3)
    world = World(2, seed=4)
    for sequence in range(300):
        offer_all(ingest, "pi", 1, start=sequence, world=world)
        if sequence % 50 == 49:
            with ingest.paused() as cut:
                state = ingest.replay.random_state()
            ingest.checkpointed(cut)
            wanted = ring(ingest)
    segments = len(list(tmp_path.glob("*.qj")))
    assert segments < 40
    assert next(iterate(tmp_path)).position > 0
    counters = ingest.counters
    ingest.close()

    again = open_ingest(tmp_path, replay_capacity=100, n_step=3)
    again.rebuild(until=cut.journal_position)
    again.replay.set_random_state(state)
    assert ring(again) == wanted
    assert again.replay.inserted == counters["transitions"]
    assert again.env_steps == cut.env_steps == 300 * 16
    assert again.limiter.inserts == counters["transitions"]
    again.close()


def test_the_checkpoint_before_the_last_can_still_be_resumed(tmp_path):
    ingest = open_ingest(tmp_path, replay_capacity=100)
    world = World(1, seed=4)
    cuts = []
    for sequence in range(400):
        offer_all(ingest, "pi", 1, start=sequence, world=world)
        if sequence % 40 == 39:
            with ingest.paused() as cut:
                cuts.append((cut, ingest.replay.random_state()))
                if sequence == 359:
                    previous = ring(ingest)
            ingest.checkpointed(cut)
    ingest.close()
    assert next(iterate(tmp_path)).position > 0
    cut, state = cuts[-2]
    again = open_ingest(tmp_path, replay_capacity=100)
    again.rebuild(until=cut.journal_position)
    again.replay.set_random_state(state)
    assert ring(again) == previous
    again.close()


def test_a_checkpoint_that_could_not_be_saved_costs_no_segment(tmp_path):
    """What is on disk is the one before it, however often the disk refuses since."""
    ingest = open_ingest(tmp_path, replay_capacity=100)
    world = offer_all(ingest, "pi", 40)
    with ingest.paused() as saved:
        state, wanted = ingest.replay.random_state(), ring(ingest)
    ingest.checkpointed(saved)
    for start in range(40, 400, 40):
        offer_all(ingest, "pi", 40, start=start, world=world)
        with ingest.paused():
            pass
    ingest.close()
    again = open_ingest(tmp_path, replay_capacity=100)
    again.rebuild(until=saved.journal_position)
    again.replay.set_random_state(state)
    assert ring(again) == wanted
    again.close()


def test_a_journal_of_other_spaces_is_refused(tmp_path):
    ingest = open_ingest(tmp_path)
    offer_all(ingest, "pi", 1)
    ingest.close()
    other = BlockSpec(observations=(ObservationSpec(key="observation", shape=(3,)),), action=ACTION)
    again = Ingest.open(CONFIG, other, tmp_path, epoch=1)
    with pytest.raises(JournalError, match="does not fit this environment"):
        again.rebuild()
    again.close()


def test_an_empty_journal_rebuilds_to_nothing(ingest):
    rebuilt = ingest.rebuild()
    assert (rebuilt.blocks, rebuilt.transitions, len(ingest.replay)) == (0, 0, 0)
    ingest.sync()


# -- construction and threads ---------------------------------------------------------------------------------------


def test_refuses_a_window_that_could_deadlock(tmp_path):
    with pytest.raises(UsageError, match="wait for each other"):
        open_ingest(tmp_path, error_buffer=2.0)


def test_refuses_what_replay_cannot_hold(tmp_path):
    keys = tuple(ObservationSpec(key=key, shape=(1,)) for key in "ab")
    with pytest.raises(UnsupportedSpace, match="one observation key"):
        Ingest.open(CONFIG, BlockSpec(observations=keys, action=ACTION), tmp_path, epoch=1)


def test_link_and_learner_threads_together(ingest):
    world = World(1, seed=1)
    blocks = [payload(world.block(8, sequence)) for sequence in range(300)]
    acked: list[int] = []
    failures: list[BaseException] = []

    def learner() -> None:
        try:
            while not acked or acked[-1] < 299:
                acked.extend(ack.inserted for _, ack in ingest.acks())
                ingest.sync()
                if ingest.limiter.can_sample(8):
                    ingest.replay.sample(2, 4)
                    ingest.limiter.sample(8)
                with ingest.paused() as cut:
                    assert cut.env_steps == 8 * ingest.counters["blocks"]
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=learner, daemon=True)
    thread.start()
    for data in blocks:
        assert ingest.offer("pi", data) is ACCEPT
    thread.join(30)
    assert not thread.is_alive()
    assert failures == []
    assert acked == sorted(acked)


@pytest.mark.parametrize("field", ["reward", "observation"])
def test_w4_absurd_but_finite_numbers_are_refused_and_never_journalled(tmp_path, field):
    """Sums and squares of them overflow, and a journal that holds them would end every resume."""
    ingest = open_ingest(tmp_path)
    block = World(1, end_chance=0.0).block(8, 0)
    absurd = {"reward": {"reward": np.full((8, 1), 3e38, np.float32)}}.get(
        field, {"observation": {"observation": np.full((9, 1, 2), 3e38, np.float32)}}
    )
    assert ingest.offer("pi", payload(dataclasses.replace(block, **absurd))) is None
    assert ingest.refused == {34: 1}
    assert ingest.env_steps == 0
    assert ingest.journal_position == 0 or not ingest.counters["blocks"]
    ingest.close()


def test_experience_over_the_lag_bound_is_refused_once_and_is_done_with(tmp_path):
    ingest = open_ingest(tmp_path, max_lag_versions=2)
    world = World(1)
    for version in (1, 2, 3, 4):
        ingest.lag.published(version, 100 * version)
    stale, fresh = payload(versions(world.block(4, 0), 1)), payload(versions(world.block(4, 1), 2))
    assert ingest.offer("pi", stale) is None
    assert ingest.refused == {39: 1}
    assert ingest.acks()[0][1].refused == {0: 39}
    assert ingest.offer("pi", fresh) is Verdict.ACCEPT
    assert ingest.lag.by_device()["pi"].versions == 2
    ingest.lag.published(9, 900)
    assert ingest.offer("pi", fresh) is Verdict.DUPLICATE, "a repetition is no new refusal"
    assert ingest.refused == {39: 1}
    ingest.close()


def test_a_resume_does_not_judge_lag_again(tmp_path):
    ingest = open_ingest(tmp_path)
    ingest.offer("pi", payload(versions(World(1).block(4, 0), 1)))
    ingest.close()
    again = open_ingest(tmp_path, max_lag_versions=1)
    again.lag.published(1, 1)
    again.lag.published(50, 1)
    assert again.rebuild().blocks == 1
    again.close()


def versions(block, version):
    """Made with one version of the learner of these tests."""
    shape = block.num_steps
    return dataclasses.replace(
        block, policy_epoch=np.full(shape, 7, np.uint32), policy_version=np.full(shape, version, np.uint32)
    )


def test_a_bound_holds_after_a_resume(tmp_path):
    ingest = open_ingest(tmp_path, max_lag_s=30.0)
    ingest.lag.published(500, 90_000)
    old = versions(World(1).block(4, 0), 499)
    assert ingest.offer("pi", payload(old)) is None
    assert ingest.refused == {39: 1}
    assert ingest.counters["lost_steps"] == 4, "what was read and refused is on the account"
    fresh = World(1).block(4, 1, first_step=4)
    elsewhere = dataclasses.replace(versions(fresh, 500), policy_epoch=np.full(4, 3, np.uint32))
    assert ingest.offer("pi", payload(elsewhere)) is None
    ingest.close()


@pytest.mark.parametrize("last", [0, MAX_SEQUENCE])
def test_a_device_that_claims_absurd_losses_leaves_all_that_is_said_of_it_readable(tmp_path, last):
    ingest = open_ingest(tmp_path)
    for number in range(1, 4):
        life = boot_id(number)
        ingest.opened("evil", life)
        ingest.offer("evil", encode_loss(boot_id=life, first=0, last=last, first_step=0, end_step=MAX_SEQUENCE))
        for _, ack in ingest.acks():
            assert Ack.decode(ack.encode()) == ack
    counters, account = ingest.counters, ingest.sessions.account("evil")
    assert counters["lost_steps"] == account.lost_steps == MAX_SEQUENCE
    assert 0 < counters["lost_blocks"] <= MAX_SEQUENCE
    ingest.close()
