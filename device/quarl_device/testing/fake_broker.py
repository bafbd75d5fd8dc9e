"""A broker in memory: deterministic, with every fault a network can have.

`FakeBroker.link(...)` returns a `FakeLink`, which passes the same conformance suite as `PahoLink` does on real brokers.

By default a publish is delivered before `publish` returns, on the publishing thread, one message at a time. With
`auto=False` deliveries wait in `FakeBroker.pending`, which a test may look at, reorder or thin out, until
`FakeBroker.deliver()`. Faults: `drop`, `duplicate` and `delay` take a topic filter and a count, `cut` loses a client's
connection (its will is sent), `down` and `up` take the whole broker away and bring it back without its retained
messages lost, as a restarted broker with persistence.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paho.mqtt.client import topic_matches_sub

from quarl_device.errors import BrokerRefused, BrokerUnreachable, LinkError
from quarl_device.link.protocol import Handler, LinkCounters, Message, Will
from quarl_device.link.router import Router, check_topic
from quarl_device.wire.limits import MAX_PAYLOAD_BYTES, check_outgoing


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One message on its way to one client.

    Attributes:
        client_id: whom it is for.
        message: what it is.
    """

    client_id: str
    message: Message


@dataclass(kw_only=True)
class _Fault:
    topic_filter: str
    kind: str
    count: int


