"""What every `Link` must do, as checks that a test runs against each implementation and broker.

A check is a function of a `LinkCase`; `LINK_CHECKS` lists them all. Use it on a link of your own::

    @pytest.mark.parametrize("check", LINK_CHECKS, ids=lambda check: check.__name__)
    def test_my_link(check):
        with my_case() as case:
            check(case)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from quarl_device.errors import PayloadTooLarge
from quarl_device.link import Link, Message, Will

PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class LinkCase:
    """One implementation on one broker.

    Attributes:
        make: returns a new, unconnected link of the given client id, and will if any.
        cut: breaks a client's connection without a goodbye; the link must come back by itself.
        cap_bytes: largest payload that links of this case may publish.
    """

    make: Callable[[str, Will | None], Link]
    cut: Callable[[str], None]
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
    until(lambda: sender.publish("t/0/x", b"probe") and bool(heard.wait(1, timeout_s=0.2)))
    first = len(heard.messages)
    for number in range(20):
        assert sender.publish(f"t/{number}/x", bytes([number, 0, 255]))
    messages = heard.wait(first + 20)[first:]
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

    def fail(_: Message) -> None:
        raise RuntimeError("a handler's bug")

    link.subscribe("bad", fail)
    link.subscribe("good", heard)
    link.connect(timeout_s=PATIENCE_S)
    link.publish("bad", b"x")
    link.publish("good", b"y")
    assert [message.payload for message in heard.wait(1)] == [b"y"]
    assert link.connected
    assert link.counters.handler_errors == 1
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
    assert link.publish("t", b"small")
    assert [message.payload for message in heard.wait(1)] == [b"small"]
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
    assert until(lambda: dying.connected, timeout_s=2 * PATIENCE_S)
    dying.close()
    time.sleep(0.3)
    assert len(heard.messages) == 1
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


LINK_CHECKS: tuple[Callable[[LinkCase], None], ...] = (
    check_a_message_arrives_as_it_was_sent,
    check_a_retained_message_waits_for_latecomers,
    check_w5_a_handlers_exception_does_not_kill_the_link,
    check_an_oversize_payload_never_reaches_the_broker,
    check_it_comes_back_after_a_cut_with_its_subscriptions,
    check_a_will_is_sent_when_the_link_dies,
    check_closing_is_quick_idempotent_and_final,
)
