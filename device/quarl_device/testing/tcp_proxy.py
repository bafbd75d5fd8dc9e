"""A TCP proxy on the loopback that fails by order: a bad network in front of a good broker.

`cut` (now), `cut_after` (at byte N of a direction), `refuse`, `stall` (nothing moves until it goes on), `half_open`
(what is open now goes silent for ever, both ways or one, and neither end is told), `shape` (delay, bytes per second)
and `filter_packets` (MQTT messages lost, doubled, out of order; see `packet_faults`). `heal` ends all of them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol

Way = Literal["up", "down"]
"""`up` is from the client to the server."""

_CHUNK = 65_536
_TICK_S = 0.2
_SLICE_S = 0.02


class PacketFilter(Protocol):
    """Changes what one direction of one connection carries."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes as they came; returns (what goes on, what goes back to the sender), whole packets each."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How slow a direction is.

    Attributes:
        delay_s: that every read waits before it goes on.
        bytes_per_s: throughput of a connection's direction, 0 for no bound.
    """

    delay_s: float = 0.0
    bytes_per_s: int = 0


class TcpProxy:
    """Forwards connections to `port` on `host` and counts them. Thread-safe.

    Args:
        port: of the server behind it.
        host: of that server.

    Attributes:
        port: where it listens.
        accepted: connections so far.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(_TICK_S)
        self.port: int = self._server.getsockname()[1]
        self.accepted = 0
        self._refusing = False
        self._shape = Shape()
        self._make_filter: Callable[[Way], PacketFilter] | None = None
        self._bytes_left: dict[Way, int] = {}
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._connections: set[_Connection] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._spawn(self._accept)

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- faults ------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break every connection, as when a cable is pulled and its ends notice."""
        for connection in self._open():
            connection.cut()

    def cut_after(self, way: Way, count: int) -> None:
        """Break all connections once `count` more bytes went `way`, over all of them; not one more is forwarded."""
        with self._lock:
            self._bytes_left[way] = count

    def half_open(self, *ways: Way) -> None:
        """Make the connections of now silent for ever, both ways by default: what is sent on them goes nowhere."""
        for connection in self._open():
            connection.silent |= set(ways or ("up", "down"))

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, or take them again."""
        self._refusing = refusing

    def stall(self, stalled: bool = True) -> None:
        """Stop forwarding but keep connections open, or go on."""
        if stalled:
            self._flowing.clear()
        else:
            self._flowing.set()

    def shape(self, *, delay_s: float = 0.0, bytes_per_s: int = 0) -> None:
        """Make both directions slow from now on; see `Shape`."""
        self._shape = Shape(delay_s=delay_s, bytes_per_s=bytes_per_s)

    def filter_packets(self, make: Callable[[Way], PacketFilter] | None) -> None:
        """Put a filter of its own into each direction of each connection that begins from now on; `None` stops that."""
        self._make_filter = make

    def heal(self) -> None:
        """End every fault; connections that were cut or went silent stay so, and those with a filter are cut."""
        filtered, self._make_filter = self._make_filter is not None, None
        with self._lock:
            self._bytes_left.clear()
        self.shape()
        self.refuse(False)
        self.stall(False)
        if filtered:
            self.cut()

    def close(self) -> None:
        """Break everything and stop."""
        self._closed.set()
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join(timeout=2.0)

    # -- forwarding --------------------------------------------------------------------------------------------------

    def _open(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    def _spawn(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True, name="tcp-proxy")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.accepted += 1
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                far = socket.create_connection(self._target, timeout=2.0)
            except OSError:
                near.close()
                continue
            connection = _Connection(near, far, self._make_filter)
            with self._lock:
                self._connections.add(connection)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._spawn(self._forward, connection, "up")
            self._spawn(self._forward, connection, "down")

    def _forward(self, connection: _Connection, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := connection.receive(way):
                self._hold_up()
                onward, ends = self._allowed(way, connection.filtered(way, data))
                if way not in connection.silent:
                    self._send(connection, way, onward)
                if ends:
                    self.cut()
                    break
        connection.cut()
        if connection.last_out():
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _hold_up(self) -> None:
        self._flowing.wait()
        if self._shape.delay_s:
            self._closed.wait(self._shape.delay_s)

    def _allowed(self, way: Way, data: bytes) -> tuple[bytes, bool]:
        """Return what may still go `way`, and whether the connections end behind it."""
        with self._lock:
            left = self._bytes_left.get(way)
            if left is None:
                return data, False
            self._bytes_left[way] = left - len(data)
            if len(data) < left:
                return data, False
            del self._bytes_left[way]
            return data[:left], True

    def _send(self, connection: _Connection, way: Way, data: bytes) -> None:
        """Send at the speed of the moment, in slices, so that a change of it is felt soon."""
        view = memoryview(data)
        with connection.writing(way) as sink:
            while view:
                rate = self._shape.bytes_per_s
                size = min(len(view), max(1, int(rate * _SLICE_S)) if rate else len(view))
                sink.sendall(view[:size])
                view = view[size:]
                if rate and self._closed.wait(size / rate):
                    return


class _Connection:
    """Two sockets and what happens to the bytes between them."""

    def __init__(
        self, near: socket.socket, far: socket.socket, make_filter: Callable[[Way], PacketFilter] | None
    ) -> None:
        self._from: dict[Way, socket.socket] = {"up": near, "down": far}
        self._to: dict[Way, socket.socket] = {"up": far, "down": near}
        self._filters = {way: make_filter(way) for way in self._from} if make_filter else {}
        self._writing: dict[Way, threading.Lock] = {"up": threading.Lock(), "down": threading.Lock()}
        self._open = 2
        self._lock = threading.Lock()
        self.silent: set[Way] = set()
        for sock in (near, far):
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self, way: Way) -> bytes:
        return self._from[way].recv(_CHUNK)

    def filtered(self, way: Way, data: bytes) -> bytes:
        """Return what of `data` goes on; what the filter answers goes back at once."""
        if not self._filters:
            return data
        onward, back = self._filters[way].feed(data)
        other: Way = "down" if way == "up" else "up"
        if back and other not in self.silent:
            with self.writing(other) as sink:
                sink.sendall(back)
        return onward

    @contextlib.contextmanager
    def writing(self, way: Way) -> Iterator[socket.socket]:
        """Write whole packets: what goes back to a sender is never in the middle of what the other direction brings."""
        with self._writing[way]:
            yield self._to[way]

    def cut(self) -> None:
        for sock in self._from.values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def last_out(self) -> bool:
        """Note that a direction ended; true for the second."""
        with self._lock:
            self._open -= 1
            return self._open == 0

    def close(self) -> None:
        for sock in self._from.values():
            sock.close()
