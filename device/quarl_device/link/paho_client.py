"""paho's client with four faults mended: socket calls, failed handshakes, what TLS said, and messages of any size."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import MQTTErrorCode

from quarl_device.capped_log import CappedWarnings
from quarl_device.link.read_ahead import READ_AHEAD_BYTES, ReadAhead
from quarl_device.wire.limits import MAX_PAYLOAD_BYTES

_LOG = logging.getLogger(__name__)
_MAX_TOPIC_BYTES = 65_535
_QUALITY = 0b0110
_HEAD_BYTES = 2 + _MAX_TOPIC_BYTES + 2
PACKET_CAP_BYTES = MAX_PAYLOAD_BYTES + _HEAD_BYTES
"""No packet of this protocol is larger; MQTT allows 256 MiB, which would be a small board's memory."""


class Client(mqtt.Client):
    """paho, but it reads ahead, a TLS handshake that fails closes its socket, and what TLS said is kept.

    With TLS 1.3 a broker refuses a client's certificate after the handshake: the first read brings the alert, which
    paho makes into "connection lost".

    A message that is larger than any of this protocol is read and thrown away, and acknowledged: ending the connection
    would let whoever sends it keep this client off the broker, and so would leaving it unacknowledged for ever.

    Attributes:
        tls_said: see above.
        overlong: messages thrown away so far.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tls_said: ssl.SSLError | None = None
        self.overlong = 0
        self._overlong_lines = CappedWarnings(_LOG)

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

    @property
    def _is_overlong(self) -> bool:
        return self._in_packet["remaining_length"] > PACKET_CAP_BYTES

    def _packet_handle(self) -> MQTTErrorCode:
        return self._leave_out() if self._is_overlong else super()._packet_handle()

    def _leave_out(self) -> MQTTErrorCode:
        """Acknowledge a message of which only the beginning is here."""
        packet = self._in_packet
        command, head = packet["command"], bytes(packet["packet"][:_HEAD_BYTES])
        if command & 0xF0 != mqtt.PUBLISH:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self.overlong += 1
        end = 2 + int.from_bytes(head[:2], "big")
        topic = head[2:end].decode(errors="replace")[:200]
        self._overlong_lines.warning(
            "a message of %d bytes on %s is larger than any of this protocol, and is left out",
            packet["remaining_length"],
            ascii(topic),
        )
        if not command & _QUALITY:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return self._send_puback(int.from_bytes(head[end : end + 2], "big"))

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._is_overlong:
            # What was thrown away of it is never in memory at once, and neither is what comes next.
            del self._in_packet["packet"][_HEAD_BYTES:]
            bufsize = min(bufsize, READ_AHEAD_BYTES)
        try:
            return super()._sock_recv(bufsize)
        except ssl.SSLError as error:
            self.tls_said = error
            raise
