"""paho's client with three faults mended: it reads ahead, closes after a failed handshake, and keeps what TLS said."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import MQTTErrorCode

from quarl_device.link.read_ahead import ReadAhead


class Client(mqtt.Client):
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
