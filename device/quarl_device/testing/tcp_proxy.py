"""A TCP proxy on the loopback that can cut, stall and refuse: a bad network in front of a good broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

_CHUNK = 65_536
_TICK_S = 0.2


class TcpProxy:
    """Forwards connections to `port` on `host` and counts them.

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
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._spawn(self._accept)

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def cut(self) -> None:
        """Break every connection, as when a cable is pulled and its ends notice."""
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, or take them again."""
        self._refusing = refusing

    def stall(self, stalled: bool = True) -> None:
        """Stop forwarding but keep connections open, or go on."""
        if stalled:
            self._flowing.clear()
        else:
            self._flowing.set()

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
            for sock in (near, far):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {near, far}
            pair = _Pair(near, far)
            self._spawn(self._forward, near, far, pair)
            self._spawn(self._forward, far, near, pair)

    def _forward(self, source: socket.socket, sink: socket.socket, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flowing.wait()
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if pair.last_out():
            with self._lock:
                self._sockets -= {source, sink}
            source.close()
            sink.close()


class _Pair:
    """Two directions of one connection; the last to end closes both sockets."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self._open = 2
        self._lock = threading.Lock()

    def last_out(self) -> bool:
        """Note that a direction ended; true for the second."""
        with self._lock:
            self._open -= 1
            return self._open == 0
