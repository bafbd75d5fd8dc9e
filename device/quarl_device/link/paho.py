"""The link over paho-mqtt, MQTT 3.1.1, clean sessions.

paho is used without its own thread (`paho_loop` says why): one of ours connects, runs paho's `loop`, and waits. What
was in flight at a cut is forgotten, and whoever needs more re-publishes from `on_connect`.
"""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from quarl_device.errors import BrokerUnreachable, LinkError
from quarl_device.link.inflight import Inflight
from quarl_device.link.paho_client import Client
from quarl_device.link.paho_loop import Loop
from quarl_device.link.protocol import Backoff, Handler, LinkCounters, LinkLimits, Will
from quarl_device.link.router import Router, check_topic
from quarl_device.link.url import BrokerURL
from quarl_device.wire.limits import check_outgoing


class PahoLink:
    """A `Link` over paho-mqtt.

    Args:
        url: the broker.
        client_id: this client's name, also its user name where the URL has none but there is a password.
        password: never logged, never shown.
        will: what the broker publishes when this link dies without a word.
        limits: caps and waits.
        backoff: delays between attempts.
        tls: for `mqtts`, see `Credentials.tls`; by default the system's certificates are trusted and none is shown.

    Raises:
        PayloadTooLarge: the will is over the cap.
    """

    def __init__(
        self,
        url: BrokerURL,
        *,
        client_id: str,
        password: str | None = None,
        will: Will | None = None,
        limits: LinkLimits | None = None,
        backoff: Backoff | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self.client_id = client_id
        self.counters = LinkCounters()
        self._password = password
        self._will = will
        self._limits = limits or LinkLimits()
        self._backoff = backoff or Backoff()
        self._tls = tls
        if will is not None:
            self.set_will(will)
        # Jitter must differ between devices that boot together, so the seed is the system's.
        self._rng = random.Random()  # noqa: S311
        self._router = Router(self.counters)
        self._callbacks: list[Callable[[], None]] = []
        self._idle_callbacks: list[Callable[[], None]] = []
        self._inflight = Inflight()
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"PahoLink({self.url}, client_id={self.client_id!r}, connected={self.connected})"

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted this client and the connection stands, as far as is known."""
        loop = self._loop
        return loop is not None and loop.up

    def connect(self, *, timeout_s: float) -> None:
        """Connect; returns after the broker has acknowledged every subscription and the callbacks have run.

        Raises:
            BrokerUnreachable: nothing answered within `timeout_s`; says where, how long, and the last error.
            BrokerRefused: wrong user, password or client id, or a denied subscription.
            CertificateRefused: the broker refused this client's certificate, or wants one.
            BrokerNotTrusted: the broker's certificate does not hold.
            LinkError: the link is closed, meanwhile too, or already connected.
        """
        if self._closed or self._loop is not None:
            raise LinkError(f"link to {self.url.address}: {'closed' if self._closed else 'connected'} already")
        began = time.monotonic()
        loop = self._loop = Loop(self)
        loop.thread.start()
        ready = loop.first.wait(timeout_s)
        if ready and loop.fault is None and not self._closed:
            return
        self._loop = None
        loop.stop(grace_s=0.0)
        loop.thread.join(timeout=0.2)
        if loop.fault is not None:
            raise loop.fault
        if self._closed:
            raise LinkError(f"link to {self.url.address}: closed while connecting")
        spent_s = time.monotonic() - began
        raise BrokerUnreachable(
            f"no broker answers at {self.url.address}: tried {loop.attempts} times in {spent_s:.1f} s"
            f" (last: {self.counters.last_error or 'no answer'})",
            hint="is it running, and is the address right?",
        )

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Hand a message over; false if there is no connection or too much is in flight.

        Raises:
            PayloadTooLarge: over the link's cap.
            UsageError: the topic holds a wildcard, or is empty.
        """
        check_topic(topic)
        size = len(payload)
        check_outgoing(size, self._limits.max_payload_bytes, what=f"message to {topic}")
        loop = self._loop
        if loop is None or not loop.up or not self._inflight.room(self._limits, size):
            self.counters.not_taken += 1
            return False
        life = self._inflight.life
        info = loop.client.publish(topic, payload, qos=qos, retain=retain)
        taken = info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS and self._inflight.add(info.mid, size, life)
        if not taken:
            self.counters.not_taken += 1
        return taken

    def subscribe(self, topic_filter: str, handler: Handler, *, qos: int = 1) -> None:
        """Call `handler` for each message that matches, now and after every reconnect; one handler per filter.

        Raises:
            UsageError: not a filter.
        """
        self._router.add(topic_filter, handler, qos)
        loop = self._loop
        if loop is not None and loop.up:
            life = self._inflight.life
            code, mid = loop.client.subscribe(topic_filter, qos)
            if code == MQTTErrorCode.MQTT_ERR_SUCCESS and mid is not None:
                self._inflight.add(mid, 0, life)

    def unsubscribe(self, topic_filter: str) -> None:
        """Take `subscribe` of the same filter back; what is on its way already is dropped. Unknown filters are fine."""
        loop = self._loop
        if self._router.remove(topic_filter) and loop is not None and loop.up:
            loop.client.unsubscribe(topic_filter)

    def on_connect(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the link's thread after every connection made from now on."""
        self._callbacks.append(callback)

    def set_will(self, will: Will) -> None:
        """Make the next connection leave `will`; the one that stands keeps what it was made with.

        Raises:
            PayloadTooLarge: over the link's cap.
        """
        check_outgoing(len(will.payload), self._limits.max_payload_bytes, what="will")
        self._will = will

    def on_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the link's thread whenever the messages that have come are handled."""
        self._idle_callbacks.append(callback)

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until the broker has acknowledged every publish and subscription; false if it has not in time."""
        return self.connected and self._inflight.wait_empty(timeout_s) and self.connected

    def drain(self, *, to_bytes: int, timeout_s: float) -> bool:
        """Wait until at most `to_bytes` are open; false if not in time or down."""
        return self.connected and self._inflight.wait_drained(to_bytes, timeout_s) and self.connected

    def close(self, *, timeout_s: float = 2.0) -> None:
        """Say goodbye (no will is sent) and stop; idempotent, never raises, never hangs."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.stop(grace_s=timeout_s)
        if threading.current_thread() is not loop.thread:
            loop.thread.join(timeout=timeout_s)

    # -- for the loop ----------------------------------------------------------------------------------------------

    def _make_client(self) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            clean_session=True,
            protocol=mqtt.MQTTv311,
            # Off, or paho falls back to MQTT 3.1 by itself.
            reconnect_on_failure=False,
        )
        client.connect_timeout = self._limits.connect_timeout_s
        # `Inflight` limits; paho would queue beyond its own limit without bound.
        client.max_inflight_messages_set(0)
        user = self.url.user or (self.client_id if self._password is not None else "")
        if user:
            client.username_pw_set(user, self._password)
        if self.url.tls:
            client.tls_set_context(self._tls or ssl.create_default_context())
        client.connect_async(self.url.host, self.url.port, keepalive=self._limits.keepalive_s)
        return client
