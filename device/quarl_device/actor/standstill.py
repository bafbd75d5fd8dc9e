"""Why an actor stands still, since when, and for how long in all."""

from __future__ import annotations

import logging
import re

from quarl_device.capped_log import Burst

_LOG = logging.getLogger(__name__)
_STEADY_S = 1.0
_ORDINARY = ("", "no credit", "catching up", "waiting for the next policy")  # these come and go many times a second


class Standstill:
    """Notes the reason of every moment; pure but for its log lines.

    Args:
        now_s: monotonic time.

    Attributes:
        reason: why the loop stands still now, "" if it runs.
        since_s: monotonic time at which it ran last, or since when it runs.
        reason_since_s: the same, or that since which it stands still for that kind of reason.
    """

    def __init__(self, now_s: float) -> None:
        self.reason = ""
        self.since_s = self.reason_since_s = now_s
        self._noted_s = now_s
        self._spent_s: dict[str, float] = {}
        self._announced = ""
        self._announced_s = now_s
        self._lines = Burst()

    def note(self, reason: str, now_s: float) -> None:
        """The loop stands still for `reason` now, or runs ("")."""
        if self.reason:
            self._spent_s[self.reason] = self._spent_s.get(self.reason, 0.0) + now_s - self._noted_s
        self._noted_s = now_s
        if reason != self.reason:
            # Forged births can make a learner come and go many times a second.
            if reason not in _ORDINARY and self._lines.allows(now_s):
                _LOG.info("standing still: %s", reason)
            if not (reason and self.reason):
                self.since_s = self.reason_since_s = now_s
            elif _kind(reason) != _kind(self.reason):
                self.reason_since_s = now_s
            self.reason = reason

    def lasting(self, now_s: float) -> str:
        """Return `reason` once the loop has stood still for a while; short stops are how a fast actor is held back."""
        return self.reason if now_s - self.since_s > _STEADY_S else ""

    def announced(self, now_s: float) -> None:
        """The device's birth says what is `lasting` now."""
        self._announced, self._announced_s = self.lasting(now_s), now_s

    def is_news(self, now_s: float) -> bool:
        """Whether the birth says something else than what is `lasting`; at most once a second."""
        return self.lasting(now_s) != self._announced and now_s - self._announced_s > _STEADY_S

    def since_unix_s(self, now_s: float, now_unix_s: float) -> float:
        """Return since when the loop stands still for this reason, on the wall clock; 0 while it runs."""
        return now_unix_s - (now_s - self.reason_since_s) if self.reason else 0.0

    @property
    def total_s(self) -> float:
        """Seconds spent standing still, up to the last note."""
        return sum(self._spent_s.values())

    def by_reason(self) -> dict[str, float]:
        """Return the seconds spent standing still, by reason."""
        return {reason: round(spent_s, 3) for reason, spent_s in self._spent_s.items()}


def _kind(reason: str) -> str:
    """Return what stays of a reason while its numbers change; those that come and go are of one kind."""
    return "" if reason in _ORDINARY else re.sub(r"[\d.,]+", "", reason)
