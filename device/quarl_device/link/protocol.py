"""What the rest of the product may ask of a link.

Every implementation passes `quarl_device.testing.link_conformance`. What callers may rely on:

* Handlers and connect callbacks run one at a time, on the link's own thread, in order of arrival. They must not block.
  An exception in one is caught, counted and logged, and hurts nothing else (W5).
* A publish is taken only while connected. Nothing queues up behind a dead link, and no QoS is trusted for correctness:
  acks of our own decide (see `wire.messages.Ack`).
* After a first success the link reconnects for ever by itself, backing off with full jitter (W7).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from quarl_device.wire.limits import MAX_PAYLOAD_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message as it came.

    Attributes:
        topic: full topic.
        payload: its bytes; checked by nobody yet.
        retain: it was retained before this subscription was made.
    """

    topic: str
    payload: bytes
    retain: bool


Handler = Callable[[Message], None]


@dataclass(frozen=True, kw_only=True)
class Will:
    """What the broker publishes when this link dies without a word.

    Attributes:
        topic: full topic.
        payload: at most the link's cap.
        qos: 0 or 1.
        retain: whether it stays on the topic.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


@dataclass(frozen=True, kw_only=True)
class LinkLimits:
    """Caps and waits of a link.

    Attributes:
        max_payload_bytes: larger publishes raise before they reach the client.
        max_inflight: QoS 1 messages handed to the broker and not yet acknowledged by it; more are not taken.
        max_inflight_bytes: the same in bytes.
        keepalive_s: MQTT keep-alive; a silent peer is noticed within 1.5 times this.
        connect_timeout_s: of one attempt (TCP, TLS and CONNACK).
    """

    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_inflight: int = 1024
    max_inflight_bytes: int = 64 * 1024 * 1024
    keepalive_s: int = 15
    connect_timeout_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Delays between connection attempts: full jitter, so that a fleet does not come back in one wave (W7).

    Attributes:
        base_s: the first delay is drawn from 0..base_s.
        cap_s: no delay is longer.
        factor: growth per failed attempt.
    """

    base_s: float = 0.25
    cap_s: float = 30.0
    factor: float = 2.0

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Return the wait before attempt number `attempt` (from 0), uniform in 0..min(cap, base·factor^attempt)."""
        growth = self.factor ** min(attempt, 64)
        return rng.uniform(0.0, min(self.cap_s, self.base_s * growth))


@dataclass(kw_only=True)
class LinkCounters:
    """What a link has been through; written by the link, read by anybody.

    Attributes:
        connections: successful connections, the first included.
        handler_errors: exceptions caught in handlers and callbacks.
        not_taken: publishes refused because there was no connection or too much in flight.
        cut_short: connections in a row that the broker accepted and that ended within 5 s. A broker that ends the older
            of two clients with one id makes many of them; so does a bad network.
        last_error: of the last attempt or handler, "" if there was none.
    """

    connections: int = field(default=0)
    handler_errors: int = field(default=0)
    not_taken: int = field(default=0)
    cut_short: int = field(default=0)
    last_error: str = field(default="")


class Link(Protocol):
    """One client's connection to a broker."""

    counters: LinkCounters

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted this client and the connection stands, as far as is known."""
        ...

    def connect(self, *, timeout_s: float) -> None:
        """Connect for the first time; returns when every subscription made so far was sent.

        Raises:
            BrokerUnreachable: nothing answered within `timeout_s`; says where and how long.
            BrokerRefused: the broker refused the user, the password or the client id.
        """
        ...

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Hand a message over; false if it was not taken (no connection, or too much in flight).

        Raises:
            PayloadTooLarge: over `LinkLimits.max_payload_bytes`.
            UsageError: the topic holds a wildcard, or is empty.
        """
        ...

    def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 1) -> None:
        """Call `handler` for each message that matches, now and after every reconnect; one handler per filter.

        Raises:
            UsageError: not a filter.
        """
        ...

    def unsubscribe(self, topic_filter: str) -> None:
        """Take `subscribe` of the same filter back; what is on its way already is dropped. Unknown filters are fine."""
        ...

    def on_connect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every connection made from now on, once the subscriptions were sent."""
        ...

    def set_will(self, will: Will) -> None:
        """Make the next connection leave `will`; the one that stands keeps what it was made with.

        Raises:
            PayloadTooLarge: over `LinkLimits.max_payload_bytes`.
        """
        ...

    def on_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the link's thread whenever the messages that have come are handled.

        Whoever answers messages answers many at once there: under load it is called once for all that came together,
        else after each.
        """
        ...

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until the broker has acknowledged every QoS 1 publish and subscription; false if it has not in time."""
        ...

    def drain(self, *, to_bytes: int, timeout_s: float) -> bool:
        """Wait until at most `to_bytes` are open (handed over, not acknowledged yet); false if not in time or down.

        Whoever has much to send paces itself with it, so that what others send is not held up behind it.
        """
        ...

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Say goodbye (no will is sent) and stop; a second call does nothing. Never raises, never hangs."""
        ...
