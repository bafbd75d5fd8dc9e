"""A good device's stream goes on while others send everything that a learner must refuse (W4)."""

import dataclasses
import logging

import numpy as np
import pytest
from block_factory import SPEC, World, boot_id, payload

from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.limits import MAX_BLOCK_BYTES
from quarl_device.wire.messages import Ack, DeviceState
from quarl_device.wire.topics import Topics
from quarl_edge.configure import make_config
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner.receiver import Receiver

TOPICS = Topics("f")
GOOD, EVIL = boot_id(1), boot_id(2)
CODEC = BlockCodec(SPEC)


def evil_block(sequence=0, **changes):
    block = World(1, end_chance=0.0).block(4, sequence, boot=EVIL)
    return CODEC.encode(dataclasses.replace(block, **changes))


def with_nan():
    block = World(1, end_chance=0.0).block(4, 0, boot=EVIL)
    return CODEC.encode(dataclasses.replace(block, reward=np.full_like(block.reward, np.nan)))


def of_other_spaces():
    spec = dataclasses.replace(SPEC, observations=(dataclasses.replace(SPEC.observations[0], shape=(3,)),))
    block = World(1, end_chance=0.0).block(4, 0, boot=EVIL)
    wider = np.zeros((5, 1, 3), np.float32)
    empty = {"observation": np.zeros((0, 3), np.float32)}
    return BlockCodec(spec).encode(
        dataclasses.replace(block, observation={"observation": wider}, final_observation=empty)
    )


def attacks(good):
    """(name, topic leaf, payload, refusals counted by the ingest)."""
    return [
        ("oversized", "xp", b"x" * (MAX_BLOCK_BYTES + 1), 1),
        ("unknown", "xp", b'{"schema": 99}', 1),
        ("malformed", "xp", evil_block()[:-7], 1),
        ("NaN", "xp", with_nan(), 1),
        ("absurd", "xp", evil_block(reward=np.full((4, 1), 1e30, np.float32)), 1),
        ("wrong shape", "xp", of_other_spaces(), 1),
        ("no such action", "xp", evil_block(action=np.full((4, 1), 200, np.uint8)), 1),
        ("empty", "xp", b"", 1),
        ("state of another device", "state", DeviceState(status="online", device="good", boot_id=EVIL).encode(), 0),
        ("state of garbage", "state", b"\xff\xfe", 0),
        ("telemetry of garbage", "telemetry", b"[" * 5_000, 0),
    ]


@pytest.fixture
def scene(tmp_path):
    broker = FakeBroker()
    link = broker.link("learner")
    link.connect(timeout_s=1)
    ingest = Ingest.open(make_config("X-v0"), SPEC, tmp_path / "journal", epoch=5)
    Receiver(link, TOPICS, ingest).listen()
    device = broker.link("anybody")
    device._cap_bytes = 4 * MAX_BLOCK_BYTES
    device.connect(timeout_s=1)
    yield broker, device, ingest, link
    ingest.close()


def test_w4_every_attack_is_refused_by_itself_and_the_good_stream_goes_on(scene, caplog):
    broker, device, ingest, link = scene
    caplog.set_level(logging.CRITICAL)
    world, refused = World(1, seed=3), 0
    names = [name for name, *_ in attacks(b"")]
    for sequence, (name, leaf, evil, counted) in enumerate(attacks(b"")):
        device.publish(f"{TOPICS.root}/d/evil/up/{leaf}", evil)
        refused += counted
        assert sum(ingest.refused.values()) == refused, name
        good = payload(world.block(8, sequence, boot=GOOD))
        device.publish(TOPICS.xp("good"), good)
        # Somebody sends again what the good device sent: known, and stored once.
        device.publish(TOPICS.xp("good"), good)
    acks = [Ack.decode(message.payload) for message in broker.log if message.topic == TOPICS.ack("good")]
    assert (acks[-1].boot_id, acks[-1].durable) == (GOOD, len(names) - 1)
    assert acks[-1].refused == {}
    counters = ingest.counters
    assert (counters["blocks"], counters["env_steps"]) == (len(names), 8 * len(names))
    assert counters["duplicates"] == len(names)
    assert link.counters.handler_errors == 0


def test_w4_a_device_that_is_not_one_is_not_heard(scene, caplog):
    _, device, ingest, link = scene
    caplog.set_level(logging.CRITICAL)
    for name in ("Not-A-Name", "-x", "a" * 64, "..", "%00"):
        device.publish(f"{TOPICS.root}/d/{name}/up/xp", evil_block())
        device.publish(f"{TOPICS.root}/d/{name}/up/state", b"{}")
    assert ingest.counters["blocks"] == 0
    assert link.counters.handler_errors == 0


def test_w4_a_flood_of_devices_leaves_memory_bounded(scene, caplog, monkeypatch):
    from quarl_edge.learner import receiver as module

    monkeypatch.setattr(module, "_MAX_DEVICES", 8)
    caplog.set_level(logging.CRITICAL)
    _, device, ingest, _ = scene
    receiver_names = 50
    for number in range(receiver_names):
        device.publish(TOPICS.xp(f"evil-{number}"), b"no block")
    assert ingest.refused == {34: receiver_names}
    device.publish(TOPICS.xp("good"), payload(World(1).block(4, 0, boot=GOOD)))
    assert ingest.env_steps == 4
