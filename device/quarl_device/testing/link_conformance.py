"""What every `Link` must do, as checks that a test runs against each implementation and broker.

A check is a function of a `LinkCase`; `LINK_CHECKS` lists them all. Use it on a link of your own::

    @pytest.mark.parametrize("check", LINK_CHECKS, ids=lambda check: check.__name__)
    def test_my_link(check):
        with my_case() as case:
            check(case)
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from quarl_device.errors import BrokerRefused, LinkError, PayloadTooLarge, QuarlError, UsageError
from quarl_device.link import Link, Message, Will

PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class LinkCase:
    """One implementation on one broker.

    Attributes:
        make: returns a new, unconnected link of the given client id ("a", "b", "d" or "w"), and will if any.
        stranger: returns an unconnected link that the broker must refuse.
        cut: breaks a client's connection without a goodbye; the link must come back by itself.
        outage: the broker cannot be reached while inside, and every link notices.
        cap_bytes: largest payload that links of this case may publish.
    """

    make: Callable[[str, Will | None], Link]
    stranger: Callable[[], Link]
    cut: Callable[[str], None]
    outage: Callable[[], AbstractContextManager[None]]
    cap_bytes: int


class Heard:
    """Messages that a handler took."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._changed = threading.Condition()

    def __call__(self, message: Message) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def wait(self, count: int, *, timeout_s: float = PATIENCE_S) -> list[Message]:
        """Wait for `count` messages, at most `timeout_s`; returns those that came."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.messages) >= count, timeout_s)
            return list(self.messages)


def until(condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S) -> bool:
    """Wait until `condition` holds, at most `timeout_s`; returns whether it does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _connected(case: LinkCase, name: str, will: Will | None = None) -> Link:
    link = case.make(name, will)
    link.connect(timeout_s=PATIENCE_S)
    return link


def check_a_message_arrives_as_it_was_sent(case: LinkCase) -> None:
    """Bytes, topic and order are kept, for one client and through a wildcard."""
    sender, receiver = _connected(case, "a"), _connected(case, "b")
    heard = Heard()
    receiver.subscribe("t/+/x", heard)
    assert receiver.flush(timeout_s=PATIENCE_S)
    for number in range(20):
        assert sender.publish(f"t/{number}/x", bytes([number, 0, 255]))
    messages = heard.wait(20)
    assert [m.payload for m in messages] == [bytes([number, 0, 255]) for number in range(20)]
    assert messages[3].topic == "t/3/x"
    assert not messages[3].retain
    sender.close()
    receiver.close()


def check_a_retained_message_waits_for_latecomers(case: LinkCase) -> None:
    """The newest one alone, marked as retained; an empty one clears it."""
    sender = _connected(case, "a")
    sender.publish("kept", b"old", retain=True)
    sender.publish("kept", b"new", retain=True)
    assert sender.flush(timeout_s=PATIENCE_S)
    receiver, heard = case.make("b", None), Heard()
    receiver.subscribe("kept", heard)
    receiver.connect(timeout_s=PATIENCE_S)
    [message] = heard.wait(1)
    assert (message.payload, message.retain) == (b"new", True)
    sender.publish("kept", b"", retain=True)
    assert sender.flush(timeout_s=PATIENCE_S)
    sender.close()
    receiver.close()


def check_w5_a_handlers_exception_does_not_kill_the_link(case: LinkCase) -> None:
    """It is counted, and the next message is handled."""
    link, heard = case.make("a", None), Heard()

    def fail(message: Message) -> None:
        if message.payload == b"exit":
            raise SystemExit(3)
        raise RuntimeError("a handler's bug")

    link.subscribe("bad", fail)
    link.subscribe("good", heard)
    link.connect(timeout_s=PATIENCE_S)
    assert link.publish("bad", b"x")
    assert link.publish("bad", b"exit")
    assert link.publish("good", b"y")
    assert [message.payload for message in heard.wait(1)] == [b"y"]
    assert link.connected
    assert link.counters.handler_errors == 2
    assert "SystemExit" in link.counters.last_error
    link.close()


def check_an_oversize_payload_never_reaches_the_broker(case: LinkCase) -> None:
    """A QoS 1 publish over the broker's cap would be sent again for ever; it raises instead."""
    link, heard = case.make("a", None), Heard()
    link.subscribe("t", heard)
    link.connect(timeout_s=PATIENCE_S)
    try:
        link.publish("t", bytes(case.cap_bytes + 1))
    except PayloadTooLarge:
        pass
    else:
        raise AssertionError("an oversize payload was taken")
    assert link.publish("t", bytes(case.cap_bytes))
    assert [len(message.payload) for message in heard.wait(1)] == [case.cap_bytes]
    assert link.counters.connections == 1
    link.close()


