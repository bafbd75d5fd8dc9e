"""Whether there is a learner to talk to, and since when not. Pure; no clock of its own."""

from __future__ import annotations

from typing import Literal

Absence = Literal["", "link down", "no learner"]


class Presence:
    """What link and learner show of themselves.

    Args:
        silent_s: a learner not heard of for so long counts as gone.

    Attributes:
        link_up: as far as was told.
        absent_s: how long there has been nobody to talk to, up to the last `note`.
    """

    def __init__(self, *, silent_s: float) -> None:
        self.link_up = False
        self.absent_s = 0.0
        self._silent_s = silent_s
        self._online = False
        self._left = False  # it said goodbye, or its will did: a late ack does not bring it back
        self._beat = -1
        self._heard_s = 0.0
        self._absent_since_s: float | None = None

    @property
    def absent(self) -> Absence:
        """Why nobody can be talked to, "" if somebody can."""
        if not self.link_up:
            return "link down"
        return "" if self._online else "no learner"

    def born(self, *, beat: int, anew: bool, now_s: float) -> bool:
        """A birth was heard, of a new epoch or with another beat than before; returns whether that ends an absence."""
        if not anew and beat == self._beat:
            return False
        returned = not self._online
        self._online, self._left, self._beat, self._heard_s = True, False, beat, now_s
        return returned

    def answered(self, now_s: float) -> None:
        """An ack came."""
        self._online = not self._left
        self._heard_s = now_s

    def left(self) -> bool:
        """The learner's will or farewell was heard; returns whether it was there."""
        was_there, self._online = self._online, False
        self._left = self._left or was_there
        return was_there

    def note(self, now_s: float) -> None:
        """Time passed: a silent learner is gone."""
        if self._online and now_s - self._heard_s > self._silent_s:
            self._online = False
        if not self.absent:
            self._absent_since_s, self.absent_s = None, 0.0
            return
        self._absent_since_s = now_s if self._absent_since_s is None else self._absent_since_s
        self.absent_s = now_s - self._absent_since_s
