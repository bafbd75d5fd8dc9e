"""What the learner hears: it survives anything, and answers with acks."""

import threading
import time

import pytest
from block_factory import BOOT, SPEC, World, payload

from quarl_device.link import Message
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.loss import encode_loss
from quarl_device.wire.messages import Ack, DeviceState, Telemetry
from quarl_device.wire.topics import Topics
from quarl_edge.configure import make_config
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner import receiver as module
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


def test_a_device_that_only_acts_has_no_stream_and_no_share(setting):
    broker, device, ingest, receiver = setting
    device.publish(TOPICS.state("pi"), state(mode="deploy", digest="a" * 64).encode(), retain=True)
    assert receiver.actors == {}
    assert acks(broker) == []
    assert ingest.sessions.active("pi") == ""


def test_an_actor_that_comes_back_in_deploy_mode_gives_its_share_back(setting):
    _, device, _, receiver = setting
    device.publish(TOPICS.state("pi"), state().encode(), retain=True)
    device.publish(TOPICS.state("pi"), state(mode="deploy", boot_id="ee" * 8).encode(), retain=True)
    assert receiver.actors == {}


def test_the_late_will_of_a_deploying_life_takes_no_actor_off_the_list(setting):
    _, device, _, receiver = setting
    device.publish(TOPICS.state("pi"), state().encode(), retain=True)
    device.publish(TOPICS.state("pi"), state(mode="deploy", status="gone", boot_id="ee" * 8).encode(), retain=True)
    assert list(receiver.actors) == ["pi"]


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


OTHER = "cd" * 8


def test_the_late_farewell_of_an_earlier_life_says_nothing_about_this_one(setting):
    _, device, ingest, receiver = setting
    device.publish(TOPICS.state("pi"), state(boot_id=OTHER).encode())
    device.publish(TOPICS.state("pi"), state().encode())
    device.publish(TOPICS.state("pi"), state(boot_id=OTHER, status="gone").encode())
    device.publish(TOPICS.state("pi"), state(boot_id=OTHER).encode())
    assert receiver.actors["pi"].state.boot_id == BOOT
    device.publish(TOPICS.telemetry("pi"), Telemetry(boot_id=OTHER, steps=3).encode(), qos=0)
    assert receiver.actors["pi"].telemetry is None
    device.publish(TOPICS.xp("pi"), payload(World(1).block(4)))
    assert ingest.env_steps == 4


def test_only_what_is_stored_counts_against_a_standstill(setting):
    _, device, _, receiver = setting
    before = receiver.last_stored_s
    device.publish(TOPICS.xp("pi"), b"\xff" * 100)
    assert receiver.arrivals == 1
    assert receiver.last_stored_s == before
    assert receiver.contributors == set()
    device.publish(TOPICS.xp("pi"), payload(World(1).block(4)))
    assert receiver.last_stored_s > before
    assert receiver.contributors == {("pi", BOOT)}
    assert receiver.refused == {"34": 1}


def test_a_loss_that_an_earlier_life_left_is_no_contribution(setting):
    """Lockstep takes one actor in one life; what another life lost is stored in the books alone."""
    _, device, ingest, receiver = setting
    device.publish(TOPICS.state("pi"), state(delivering=OTHER).encode())
    loss = encode_loss(boot_id=OTHER, first=0, last=0, first_step=0, end_step=77)
    device.publish(TOPICS.xp("pi"), loss)
    assert (ingest.counters["lost_steps"], receiver.contributors) == (77, set())
    device.publish(TOPICS.state("pi"), state(beat=2).encode())
    device.publish(TOPICS.xp("pi"), payload(World(1).block(4)))
    assert receiver.contributors == {("pi", BOOT)}


def test_a_journal_that_refuses_is_said(setting):
    _, device, ingest, receiver = setting
    assert receiver.blocked == ""
    ingest.close()
    device.publish(TOPICS.xp("pi"), payload(World(1).block(4)))
    assert "closed" in receiver.blocked
    assert receiver.contributors == set()


