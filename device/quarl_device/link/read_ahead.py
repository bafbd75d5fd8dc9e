"""A socket that reads ahead: paho asks for each packet in five small reads, which would be five system calls."""

from __future__ import annotations

from typing import Any

READ_AHEAD_BYTES = 256 * 1024


class ReadAhead:
    """A connected socket, plain or TLS, with a buffer before `recv`; everything else is the socket's own.

    Args:
        sock: connected.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._ahead = b""
        self._at = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes, b"" at the end; raises what the socket raises."""
        if self._at == len(self._ahead):
            if size >= READ_AHEAD_BYTES:
                return bytes(self._sock.recv(size))
            # Forgotten before the call, which may raise.
            self._ahead, self._at = b"", 0
            self._ahead = self._sock.recv(READ_AHEAD_BYTES)
        chunk = self._ahead[self._at : self._at + size]
        self._at += len(chunk)
        return chunk

    def pending(self) -> int:
        """Return how many bytes can be had without the system; while there are any, paho does not wait for more."""
        ahead = len(self._ahead) - self._at
        return ahead or (self._sock.pending() if hasattr(self._sock, "pending") else 0)
