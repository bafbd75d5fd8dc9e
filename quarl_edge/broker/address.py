"""Where a broker listens."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from quarl_device.errors import BrokerStartFailed, UsageError
from quarl_device.link import BrokerURL
from quarl_edge.broker.authority import check_host

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not bound

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"


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
        """Whether a process of this machine listens at the port.

        Linux is asked where it says so: a connection that ends without a word makes a TLS broker log an error.
        """
        try:
            tables = [path.read_text() for path in _TABLES if path.exists()]
        except OSError:
            tables = []
        if tables:
            return any(_listens(line, self.port) for table in tables for line in table.splitlines()[1:])
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


def _listens(line: str, port: int) -> bool:
    """Whether a row of /proc/net/tcp is a socket that listens at `port` (`proc_net_tcp` in the kernel's documents)."""
    fields = line.split()
    return len(fields) > 3 and fields[3] == _LISTENING and fields[1].rpartition(":")[2] == f"{port:04X}"
