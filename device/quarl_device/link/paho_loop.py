"""The link's thread: connects, subscribes, runs paho's `loop`, waits, and connects again.

paho's own thread dies silently on a handler's exception, reconnects without jitter, and sends what was in flight before
a cut *after* the birth that a new connection publishes, so that an old retained message would win.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import MQTTErrorCode

from quarl_device.errors import BrokerNotTrusted, BrokerRefused, QuarlError
from quarl_device.link.protocol import Message
from quarl_device.link.wording import Refusal, plain, refusal, tls_fault, too_large, unanswered

if TYPE_CHECKING:
    from quarl_device.link.paho import PahoLink

_log = logging.getLogger(__name__)

_LOOP_S = 1.0
_STABLE_S = 5.0
_FIRST_CAP_S = 0.5
_LARGE_BYTES = 16 * 1024
_CUT_SHORT_TIMES = 3


class Loop:
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
            self._fail(mqtt.error_string(code).rstrip(".") + self._perhaps())

    def _perhaps(self) -> str:
        """Return what may be why the connection ended, "" where nothing tells."""
        if not self.up:
            return unanswered(tls=self.link.url.tls)
        size_bytes = self.link._inflight.largest_bytes
        # A broker that does not take a message of that size says nothing, and it is sent again for ever.
        often = self.link.counters.cut_short >= _CUT_SHORT_TIMES - 1
        return too_large(size_bytes) if often and size_bytes >= _LARGE_BYTES else ""

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
