"""A learner that is gone, said in the log: once how it went and what follows, and once that one is there again."""

from __future__ import annotations

import logging

from quarl_device.actor.presence import Learner
from quarl_device.capped_log import Burst

_LOG = logging.getLogger(__name__)
_HOW = {
    "left": "said goodbye",
    "lost": "is lost: its connection to the broker broke",
    "silent": "is lost: nothing has been heard of it for a while",
}


class Absence:
    """Notes of every moment whether the learner is there; pure but for its log lines.

    Args:
        max_offline_s: how long the loop goes on without a learner that was lost.
        max_offline_blocks: most blocks that wait then; `None` for no bound.
    """

    def __init__(self, max_offline_s: float, max_offline_blocks: int | None = None) -> None:
        self._max_offline_s = max_offline_s
        self._max_offline_blocks = max_offline_blocks
        self._stopped = False
        self._gone: Learner | None = None
        self._since_s = 0.0
        self._unfollowed = -1
        self._lines = Burst()  # forged births can make a learner come and go many times a second

    def note(self, learner: Learner, epoch: int, now_s: float) -> None:
        """What is known of the learner of `epoch` now.

        Args:
            learner: see `ActorSession.learner`.
            epoch: of the last one that was followed.
            now_s: monotonic time.
        """
        how = _HOW.get(learner)
        if how is None:
            if self._gone is not None and self._lines.allows(now_s):
                _LOG.warning("a learner is there (epoch %d), after %.0f s without", epoch, now_s - self._since_s)
            self._gone = None
            return
        if learner == self._gone:
            return
        if self._gone is None:
            self._since_s = now_s
        self._gone = learner
        if self._lines.allows(now_s):
            _LOG.warning("the learner (epoch %d) %s; %s", epoch, how, self._what_follows(learner))

    def overhear(self, epoch: int, *, followed: int, now_s: float) -> None:
        """An older learner than the one that was followed serves the fleet: said once where that one is gone.

        Args:
            epoch: of the older one.
            followed: of the last one that was followed, which nothing older may take the place of.
            now_s: monotonic time.
        """
        if self._gone is None or epoch == self._unfollowed or not self._lines.allows(now_s):
            return
        self._unfollowed = epoch
        _LOG.warning(
            "a learner of epoch %d serves this fleet and is not followed: this device has met epoch %d, gone for "
            "%.0f s; end that learner and resume it (train --resume), which gives it a later epoch",
            epoch,
            followed,
            now_s - self._since_s,
        )

    def note_stop(self, now_s: float, *, stopped: bool) -> None:
        """Whether the loop stands still since as many blocks wait as may: said once, and how to have more."""
        if stopped and not self._stopped and self._lines.allows(now_s):
            _LOG.warning(
                "standing still until the learner is reached: %s blocks wait, and it takes them before anything newer "
                "(--max-offline-blocks)",
                f"{self._max_offline_blocks:,}",
            )
        self._stopped = stopped

    def _what_follows(self, learner: Learner) -> str:
        if learner == "left":
            return "standing still until one is back"
        if self._max_offline_s:
            bound = "" if self._max_offline_blocks is None else f" and until {self._max_offline_blocks:,} blocks wait"
            return f"going on for up to {self._max_offline_s:.0f} s{bound}, as far as the spool takes it"
        return "going on as far as its credit goes"
