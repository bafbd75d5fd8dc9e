"""The link over paho-mqtt, MQTT 3.1.1, clean sessions.

paho is used without its own thread: that thread dies silently on a handler's exception, reconnects without jitter, and
sends what was in flight before a cut *after* the birth that a new connection publishes, so that an old retained
message would win. Here one thread of ours connects, runs paho's `loop`, and waits; what was in flight at a cut is
forgotten, and whoever needs more re-publishes from `on_connect`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from quarl_device.errors import BrokerNotTrusted, BrokerRefused, BrokerUnreachable, LinkError, QuarlError
from quarl_device.link.inflight import Inflight
from quarl_device.link.protocol import Backoff, Handler, LinkCounters, LinkLimits, Message, Will
from quarl_device.link.read_ahead import ReadAhead
from quarl_device.link.router import Router, check_topic
from quarl_device.link.url import BrokerURL
from quarl_device.link.wording import Refusal, plain, refusal, tls_fault, unanswered
from quarl_device.wire.limits import check_outgoing

_log = logging.getLogger(__name__)

_LOOP_S = 1.0
_STABLE_S = 5.0
_FIRST_CAP_S = 0.5


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
        self._loop: _Loop | None = None
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
        loop = self._loop = _Loop(self)
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

    def _make_client(self) -> _Client:
        client = _Client(
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


class _Client(mqtt.Client):
    """paho, but it reads ahead, a TLS handshake that fails closes its socket, and what TLS said is kept.

    With TLS 1.3 a broker refuses a client's certificate after the handshake: the first read brings the alert, which
    paho makes into "connection lost".
    """

    tls_said: ssl.SSLError | None = None

    def _create_socket(self) -> Any:
        return ReadAhead(super()._create_socket())

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Handle every packet that can be had without the system."""
        code = super().loop_read(max_packets)
        while code == MQTTErrorCode.MQTT_ERR_SUCCESS and self.ahead:
            code = super().loop_read(max_packets)
        return code

    @property
    def ahead(self) -> int:
        """Bytes read ahead."""
        sock: Any = self._sock
        return 0 if sock is None else int(sock.pending())

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        context = self._ssl_context
        if context is None:
            raise ValueError("no TLS context")
        tcp_sock.settimeout(self._connect_timeout)
        self.tls_said = None
        return context.wrap_socket(tcp_sock, server_hostname=self._host)

    def _sock_recv(self, bufsize: int) -> bytes:
        try:
            return super()._sock_recv(bufsize)
        except ssl.SSLError as error:
            self.tls_said = error
            raise


