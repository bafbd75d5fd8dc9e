"""When an agent that ended is started again, and when no more; the unit of systemd is written from the same numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RESTART_S = 5
LIMIT_S = 600
LIMIT_STARTS = 16
"""More than the agent's own crash loop takes: it parks itself twice, after five starts each, on something good."""
WATCHDOG_S = 60
STOP_S = 30
NOT_RESTARTED = (2,)
"""Wrong usage comes out the same every time."""
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_LONG_LIFE_S = 60.0


@dataclass(kw_only=True)
class Restarts:
    """What is remembered of an agent's lives; pure, times are given.

    Attributes:
        starts: when each of the last lives began, in seconds of a clock that never goes back.
        wait_s: before the next start.
    """

    starts: deque[float] = field(default_factory=lambda: deque(maxlen=LIMIT_STARTS))
    wait_s: float = _FIRST_WAIT_S

    def begins(self, now_s: float) -> None:
        """Note a start."""
        self.starts.append(now_s)

    def ended(self, code: int, now_s: float) -> float | None:
        """Return how long to wait before the next start, in seconds; `None` for no other one.

        Args:
            code: that the agent ended with.
            now_s: when.
        """
        if code in NOT_RESTARTED:
            return None
        if len(self.starts) == LIMIT_STARTS and now_s - self.starts[0] <= LIMIT_S:
            return None
        if self.starts and now_s - self.starts[-1] >= _LONG_LIFE_S:
            self.wait_s = _FIRST_WAIT_S
        wait_s, self.wait_s = self.wait_s, min(2 * self.wait_s, _LONGEST_WAIT_S)
        return wait_s
