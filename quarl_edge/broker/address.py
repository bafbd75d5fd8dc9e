"""Where a broker listens."""

from __future__ import annotations

import ipaddress
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from quarl_device.errors import BrokerStartFailed, UsageError
from quarl_device.link import BrokerURL
from quarl_edge.broker.authority import check_host

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not bound

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"

_IP = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, kw_only=True)
class Address:
    """A host and a port.

    Attributes:
        host: name or address, without brackets.
        port: TCP port.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`.

        Raises:
            UsageError: not of that form.
        """
        try:
            url = BrokerURL.parse(f"mqtts://{text}")
            check_host(url.host)
        except UsageError:
            raise UsageError(f"bad address {text[:80]!r}: expected HOST:PORT, such as 0.0.0.0:8883") from None
        return cls(host=url.host, port=url.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def nearby(self) -> tuple[str, int]:
        """Where to connect to it from this machine."""
        return _ANYWHERE.get(self.host, self.host), self.port

    @property
    def local_only(self) -> bool:
        """Whether other machines cannot reach it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def is_listened_at(self) -> bool:
        """Whether a process of this machine listens at the port, of this address or of all.

        Linux is asked where it says so: a connection that ends without a word makes a TLS broker log an error.
        """
        try:
            tables = [path.read_text() for path in _TABLES if path.exists()]
            places = _answering(self.host)
        except OSError:
            tables = []
        if tables:
            lines = [line for table in tables for line in table.splitlines()[1:]]
            return not places.isdisjoint(_listening(line, self.port) for line in lines)
        try:
            with socket.create_connection(self.nearby, timeout=0.5):
                return True
        except OSError:
            return False

    def check_free(self) -> None:
        """Refuse an address that nothing can listen at.

        Raises:
            BrokerStartFailed: the port is taken, or the address is not of this machine.
        """
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
        except OSError as error:
            said = error.strerror or str(error)
            raise BrokerStartFailed(f"cannot listen at {self}: {said}", hint="another --listen HOST:PORT") from error


def _answering(host: str) -> set[_IP]:
    """Return the addresses where a listener answers for a host: its own, and all; OSError where nobody knows it."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    own = {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}
    anywhere: set[_IP] = {ipaddress.IPv6Address(0)}  # it may take IPv4 too, and does unless told otherwise
    if any(address.version == 4 for address in own):
        anywhere.add(ipaddress.IPv4Address(0))
    return own | anywhere


def _listening(line: str, port: int) -> _IP | None:
    """Return at which address a row of /proc/net/tcp listens at `port`, None if it does not.

    `proc_net_tcp` in the kernel's documents: an address is 32-bit words in hexadecimal, each as the processor has it.
    """
    fields = line.split()
    if len(fields) < 4 or fields[3] != _LISTENING:
        return None
    words, _, number = fields[1].rpartition(":")
    if number != f"{port:04X}":
        return None
    values = [int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)]
    address = ipaddress.ip_address(b"".join(values))
    return getattr(address, "ipv4_mapped", None) or address