class _Loop:
    """The link's thread from one `connect` to its end. All paho callbacks run on this thread."""

    def __init__(self, link: PahoLink) -> None:
        self.link = link
        self.up = False
        self.attempts = 0
        self.fault: QuarlError | None = None
        self.first = threading.Event()
        self.client = link._make_client()
        self.thread = threading.Thread(target=self._run, name=f"link-{link.client_id}", daemon=True)
        self._halt = threading.Event()
        self._halt_by = 0.0
        self._ready = False
        self._heard = False
        self._connack_code: int | None = None
        self._unconfirmed: dict[int, str] = {}
        self._confirm_by = 0.0
        self.client.on_socket_open = _no_delay
        # paho lets the publishing thread write to the socket itself unless somebody claims to watch for writability.
        self.client.on_socket_register_write = _ignore
        self.client.on_connect = self._on_connack
        self.client.on_subscribe = self._on_suback
        self.client.on_publish = self._on_published
        self.client.on_message = self._on_message

    def stop(self, *, grace_s: float) -> None:
        """Ask the thread to say goodbye and end, by force after `grace_s`."""
        self._halt_by = time.monotonic() + grace_s
        self._halt.set()
        # The thread may be closing paho's sockets at this very moment; then there is nobody left to say goodbye to.
        with contextlib.suppress(OSError, ValueError):
            self.client.disconnect()

    def _run(self) -> None:
        failures = 0
        while not self._halt.is_set():
            began = time.monotonic()
            self.attempts += 1
            try:
                self._live()
            except ssl.SSLError as error:
                self._refuse(tls_fault(error))
            except Exception as error:  # whatever paho or the system throws, the link goes on
                self._fail(plain(error), hint="is it running?")
            was_accepted, was_ready = self.up, self._ready
            self._down()
            if self.fault is not None and not self.first.is_set():
                self.first.set()
                break
            lasted = time.monotonic() - began > _STABLE_S
            stable = was_ready and lasted
            failures = 0 if stable else failures + 1
            counters = self.link.counters
            counters.cut_short = counters.cut_short + 1 if was_accepted and not lasted else 0
            delay_s = self.link._backoff.delay_s(failures, self.link._rng)
            # Whoever waits in `connect` has a deadline, and the broker may just be starting.
            self._halt.wait(delay_s if self.first.is_set() else min(delay_s, _FIRST_CAP_S))
        self._down()
        self._release()
        # Nobody waits in `connect` for a link that was closed.
        self.first.set()

    def _live(self) -> None:
        """Connect once and serve until the connection ends."""
        self._connack_code = None
        self._confirm_by = time.monotonic() + 2 * self.link._limits.connect_timeout_s
        will = self.link._will
        if will is not None:
            self.client.will_set(will.topic, will.payload, will.qos, will.retain)
        self.client.reconnect()
        code = MQTTErrorCode.MQTT_ERR_SUCCESS
        while code == MQTTErrorCode.MQTT_ERR_SUCCESS:
            wait_s = _LOOP_S
            if self._halt.is_set():
                wait_s = self._halt_by - time.monotonic()
                if wait_s <= 0:
                    return
            code = self.client.loop(min(wait_s, _LOOP_S))
            if self._heard:
                self._heard = False
                for callback in tuple(self.link._idle_callbacks):
                    self.link._router.guard("an idle callback", callback)
            if not self._ready and not self._halt.is_set() and time.monotonic() > self._confirm_by:
                raise TimeoutError("the broker accepted the connection but does not answer")
        if self._connack_code:
            given = self.link._password is not None
            self._refuse(refusal(self._connack_code, password_given=given, tls=self.link.url.tls))
        elif self.client.tls_said is not None and not self._halt.is_set():
            self._refuse(tls_fault(self.client.tls_said))
        elif code == MQTTErrorCode.MQTT_ERR_PROTOCOL and not self.up:
            # Not final: paho does not tell a broker that refuses the version from one that talks nonsense.
            self._fail("it does not speak MQTT 3.1.1")
        elif not self._halt.is_set():
            self._fail(mqtt.error_string(code).rstrip(".") + ("" if self.up else unanswered(tls=self.link.url.tls)))

    def _refuse(self, said: Refusal) -> None:
        self._fail(said.reason, final=said.final, hint=said.hint, error=said.error)

    def _fail(
        self, reason: str, *, final: bool = False, hint: str = "", error: type[BrokerRefused] = BrokerRefused
    ) -> None:
        self.link.counters.last_error = reason
        address = self.link.url.address
        if final and not self.first.is_set() and self.fault is None:
            broker, client = f"the broker at {address}", repr(self.link.client_id)
            who = f"{client} refused {broker}" if error is BrokerNotTrusted else f"{broker} refused {client}"
            self.fault = error(f"{who}: {reason}", hint=hint)
        if not self.first.is_set():
            return
        mends = f" ({hint})" if hint else ""
        if self._ready:
            _log.warning("lost the broker at %s: %s; connecting again%s", address, reason, mends)
        else:
            _log.warning("cannot connect to the broker at %s: %s; trying again%s", address, reason, mends)

    def _down(self) -> None:
        self.up = self._ready = False
        self._unconfirmed = {}
        self.link._inflight.reset()

    def _release(self) -> None:
        """Break the cycle between client and loop, so that paho's sockets are closed now and not by a later GC."""
        for name in ("on_connect", "on_subscribe", "on_publish", "on_message"):
            setattr(self.client, name, None)
        self.client._reset_sockets()

    # -- paho's callbacks ------------------------------------------------------------------------------------------

    def _on_connack(self, client: mqtt.Client, _user: Any, _flags: Any, code: Any, _properties: Any) -> None:
        if code.is_failure:
            self._connack_code = code.value
            return
        # Or paho would now re-send what was in flight before the cut.
        client.drop_out_messages()
        self.up = True
        for topic_filter, qos in self.link._router.filters():
            result, mid = client.subscribe(topic_filter, qos)
            if result == MQTTErrorCode.MQTT_ERR_SUCCESS and mid is not None:
                self._unconfirmed[mid] = topic_filter
        if not self._unconfirmed:
            self._become_ready()

    def _on_suback(self, _client: mqtt.Client, _user: Any, mid: int, codes: Any, _properties: Any) -> None:
        topic_filter = self._unconfirmed.pop(mid, "")
        if any(code.is_failure for code in codes):
            self._fail(f"it denied the subscription to {topic_filter or 'a topic'}", final=True)
        if not topic_filter:
            self.link._inflight.settle(mid)
        elif not self._unconfirmed and self.fault is None:
            self._become_ready()
        elif self.fault is not None:
            self.client.disconnect()

    def _become_ready(self) -> None:
        self._ready = True
        self.link.counters.connections += 1
        if self.first.is_set():
            _log.info("connected to the broker at %s again", self.link.url.address)
        for callback in tuple(self.link._callbacks):
            self.link._router.guard("a connect callback", callback)
        self.first.set()

    def _on_published(self, _client: mqtt.Client, _user: Any, mid: int, _code: Any, _properties: Any) -> None:
        self.link._inflight.settle(mid)

    def _on_message(self, _client: mqtt.Client, _user: Any, message: mqtt.MQTTMessage) -> None:
        self._heard = True
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        self.link._router.dispatch(Message(topic=topic, payload=bytes(message.payload), retain=message.retain))


def _no_delay(_client: mqtt.Client, _user: Any, sock: Any) -> None:
    """Send small packets at once: with Nagle's algorithm PUBACK and ack wait 40 ms for each other."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _ignore(_client: mqtt.Client, _user: Any, _sock: Any) -> None:
    """Do nothing: the loop's own wake-up socket is enough."""
