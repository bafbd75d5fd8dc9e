"""Whether there is a learner to talk to, and since when not. Pure; no clock of its own."""

from __future__ import annotations

from typing import Literal

Learner = Literal["unmet", "here", "silent", "lost", "left"]
"""What is known of the learner: never met, there, not heard of for long, gone by its will, gone by its own word."""

Absence = Literal["", "link down", "no learner", "learner left", "learner lost"]


class Presence:
    """What link and learner show of themselves.

    Args:
        silent_s: a learner not heard of for so long counts as lost.

    Attributes:
        link_up: as far as was told.
        learner: what is known of it.
        absent_s: how long there has been nobody to talk to, up to the last `note`.
    """

    def __init__(self, *, silent_s: float) -> None:
        self.link_up = False
        self.learner: Learner = "unmet"
        self.absent_s = 0.0
        self._silent_s = silent_s
        self._beat = -1
        self._heard_s = 0.0
        self._absent_since_s: float | None = None

    @property
    def absent(self) -> Absence:
        """Why nobody can be talked to, "" if somebody can."""
        if not self.link_up:
            return "link down"
        match self.learner:
            case "here":
                return ""
            case "unmet":
                return "no learner"
            case "left":
                return "learner left"
        return "learner lost"

    def born(self, *, beat: int, anew: bool, now_s: float) -> bool:
        """A birth was heard, of a new epoch or with another beat than before; returns whether that ends an absence."""
        if not anew and beat == self._beat:
            return False
        returned = self.learner != "here"
        self.learner, self._beat, self._heard_s = "here", beat, now_s
        return returned

    def answered(self, now_s: float) -> None:
        """An ack came; a late one does not bring back a learner whose will or goodbye has come."""
        if self.learner == "silent":
            self.learner = "here"
        self._heard_s = now_s

    def parted(self, *, left: bool) -> bool:
        """The learner's farewell (`left`) or its will was heard; returns whether it is news."""
        said: Learner = "left" if left else "lost"
        # A will that comes late does not take a goodbye back.
        if self.learner in ("unmet", "left", said):
            return False
        self.learner = said
        return True

    def note(self, now_s: float) -> None:
        """Time passed: a learner that is not heard of falls silent."""
        if self.learner == "here" and now_s - self._heard_s > self._silent_s:
            self.learner = "silent"
        if not self.absent:
            self._absent_since_s, self.absent_s = None, 0.0
            return
        self._absent_since_s = now_s if self._absent_since_s is None else self._absent_since_s
        self.absent_s = now_s - self._absent_since_s