def check_it_comes_back_after_a_cut_with_its_subscriptions(case: LinkCase) -> None:
    """Callbacks run after each connection, when publishing and receiving work again."""
    link, heard, connections = case.make("a", None), Heard(), []
    link.subscribe("t", heard)
    link.on_connect(lambda: connections.append(link.publish("t", b"back")))
    link.connect(timeout_s=PATIENCE_S)
    heard.wait(1)
    case.cut("a")
    assert until(lambda: len(connections) >= 2, timeout_s=2 * PATIENCE_S)
    assert len(heard.wait(2)) >= 2
    assert link.connected
    assert all(connections)
    link.close()


def check_a_will_is_sent_when_the_link_dies(case: LinkCase) -> None:
    """And not when it says goodbye."""
    watcher, heard = case.make("w", None), Heard()
    watcher.subscribe("will", heard)
    watcher.connect(timeout_s=PATIENCE_S)
    dying = _connected(case, "d", Will(topic="will", payload=b"gone", retain=False))
    case.cut("d")
    assert [message.payload for message in heard.wait(1)] == [b"gone"]
    assert until(lambda: dying.connected and dying.counters.connections == 2, timeout_s=2 * PATIENCE_S)
    assert dying.publish("will", b"last words")
    assert dying.flush(timeout_s=PATIENCE_S)
    dying.close()
    # A broker that took the goodbye for a death would have said so by the time that a new connection is served.
    other = _connected(case, "d")
    assert other.publish("will", b"end mark")
    assert [message.payload for message in heard.wait(3)] == [b"gone", b"last words", b"end mark"]
    other.close()
    watcher.close()


def check_closing_is_quick_idempotent_and_final(case: LinkCase) -> None:
    """W6: nothing hangs; a publish after it is not taken."""
    link = _connected(case, "a")
    began = time.monotonic()
    link.close()
    link.close()
    assert time.monotonic() - began < PATIENCE_S / 2
    assert not link.connected
    assert not link.publish("t", b"late")
    assert link.flush(timeout_s=0.2) in (True, False)


