"""Log lines that a hostile or broken peer can provoke without end must not fill a disk."""

from __future__ import annotations

import logging
from collections import deque

LOGGED_REFUSALS = 20


class CappedWarnings:
    """Shows the first warnings of one kind and counts the rest.

    Args:
        logger: where they go.
        limit: how many are shown.

    Attributes:
        count: warnings so far, shown or not.
    """

    def __init__(self, logger: logging.Logger, *, limit: int = LOGGED_REFUSALS) -> None:
        self._logger = logger
        self._limit = limit
        self.count = 0

    def warning(self, text: str, *values: object) -> None:
        """Warn, or only count."""
        self.count += 1
        if self.count <= self._limit:
            last = " (more of these are counted, not shown)" if self.count == self._limit else ""
            self._logger.warning(text + last, *values)

    def sum_up(self, what: str) -> None:
        """Say how many were not shown, if any; `what` names them."""
        if self.count > self._limit:
            self._logger.warning("%d more %s were not shown", self.count - self._limit, what)


class Burst:
    """At most so many lines in so many seconds, for lines that are worth showing again later.

    Args:
        lines: at most.
        period_s: in.
    """

    def __init__(self, *, lines: int = 20, period_s: float = 60.0) -> None:
        self._times: deque[float] = deque(maxlen=lines)
        self._period_s = period_s

    def allows(self, now_s: float) -> bool:
        """Whether a line may be shown at `now_s`, monotonic time; then it counts as shown."""
        if len(self._times) == self._times.maxlen and now_s - self._times[0] <= self._period_s:
            return False
        self._times.append(now_s)
        return True


class Fading:
    """When a line that would say the same again is worth it: after 10 s, 1 min, 5 min, and every 5 min from then on."""

    _AFTER_S = (10.0, 60.0, 300.0)

    def __init__(self) -> None:
        self._what: object = self  # equal to nothing that is asked for
        self._since_s = self._next_s = 0.0

    def is_due(self, what: object, now_s: float) -> bool:
        """Whether a line about `what` may be shown at `now_s`, monotonic time: at once where that has changed."""
        if what != self._what:
            self._what, self._since_s, self._next_s = what, now_s, now_s + self._AFTER_S[0]
            return True
        if now_s < self._next_s:
            return False
        later = (self._since_s + after_s for after_s in self._AFTER_S if self._since_s + after_s > now_s)
        self._next_s = next(later, now_s + self._AFTER_S[-1])
        return True