class FakeBroker:
    """The broker.

    Args:
        users: user name to password; `None` lets everybody in.
        auto: deliver at once; otherwise only by `deliver`.
    """

    def __init__(self, users: Mapping[str, str] | None = None, *, auto: bool = True) -> None:
        self.users = users
        self.auto = auto
        self.retained: dict[str, bytes] = {}
        self.log: list[Message] = []
        self.pending: deque[Delivery] = deque()
        self.held: list[Delivery] = []
        self.is_up = True
        self._links: dict[str, FakeLink] = {}
        self._faults: list[_Fault] = []
        self._delivering = False
        self._lock = threading.RLock()

    def link(
        self, client_id: str, *, password: str | None = None, will: Will | None = None, max_payload_bytes: int = 0
    ) -> FakeLink:
        """Return a link of this broker that is not connected yet; `client_id` is also its user name."""
        return FakeLink(self, client_id, password=password, will=will, max_payload_bytes=max_payload_bytes)

    # -- faults ----------------------------------------------------------------------------------------------------

    def drop(self, topic_filter: str, count: int = 1) -> None:
        """Lose the next `count` messages that match, after taking (and acknowledging) them."""
        self._faults.append(_Fault(topic_filter=topic_filter, kind="drop", count=count))

    def duplicate(self, topic_filter: str, count: int = 1) -> None:
        """Deliver the next `count` messages that match twice."""
        self._faults.append(_Fault(topic_filter=topic_filter, kind="duplicate", count=count))

    def delay(self, topic_filter: str, count: int = 1) -> None:
        """Hold the next `count` messages that match back until `release`."""
        self._faults.append(_Fault(topic_filter=topic_filter, kind="delay", count=count))

    def release(self) -> None:
        """Deliver what was delayed, after everything else."""
        with self._lock:
            self.pending.extend(self.held)
            self.held.clear()
        self._pump()

    def shuffle(self, seed: int) -> None:
        """Reorder what is pending (with `auto=False`)."""
        with self._lock:
            order = list(self.pending)
            random.Random(seed).shuffle(order)  # noqa: S311
            self.pending = deque(order)

    def cut(self, client_id: str, *, reconnect: bool = True) -> None:
        """Lose a client's connection: its will is sent, what was on its way to it is lost."""
        with self._lock:
            link = self._links.get(client_id)
        if link is not None:
            self._lose(link)
            if reconnect:
                link.reconnect()

    def down(self) -> None:
        """Take the broker away: every link loses its connection, wills are kept for nobody."""
        with self._lock:
            self.is_up = False
            self.pending.clear()
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link._up = False

    def up(self) -> None:
        """Bring the broker back; links come back by `FakeLink.reconnect`."""
        self.is_up = True

    # -- delivery --------------------------------------------------------------------------------------------------

    def deliver(self, count: int | None = None) -> int:
        """Deliver up to `count` pending messages (all by default, with those that handlers publish); return how many.

        Calls from handlers return at once: the outermost call delivers.
        """
        with self._lock:
            if self._delivering:
                return 0
            self._delivering = True
        done = 0
        while True:
            with self._lock:
                if not self.pending or done == count:
                    # Under the lock, or a message that another thread adds now would wait for the next one.
                    self._delivering = False
                    return done
                delivery = self.pending.popleft()
                link = self._links.get(delivery.client_id)
            done += 1
            if link is not None:
                try:
                    link._router.dispatch(delivery.message)
                    link._idle()
                except BaseException:  # Ctrl-C in a handler
                    self._delivering = False
                    raise

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish as some client that no link stands for."""
        with self._lock:
            message = Message(topic=topic, payload=payload, retain=False)
            self.log.append(message)
            if retain and payload:
                self.retained[topic] = payload
            elif retain:
                self.retained.pop(topic, None)
            copies = self._copies(topic)
            target = self.held if copies < 0 else self.pending
            for link in list(self._links.values()):
                if link._router.matches(topic):
                    target.extend([Delivery(client_id=link.client_id, message=message)] * abs(copies))
        self._pump()

    def _copies(self, topic: str) -> int:
        """Return how often to deliver a message, negative to hold it."""
        for fault in self._faults:
            if fault.count and topic_matches_sub(fault.topic_filter, topic):
                fault.count -= 1
                return {"drop": 0, "duplicate": 2, "delay": -1}[fault.kind]
        return 1

    def _pump(self) -> None:
        if self.auto:
            self.deliver()

    def _accept(self, link: FakeLink, password: str | None) -> None:
        if not self.is_up:
            raise BrokerUnreachable("no broker answers at memory: it is down")
        if self.users is not None and (password is None or self.users.get(link.client_id) != password):
            raise BrokerRefused(f"the broker at memory refused {link.client_id!r}: the user name or password is wrong")
        with self._lock:
            old = self._links.pop(link.client_id, None)
        if old is not None and old is not link:
            self._lose(old)
        with self._lock:
            self._links[link.client_id] = link
            link._up, link._left_will = True, link.will

    def _send_retained(self, link: FakeLink, topic_filter: str) -> None:
        with self._lock:
            for topic, payload in self.retained.items():
                if topic_matches_sub(topic_filter, topic):
                    message = Message(topic=topic, payload=payload, retain=True)
                    self.pending.append(Delivery(client_id=link.client_id, message=message))

    def _lose(self, link: FakeLink) -> None:
        self._remove(link)
        will = link._left_will
        if will is not None:
            self.publish(will.topic, will.payload, retain=will.retain)

    def _remove(self, link: FakeLink) -> None:
        with self._lock:
            link._up = False
            if self._links.get(link.client_id) is link:
                del self._links[link.client_id]
            self.pending = deque(d for d in self.pending if d.client_id != link.client_id)


class _MatchingRouter(Router):
    """A router that also says whether anything would take a topic."""

    def matches(self, topic: str) -> bool:
        """Whether any filter matches."""
        return any(topic_matches_sub(topic_filter, topic) for topic_filter, _ in self.filters())


class FakeLink:
    """A `Link` to a `FakeBroker`; make it with `FakeBroker.link`."""

    def __init__(
        self, broker: FakeBroker, client_id: str, *, password: str | None, will: Will | None, max_payload_bytes: int
    ) -> None:
        self.broker = broker
        self.client_id = client_id
        self.will = will
        self.counters = LinkCounters()
        self._password = password
        self._cap_bytes = max_payload_bytes or MAX_PAYLOAD_BYTES
        self._router = _MatchingRouter(self.counters)
        self._callbacks: list[Callable[[], None]] = []
        self._idle_callbacks: list[Callable[[], None]] = []
        self._up = False
        self._closed = False
        self._left_will: Will | None = None  # with the broker, by the connection that stands
        if will is not None:
            self.set_will(will)

    @property
    def connected(self) -> bool:
        """Whether the connection stands."""
        return self._up

    def connect(self, *, timeout_s: float) -> None:
        """Connect; never waits. Raises BrokerUnreachable, BrokerRefused, or LinkError when closed or connected."""
        if self._closed or self._up:
            raise LinkError(f"link to memory: {'closed' if self._closed else 'connected'} already")
        self._attach()

    def reconnect(self) -> None:
        """Come back after a fault, as a real link does by itself; nothing happens while the broker is down."""
        if not self._closed and not self._up and self.broker.is_up:
            self._attach()

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Hand a message over; false if there is no connection. Raises PayloadTooLarge, UsageError."""
        check_topic(topic)
        check_outgoing(len(payload), self._cap_bytes, what=f"message to {topic}")
        if not self._up:
            self.counters.not_taken += 1
            return False
        self.broker.publish(topic, payload, retain=retain)
        return True

    def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 1) -> None:
        """Call `handler` for each message that matches, now and after every reconnect."""
        self._router.add(topic_filter, handler, qos)
        if self._up:
            self.broker._send_retained(self, topic_filter)
            self.broker._pump()

    def unsubscribe(self, topic_filter: str) -> None:
        """Take `subscribe` of the same filter back."""
        self._router.remove(topic_filter)

    def on_connect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every connection made from now on."""
        self._callbacks.append(callback)

    def set_will(self, will: Will) -> None:
        """Make the next connection leave `will`; the one that stands keeps what it was made with."""
        check_outgoing(len(will.payload), self._cap_bytes, what="will")
        self.will = will

    def on_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every message that was handled."""
        self._idle_callbacks.append(callback)

    def flush(self, *, timeout_s: float) -> bool:
        """Return whether the connection stands: the broker acknowledges at once."""
        return self._up

    def drain(self, *, to_bytes: int, timeout_s: float) -> bool:
        """Return whether the connection stands: the broker acknowledges at once."""
        return self._up

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Say goodbye; no will is sent."""
        self._closed = True
        self.broker._remove(self)

    def _idle(self) -> None:
        for callback in tuple(self._idle_callbacks):
            self._router.guard("an idle callback", callback)

    def _attach(self) -> None:
        self.broker._accept(self, self._password)
        self.counters.connections += 1
        for topic_filter, _ in self._router.filters():
            self.broker._send_retained(self, topic_filter)
        for callback in tuple(self._callbacks):
            self._router.guard("a connect callback", callback)
        self.broker._pump()
