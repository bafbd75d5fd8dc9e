"""How fast what waits is delivered, and when it will be done: shown, never decided upon. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

BACKLOG_BLOCKS = 64
"""What an actor may have in flight at any time is no backlog."""
_WINDOW_S = 10.0
_LONG_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How a backlog shrinks.

    Attributes:
        bytes_per_s: by which it does, what is made meanwhile taken off; 0 if it does not.
        left_s: until it is gone at that rate; `None` where no end is in sight.
        known: it was watched for long enough to tell.
    """

    bytes_per_s: float = 0.0
    left_s: float | None = None
    known: bool = False

    def __str__(self) -> str:
        if self.left_s is None:
            return "no end in sight"
        return f"{self.bytes_per_s / 1024:,.0f} KiB/s, about {lasting(self.left_s)} left"


class Backlog:
    """Watches the bytes that wait, over the last ten seconds; over the last minute where nothing moved in those.

    A learner may take one big block in half a minute: then a few seconds without one say nothing.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, pending_bytes: int, now_s: float) -> None:
        """So much waits at a moment, in monotonic seconds."""
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - _LONG_S:
            self._seen.popleft()
        self._seen.append((now_s, pending_bytes))

    @property
    def delivery(self) -> Delivery:
        """How it goes."""
        if len(self._seen) < 2:
            return Delivery()
        now_s, pending = self._seen[-1]
        lately = max((at for at in self._seen if at[0] <= now_s - _WINDOW_S), default=self._seen[0])
        for began_s, before in (lately, self._seen[0]):
            rate = max(0.0, (before - pending) / max(now_s - began_s, 1e-9))
            if rate:
                return Delivery(bytes_per_s=rate, left_s=pending / rate, known=True)
        return Delivery(known=now_s - self._seen[0][0] >= _WINDOW_S)


def lasting(seconds: float) -> str:
    """Return a duration in words, as short as it is useful."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.1f} h"
