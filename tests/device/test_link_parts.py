"""The parts of the link, each alone: back-off, what is in flight, handlers, deadlines, and the fake broker."""

import ast
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from link_factory import link_to

import quarl_device.link
from quarl_device.errors import PayloadTooLarge
from quarl_device.link import Backoff, LinkCounters, LinkLimits, Message, Will
from quarl_device.link.inflight import Inflight
from quarl_device.link.router import Router
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.testing.link_conformance import until


@given(
    attempt=st.integers(0, 10_000),
    base=st.floats(0, 10),
    cap=st.floats(0, 100),
    factor=st.floats(1, 10),
    seed=st.integers(0, 2**32),
)
def test_w7_no_delay_leaves_its_bounds(attempt, base, cap, factor, seed):
    delay = Backoff(base_s=base, cap_s=cap, factor=factor).delay_s(attempt, random.Random(seed))
    assert 0 <= delay <= min(cap, base * factor ** min(attempt, 64))


def test_w7_two_devices_do_not_come_back_together():
    links = [link_to(1, client_id=name) for name in ("a", "b")]
    assert len({link._backoff.delay_s(8, link._rng) for link in links}) == 2


def test_a_will_over_the_cap_is_refused_before_any_broker_sees_it():
    with pytest.raises(PayloadTooLarge):
        link_to(1, will=Will(topic="t", payload=bytes(2)), limits=LinkLimits(max_payload_bytes=1))
    with pytest.raises(PayloadTooLarge):
        FakeBroker().link("a", will=Will(topic="t", payload=bytes(2)), max_payload_bytes=1)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=40))
def test_acks_may_come_before_their_packet_ids(steps):
    inflight, open_ids, early = Inflight(), set(), set()
    for publish, mid in steps:
        if publish and mid not in open_ids:
            assert inflight.add(mid, 10, inflight.life)
            open_ids ^= {mid} - early
            early.discard(mid)
        elif not publish and (mid in open_ids or mid not in early):
            inflight.settle(mid)
            early ^= {mid} - open_ids
            open_ids.discard(mid)
        assert inflight.wait_empty(0) == (not open_ids)
        assert inflight.room(LinkLimits(max_inflight_bytes=10 * len(open_ids) + 1), 1)
        assert not inflight.room(LinkLimits(max_inflight_bytes=10 * len(open_ids)), 1)


def test_a_packet_of_an_ended_connection_is_not_waited_for():
    inflight = Inflight()
    life = inflight.life
    assert inflight.add(1, 10, life)
    inflight.reset()
    assert not inflight.add(2, 10, life)
    assert inflight.wait_empty(0)


def test_w5_a_hostile_sender_cannot_fill_the_disk_with_tracebacks(caplog):
    counters = LinkCounters()
    router = Router(counters)
    router.add("t", lambda _: 1 / 0, 1)
    for _ in range(50):
        router.dispatch(Message(topic="t", payload=b"", retain=False))
    assert counters.handler_errors == 50
    assert len(caplog.records) == 1
    assert "ZeroDivisionError" in counters.last_error


def test_a_new_handler_replaces_the_old_one_and_many_topics_do_not_fill_the_memory():
    heard, router = [], Router(LinkCounters())
    router.add("d/+", lambda _: heard.append("old"), 1)
    router.dispatch(Message(topic="d/1", payload=b"", retain=False))
    router.add("d/+", lambda _: heard.append("new"), 1)
    for number in range(5_000):
        router.dispatch(Message(topic=f"d/{number}", payload=b"", retain=False))
    assert heard == ["old"] + ["new"] * 5_000
    assert len(router._cache) <= 4_096


def test_w6_no_wait_of_the_link_is_without_a_deadline():
    """Reads the source: `wait`, `join`, `get` and `wait_for` are always called with a time-out."""
    folder = Path(quarl_device.link.__file__).parent
    found = []
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                least = {"wait": 1, "wait_for": 2, "result": 1, "acquire": 1}.get(node.func.attr)
                threads = node.func.attr == "join" and not node.args and not node.keywords
                if threads or (least is not None and len(node.args) + len(node.keywords) < least):
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []


def test_the_fake_broker_delivers_one_at_a_time_and_loses_nothing_between_threads():
    broker, busy, seen, clashes = FakeBroker(), threading.Lock(), [], []
    link = broker.link("a")

    def handle(message):
        if not busy.acquire(blocking=False):
            clashes.append(message)
            return
        seen.append(message.payload)
        busy.release()

    link.subscribe("t", handle)
    link.connect(timeout_s=1)
    workers = [threading.Thread(target=lambda: [broker.publish("t", b"x") for _ in range(300)]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert until(lambda: len(seen) == 1200, timeout_s=5)
    assert clashes == []


def test_the_fake_brokers_faults():
    broker = FakeBroker(auto=False)
    link, heard = broker.link("a"), []
    link.subscribe("#", lambda message: heard.append(message.payload))
    link.connect(timeout_s=1)
    broker.drop("a")
    broker.duplicate("b", 2)
    broker.delay("c")
    for topic in ("a", "b", "c", "a"):
        assert link.publish(topic, topic.encode())
    assert heard == []
    assert broker.deliver(1) == 1
    assert heard == [b"b"]
    assert broker.deliver() == 2
    broker.release()
    broker.deliver()
    assert heard == [b"b", b"b", b"a", b"c"]
    for number in range(20):
        broker.publish("n", bytes([number]))
    broker.shuffle(1)
    broker.deliver()
    assert heard[4:] != sorted(heard[4:])
    assert sorted(heard[4:]) == [bytes([number]) for number in range(20)]
    broker.publish("lost", b"")
    broker.cut("a")
    assert broker.deliver() == 0
    assert link.counters.connections == 2
