"""What was handed to the client and not yet acknowledged by the broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quarl_device.link.protocol import LinkLimits


class Inflight:
    """Packet ids and sizes of one connection; thread-safe.

    An acknowledgement may come before the publishing thread has learned its packet id, so early ones are kept until
    the id is added. No lock is ever held while calling the client, whose callbacks hold locks of its own.

    Attributes:
        life: counts connections; an id of an earlier life is not added any more.
    """

    def __init__(self) -> None:
        self.life = 0
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._early: set[int] = set()
        self._changed = threading.Condition(threading.Lock())

    def room(self, limits: LinkLimits, size_bytes: int) -> bool:
        """Say whether one more message of `size_bytes` may be handed over."""
        return len(self._sizes) < limits.max_inflight and self._bytes + size_bytes <= limits.max_inflight_bytes

    @property
    def largest_bytes(self) -> int:
        """Size of the largest message that is open; 0 without any."""
        with self._changed:
            return max(self._sizes.values(), default=0)

    def add(self, mid: int, size_bytes: int, life: int) -> bool:
        """Note a packet; false if its connection has ended meanwhile."""
        with self._changed:
            if life != self.life:
                return False
            if mid in self._early:
                self._early.remove(mid)
                return True
            self._sizes[mid] = size_bytes
            self._bytes += size_bytes
            return True

    def settle(self, mid: int) -> None:
        """Note that the broker has acknowledged a packet."""
        with self._changed:
            size = self._sizes.pop(mid, None)
            if size is None:
                self._early.add(mid)
                return
            self._bytes -= size
            self._changed.notify_all()

    def reset(self) -> None:
        """Forget everything: the connection ended."""
        with self._changed:
            self.life += 1
            self._sizes.clear()
            self._early.clear()
            self._bytes = 0
            self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; false on time-out or if the connection ended with something open."""
        with self._changed:
            life = self.life
            empty = self._changed.wait_for(lambda: not self._sizes or self.life != life, timeout_s)
            return empty and self.life == life

    def wait_drained(self, to_bytes: int, timeout_s: float) -> bool:
        """Wait until at most `to_bytes` are open; false on time-out or if the connection ended."""
        with self._changed:
            life = self.life
            drained = self._changed.wait_for(lambda: self._bytes <= to_bytes or self.life != life, timeout_s)
            return drained and self.life == life
