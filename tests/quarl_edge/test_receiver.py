"""What the learner hears: it survives anything, and answers with acks."""

import threading
import time

import pytest
from block_factory import BOOT, SPEC, World, payload

from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.messages import Ack, DeviceState, Telemetry
from quarl_device.wire.topics import Topics
from quarl_edge.config import make_config
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner.receiver import Receiver

TOPICS = Topics("f")


@pytest.fixture
def setting(tmp_path):
    broker = FakeBroker()
    link = broker.link("learner")
    link.connect(timeout_s=1)
    ingest = Ingest.open(make_config("X-v0"), SPEC, tmp_path / "journal", epoch=5)
    receiver = Receiver(link, TOPICS, ingest)
    receiver.listen()
    device = broker.link("pi")
    device.connect(timeout_s=1)
    yield broker, device, ingest, receiver
    ingest.close()


def state(**changes):
    return DeviceState(**{"status": "online", "device": "pi", "boot_id": BOOT, **changes})


def acks(broker, device="pi"):
    return [Ack.decode(message.payload) for message in broker.log if message.topic == TOPICS.ack(device)]


def test_a_birth_is_answered_with_credit(setting):
    broker, device, _, receiver = setting
    device.publish(TOPICS.state("pi"), state().encode(), retain=True)
    assert receiver.actors["pi"].state.boot_id == BOOT
    last = acks(broker)[-1]
    assert (last.boot_id, last.epoch, last.inserted) == (BOOT, 5, -1)
    assert last.credit > 0


def test_a_block_is_stored_and_acked(setting):
    broker, device, ingest, receiver = setting
    device.publish(TOPICS.state("pi"), state().encode(), retain=True)
    device.publish(TOPICS.xp("pi"), payload(World(1).block(4)))
    assert ingest.env_steps == 4
    assert receiver.arrivals == 1
    assert (acks(broker)[-1].inserted, acks(broker)[-1].durable) == (0, 0)


def test_w4_garbage_hurts_nothing_else(setting):
    broker, device, ingest, receiver = setting
    device.publish(TOPICS.state("pi"), state().encode(), retain=True)
    for topic in (TOPICS.xp("pi"), TOPICS.state("pi"), TOPICS.telemetry("pi")):
        device.publish(topic, b"\xff" * 100, qos=0)
    device.publish(TOPICS.xp("pi"), payload(World(1).block(4)))
    assert ingest.env_steps == 4
    assert receiver.actors["pi"].telemetry is None
    assert acks(broker)[-1].inserted == 0


def test_a_state_that_names_another_device_is_refused(setting):
    _, device, _, receiver = setting
    device.publish(TOPICS.state("pi"), state(device="other").encode())
    assert receiver.actors == {}


def test_death_and_a_cleared_birth_take_a_device_off_the_list(setting):
    _, device, _, receiver = setting
    device.publish(TOPICS.state("pi"), state().encode())
    device.publish(TOPICS.state("pi"), state(status="gone").encode())
    assert receiver.actors == {}
    device.publish(TOPICS.state("pi"), state().encode())
    device.publish(TOPICS.state("pi"), b"")
    assert receiver.actors == {}


def test_telemetry_belongs_to_a_device_that_was_born(setting):
    _, device, _, receiver = setting
    device.publish(TOPICS.telemetry("pi"), Telemetry(boot_id=BOOT, steps=7).encode(), qos=0)
    assert receiver.actors == {}
    device.publish(TOPICS.state("pi"), state().encode())
    device.publish(TOPICS.telemetry("pi"), Telemetry(boot_id=BOOT, steps=7).encode(), qos=0)
    assert receiver.actors["pi"].telemetry.steps == 7


def test_waiting_ends_with_an_arrival_or_at_the_deadline(setting):
    _, device, _, receiver = setting
    started = time.monotonic()
    assert receiver.wait(0, timeout_s=0.1) == 0
    assert 0.05 < time.monotonic() - started < 2
    sender = threading.Timer(0.1, device.publish, (TOPICS.xp("pi"), payload(World(1).block(2))))
    sender.start()
    assert receiver.wait(0, timeout_s=10) == 1
    sender.join()
    assert time.monotonic() - started < 5