def check_a_flush_waits_for_the_broker(case: LinkCase) -> None:
    """After it, what was published is acknowledged, and what was subscribed to is heard."""
    sender, receiver, heard = _connected(case, "a"), _connected(case, "b"), Heard()
    receiver.subscribe("many", heard)
    assert receiver.flush(timeout_s=PATIENCE_S)
    threads = [threading.Thread(target=_publish_many, args=(sender, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sender.flush(timeout_s=PATIENCE_S)
    payloads = [message.payload for message in heard.wait(100)]
    assert len(payloads) == 100
    # Those of one thread keep their order.
    for number in range(4):
        assert [p[1] for p in payloads if p[0] == number] == list(range(25))
    sender.close()
    receiver.close()


def _publish_many(link: Link, number: int) -> None:
    for count in range(25):
        assert link.publish("many", bytes([number, count]))


def check_a_subscription_while_connected_brings_what_is_retained(case: LinkCase) -> None:
    """As one before the connection does; and each filter's handler hears what matches it."""
    link, exact, wide = _connected(case, "a"), Heard(), Heard()
    link.publish("room/one", b"here", retain=True)
    assert link.flush(timeout_s=PATIENCE_S)
    link.subscribe("room/one", exact)
    assert exact.wait(1)[0].payload == b"here"
    assert exact.messages[0].retain
    link.subscribe("room/#", wide)
    assert wide.wait(1)[0].payload == b"here"
    link.publish("room/one", b"", retain=True)
    assert link.flush(timeout_s=PATIENCE_S)
    link.close()


def check_filters_take_their_topics_alone(case: LinkCase) -> None:
    """With `+` for one level and `#` for all that follow; at either quality of service."""
    link, one, below = case.make("a", None), Heard(), Heard()
    link.subscribe("d/+/xp", one)
    link.subscribe("blob/#", below, qos=0)
    link.connect(timeout_s=PATIENCE_S)
    for topic in ("d/pi/xp", "d/pi/state", "d/pi/up/xp", "d/pi/xp/more", "blob/a/0", "blob"):
        assert link.publish(topic, b"1", qos=1)
    assert link.publish("d/pi/xp", b"0", qos=0)
    assert link.publish("blob/end", b"0", qos=0)
    assert [(m.topic, m.payload) for m in one.wait(2)] == [("d/pi/xp", b"1"), ("d/pi/xp", b"0")]
    assert sorted(m.topic for m in below.wait(3)) == ["blob", "blob/a/0", "blob/end"]
    link.close()


def check_what_is_unsubscribed_is_not_heard_again(case: LinkCase) -> None:
    """Neither now nor after a reconnection; other filters of the same topic still are, and it may be taken up again."""
    link, heard, other = _connected(case, "a"), Heard(), Heard()
    link.subscribe("t/+", heard)
    link.subscribe("t/#", other)
    assert link.flush(timeout_s=PATIENCE_S)
    link.publish("t/1", b"1")
    # A broker may send a message once per filter that matches (MQTT 3.1.1, 3.3.5).
    assert _until_heard(heard, b"1")
    assert _until_heard(other, b"1")
    link.unsubscribe("t/+")
    link.unsubscribe("t/+")
    link.unsubscribe("never/known")
    assert link.publish("t/2", b"2")
    assert _until_heard(other, b"2")
    before = link.counters.connections
    case.cut("a")
    assert until(lambda: link.connected and link.counters.connections > before, timeout_s=2 * PATIENCE_S)
    assert link.publish("t/3", b"3")
    assert _until_heard(other, b"3")
    assert {message.payload for message in heard.messages} == {b"1"}
    link.subscribe("t/+", heard)
    assert link.flush(timeout_s=PATIENCE_S)
    assert link.publish("t/4", b"4")
    assert _until_heard(heard, b"4")
    link.close()


def _until_heard(heard: Heard, payload: bytes) -> bool:
    return until(lambda: any(message.payload == payload for message in list(heard.messages)))


def check_a_drain_waits_for_the_broker(case: LinkCase) -> None:
    """It leaves at most so many bytes open, and does not wait for a broker that is away."""
    link = _connected(case, "a")
    for _ in range(8):
        assert link.publish("t", bytes(case.cap_bytes // 2))
    assert link.drain(to_bytes=case.cap_bytes, timeout_s=PATIENCE_S)
    assert link.drain(to_bytes=0, timeout_s=PATIENCE_S)
    with case.outage():
        assert until(lambda: not link.connected)
        began = time.monotonic()
        assert not link.drain(to_bytes=0, timeout_s=PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
    link.close()


def check_a_handler_may_publish(case: LinkCase) -> None:
    """An answer from within a handler is sent, and heard by the same link."""
    link, heard = case.make("a", None), Heard()
    link.subscribe("question", lambda message: _answer(link, message))
    link.subscribe("answer", heard)
    link.connect(timeout_s=PATIENCE_S)
    assert link.publish("question", b"?")
    assert [message.payload for message in heard.wait(1)] == [b"?!"]
    link.close()


def _answer(link: Link, message: Message) -> None:
    link.publish("answer", message.payload + b"!")


def check_idle_follows_the_messages(case: LinkCase) -> None:
    """Whoever answers there has heard every message before, and answers the last one too (W5 holds there as well)."""
    link, heard, at_idle = case.make("a", None), Heard(), []

    def fail() -> None:
        raise RuntimeError("on purpose")

    def note() -> None:
        at_idle.append(len(heard.messages))
        link.publish("answer", str(len(heard.messages)).encode())

    answers = Heard()
    link.subscribe("t", heard)
    link.on_idle(fail)
    link.on_idle(note)
    link.connect(timeout_s=PATIENCE_S)
    other = case.make("b", None)
    other.subscribe("answer", answers)
    other.connect(timeout_s=PATIENCE_S)
    for number in range(20):
        assert other.publish("t", bytes([number]))
    assert until(lambda: any(message.payload == b"20" for message in answers.messages))
    assert at_idle == sorted(at_idle)
    assert link.counters.handler_errors > 0
    other.close()
    link.close()


def check_w5_a_connect_callbacks_exception_does_not_kill_the_link(case: LinkCase) -> None:
    """The callbacks after it run, at the first connection and at later ones."""
    link, connections = case.make("a", None), []

    def fail() -> None:
        raise RuntimeError("a callback's bug")

    link.on_connect(fail)
    link.on_connect(lambda: connections.append(link.connected))
    link.connect(timeout_s=PATIENCE_S)
    assert until(lambda: len(connections) == 1)
    case.cut("a")
    assert until(lambda: len(connections) == 2, timeout_s=2 * PATIENCE_S)
    assert all(connections)
    assert link.counters.handler_errors == 2
    assert link.counters.connections == 2
    link.close()


def check_a_will_may_stay_for_latecomers(case: LinkCase) -> None:
    """A retained will replaces the birth that was retained before it."""
    dying = _connected(case, "d", Will(topic="state", payload=b"gone", retain=True))
    dying.publish("state", b"online", retain=True)
    assert dying.flush(timeout_s=PATIENCE_S)
    case.cut("d")
    watcher, heard = case.make("w", None), Heard()
    watcher.subscribe("state", heard)
    watcher.connect(timeout_s=PATIENCE_S)
    assert until(lambda: [message.payload for message in heard.messages][-1:] == [b"gone"])
    assert until(lambda: dying.connected and dying.counters.connections == 2, timeout_s=2 * PATIENCE_S)
    dying.publish("state", b"", retain=True)
    assert dying.flush(timeout_s=PATIENCE_S)
    dying.close()
    watcher.close()


def check_a_will_counts_from_the_next_connection(case: LinkCase) -> None:
    """A connection leaves the will that it was made with, whatever was set since."""
    watcher, heard = case.make("w", None), Heard()
    watcher.subscribe("will", heard)
    watcher.connect(timeout_s=PATIENCE_S)
    dying = _connected(case, "d", Will(topic="will", payload=b"first", retain=False))
    dying.set_will(Will(topic="will", payload=b"second", retain=False))
    case.cut("d")
    assert until(lambda: dying.connected and dying.counters.connections == 2, timeout_s=2 * PATIENCE_S)
    case.cut("d")
    assert [message.payload for message in heard.wait(2)] == [b"first", b"second"]
    dying.close()
    watcher.close()


def check_w6_nothing_is_taken_nor_waited_for_while_the_broker_is_away(case: LinkCase) -> None:
    """A publish returns false at once, a flush too; later both work again without help."""
    link, heard = case.make("a", None), Heard()
    link.subscribe("t", heard)
    assert not link.publish("t", b"too early")
    assert not link.flush(timeout_s=PATIENCE_S)
    link.connect(timeout_s=PATIENCE_S)
    with case.outage():
        assert until(lambda: not link.connected)
        began = time.monotonic()
        assert not link.publish("t", b"lost")
        assert not link.flush(timeout_s=PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2
        assert link.counters.not_taken == 2
    assert until(lambda: link.connected, timeout_s=2 * PATIENCE_S)
    assert link.flush(timeout_s=PATIENCE_S)
    assert link.publish("t", b"heard")
    assert [message.payload for message in heard.wait(1)] == [b"heard"]
    link.close()


def check_w6_a_link_closes_while_the_broker_is_away(case: LinkCase) -> None:
    """It does not come back after that."""
    link = _connected(case, "a")
    with case.outage():
        assert until(lambda: not link.connected)
        began = time.monotonic()
        link.close()
        assert time.monotonic() - began < PATIENCE_S / 2
    assert not until(lambda: link.connected, timeout_s=0.3)


def check_a_stranger_is_refused(case: LinkCase) -> None:
    """Nobody gets in without the right password, and the error does not wait for the deadline."""
    began = time.monotonic()
    _raises(BrokerRefused, lambda: case.stranger().connect(timeout_s=PATIENCE_S))
    assert time.monotonic() - began < PATIENCE_S


def check_wrong_use_is_said(case: LinkCase) -> None:
    """Topics that no broker takes, and connecting twice or after closing; none of it hurts the link."""
    link, heard = case.make("a", None), Heard()
    for topic_filter in ("", "a/#/b", "a+", "a/b#"):
        _raises(UsageError, functools.partial(link.subscribe, topic_filter, heard))
    link.subscribe("t", heard)
    link.connect(timeout_s=PATIENCE_S)
    _raises(LinkError, lambda: link.connect(timeout_s=PATIENCE_S))
    for topic in ("", "a/+", "#"):
        _raises(UsageError, functools.partial(link.publish, topic, b"x"))
    assert link.publish("t", b"x")
    assert heard.wait(1)
    link.close()
    _raises(LinkError, lambda: link.connect(timeout_s=PATIENCE_S))


def _raises(error: type[QuarlError], act: Callable[[], object]) -> None:
    try:
        act()
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


LINK_CHECKS: tuple[Callable[[LinkCase], None], ...] = (
    check_a_message_arrives_as_it_was_sent,
    check_a_retained_message_waits_for_latecomers,
    check_w5_a_handlers_exception_does_not_kill_the_link,
    check_an_oversize_payload_never_reaches_the_broker,
    check_it_comes_back_after_a_cut_with_its_subscriptions,
    check_a_will_is_sent_when_the_link_dies,
    check_closing_is_quick_idempotent_and_final,
    check_a_flush_waits_for_the_broker,
    check_a_subscription_while_connected_brings_what_is_retained,
    check_filters_take_their_topics_alone,
    check_what_is_unsubscribed_is_not_heard_again,
    check_a_drain_waits_for_the_broker,
    check_a_handler_may_publish,
    check_idle_follows_the_messages,
    check_w5_a_connect_callbacks_exception_does_not_kill_the_link,
    check_a_will_may_stay_for_latecomers,
    check_a_will_counts_from_the_next_connection,
    check_w6_nothing_is_taken_nor_waited_for_while_the_broker_is_away,
    check_w6_a_link_closes_while_the_broker_is_away,
    check_a_stranger_is_refused,
    check_wrong_use_is_said,
)
