"""Blocks that are sent and not yet inserted: how many may be, and when silence about them has lasted too long. Pure."""

from __future__ import annotations

from collections import deque


class Window:
    """What is in flight.

    Args:
        max_blocks: most of them.
        max_bytes: the same in bytes; one block may go over it.
        resend_after_s: silence after which they are sent again; doubles up to `resend_max_s`.
        resend_max_s: see above.
    """

    def __init__(self, *, max_blocks: int, max_bytes: int, resend_after_s: float, resend_max_s: float) -> None:
        self._max_blocks, self._max_bytes = max_blocks, max_bytes
        self._resend_after_s, self._resend_max_s = resend_after_s, resend_max_s
        self._sent: deque[tuple[int, int]] = deque()  # (sequence, bytes)
        self._bytes = 0
        self._quiet_since_s = 0.0
        self._patience_s = resend_after_s

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def open(self) -> bool:
        """Whether another block may be sent."""
        return len(self._sent) < self._max_blocks and self._bytes < self._max_bytes

    def add(self, sequence: int, size_bytes: int) -> None:
        """A block is sent."""
        self._sent.append((sequence, size_bytes))
        self._bytes += size_bytes

    def take_back(self, sequence: int) -> int:
        """The last block was not sent after all; returns its bytes."""
        if not self._sent or self._sent[-1][0] != sequence:
            return 0
        size_bytes = self._sent.pop()[1]
        self._bytes -= size_bytes
        return size_bytes

    def arrived(self, inserted: int) -> None:
        """Everything up to a sequence has come in."""
        while self._sent and self._sent[0][0] <= inserted:
            self._bytes -= self._sent.popleft()[1]

    def clear(self) -> None:
        """What is in flight may be lost: it is sent again."""
        self._sent.clear()
        self._bytes = 0

    # -- silence -----------------------------------------------------------------------------------------------------

    def listen(self, now_s: float) -> None:
        """Silence begins now."""
        self._quiet_since_s = now_s

    def answered(self, now_s: float) -> None:
        """Something moved: silence begins anew, and patience too."""
        self._quiet_since_s, self._patience_s = now_s, self._resend_after_s

    def silent_for_too_long(self, now_s: float, *, at_least_s: float = 0.0) -> bool:
        """Say whether patience is at its end; if so it is longer next time."""
        if now_s - self._quiet_since_s < max(self._patience_s, at_least_s):
            return False
        self._patience_s = min(2 * self._patience_s, self._resend_max_s)
        self._quiet_since_s = now_s
        return True
