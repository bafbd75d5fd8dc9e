"""Why an actor makes no more experience: the words that births, telemetry, log and summary use."""

from __future__ import annotations

from typing import Literal

from quarl_device.actor.presence import Absence

Blocked = Literal[
    "",
    "link down",
    "no learner",
    "learner left",
    "learner lost",
    "no policy",
    "no credit",
    "catching up",
    "spool full: link down",
    "spool full: no learner",
    "spool full: learner left",
    "spool full: learner lost",
    "spool full: no credit",
    "spool full: learner of another task",
    "spool full: learner slow",
    "spool cannot be written",
    "waiting for the next policy",
]


def spool_full(absence: Absence, *, sets_aside: bool, lacks_credit: bool) -> Blocked:
    """Return why a full spool is not emptied.

    Args:
        absence: why nobody can be talked to, "" if somebody can.
        sets_aside: what is held was made for another task than the learner's.
        lacks_credit: nothing is on its way, and the learner wants nothing for now.
    """
    match absence:
        case "link down":
            return "spool full: link down"
        case "no learner":
            return "spool full: no learner"
        case "learner left":
            return "spool full: learner left"
        case "learner lost":
            return "spool full: learner lost"
    if sets_aside:
        return "spool full: learner of another task"
    return "spool full: no credit" if lacks_credit else "spool full: learner slow"