def test_a_full_list_forgets_who_is_gone_and_keeps_who_is_online(setting, monkeypatch):
    _, device, _, receiver = setting
    monkeypatch.setattr(module, "_MAX_DEVICES", 2)
    for name in ("a", "b", "c"):
        device.publish(TOPICS.state(name), state(device=name).encode())
    assert set(receiver.actors) == {"a", "b"}
    device.publish(TOPICS.state("a"), state(device="a", status="gone").encode())
    device.publish(TOPICS.state("c"), state(device="c").encode())
    assert set(receiver.actors) == {"b", "c"}


def test_a_flood_of_bad_words_does_not_flood_the_log(setting, caplog):
    _, device, _, _ = setting
    for _ in range(200):
        device.publish(TOPICS.state("pi"), b"{")
    assert len(caplog.records) == 20
    assert "counted, not shown" in caplog.records[-1].message


def test_experience_that_a_broker_retained_is_nobodys(setting):
    broker, _, ingest, receiver = setting
    link = broker.link("late")
    link.connect(timeout_s=1)
    link.publish(TOPICS.xp("pi"), payload(World(1).block(4)), retain=True)
    assert ingest.env_steps == 4  # to those who listen already it is news
    again = Receiver(link, TOPICS, ingest)
    before = ingest.counters["duplicates"]
    again.listen()
    assert ingest.counters["duplicates"] == before
    assert again.arrivals == 0
    assert receiver.arrivals == 1


@pytest.mark.parametrize("make", [TOPICS.state, TOPICS.xp, TOPICS.telemetry], ids=["state", "xp", "telemetry"])
def test_w4_a_topic_of_a_name_that_no_device_has_is_one_counted_line(setting, caplog, make):
    _, device, _, receiver = setting
    topic = make("pi").replace("/pi/", f"/{'A' * 300}/")
    device.publish(topic, b"x")
    assert receiver.actors == {}
    assert [record.exc_info for record in caplog.records] == [None]


def test_a_device_that_fell_silent_gives_its_share_back_and_may_come_again(setting, caplog):
    """Its will was lost: nobody says that it is gone."""
    broker, device, ingest, _ = setting
    now = [100.0]
    link = broker.link("second")
    link.connect(timeout_s=1)
    receiver = Receiver(link, TOPICS, ingest, clock=lambda: now[0])
    receiver.listen()
    for name in ("pi", "busy", "shy"):
        device.publish(TOPICS.state(name), state(device=name).encode())
    now[0] += 0.9 * module.SILENT_S
    device.publish(TOPICS.telemetry("shy"), Telemetry(boot_id=BOOT, steps=7).encode(), qos=0)
    device.publish(TOPICS.xp("busy"), payload(World(1).block(4)))
    receiver.send_acks()
    assert set(receiver.actors) == {"pi", "busy", "shy"}
    now[0] += 0.2 * module.SILENT_S
    receiver.send_acks()
    assert set(receiver.actors) == {"busy", "shy"}
    assert ingest._credit.devices == {"busy", "shy"}
    assert caplog.text.count("device pi was not heard of") == 1
    device.publish(TOPICS.state("pi"), state().encode())
    receiver.send_acks()
    assert set(receiver.actors) == ingest._credit.devices == {"pi", "busy", "shy"}


def test_one_ack_answers_all_blocks_that_came_together(tmp_path):
    """A link under load handles many messages before it is idle."""
    said, idle, handlers = [], [], {}

    class Busy:
        connected = True

        def subscribe(self, topic, handler, *, qos=1):
            handlers[topic] = handler

        def on_idle(self, callback):
            idle.append(callback)

        def publish(self, topic, payload, *, qos=1, retain=False):
            said.append((topic, Ack.decode(payload)))
            return True

    ingest = Ingest.open(make_config("X-v0"), SPEC, tmp_path / "journal", epoch=5)
    Receiver(Busy(), TOPICS, ingest).listen()
    worlds = {"pi": World(1), "robot": World(1)}
    for sequence in range(3):
        for device, world in worlds.items():
            block = payload(world.block(4, sequence))
            handlers[TOPICS.any_xp](Message(topic=TOPICS.xp(device), payload=block, retain=False))
    assert said == []
    [callback] = idle
    callback()
    callback()
    assert [(topic, ack.inserted) for topic, ack in said] == [(TOPICS.ack("pi"), 2), (TOPICS.ack("robot"), 2)]
    ingest.close()
