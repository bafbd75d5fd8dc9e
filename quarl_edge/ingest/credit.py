"""How far devices may be ahead of what came in, and to which lives an ack is due.

With `room` transitions of room in the limiter and L live devices, a device may be ahead of what came in by
``max(1, room // L // its block size)`` blocks, at most `MAX_AHEAD`, while ``room > 0``; credit is never taken back.
Whenever the learner has to wait (its difference is less than one `sample_unit` above the lower bound) ``room > 0``
holds, because ``2 * error_buffer >= sample_unit + samples_per_insert * insert_unit``: every live device may send, and
nobody waits for anybody in a circle. A block beyond its device's credit is answered as a gap where there is no room to
give it credit: it is not stored and comes again. So a device that does not heed its credit gets what a fast one gets
that does, and starves nobody; and one whose credit this learner does not know (it resumed, or forgot that life) waits
for room, no longer. What idle devices hold is not counted against busy ones, so that a slow board never holds up a fast
one; inserts may overshoot the window by what the idle ones hold, which was room once, or one block each.
"""

from __future__ import annotations

from quarl_edge.ingest.sessions import SessionTable
from quarl_edge.replay.experience import Experience

MAX_AHEAD = 64
"""Most blocks that a device may be ahead. Times the devices it should stay below the broker's queue per client."""


class Credit:
    """Shares the limiter's room among the devices that are live. Not thread-safe: the ingest's lock is held.

    Args:
        sessions: where credit is given.
        experience: gives room.
        block_transitions: expected size of a device's block before its first has come.
    """

    def __init__(self, sessions: SessionTable, experience: Experience, *, block_transitions: int) -> None:
        self._sessions = sessions
        self._experience = experience
        self._default_unit = max(1, block_transitions)
        self._live: dict[str, int] = {}  # device: transitions in its blocks
        self._changed: dict[tuple[str, str], None] = {}  # (device, life) that an ack is due to
        self._swept = (-1, -1)

    @property
    def devices(self) -> set[str]:
        """Those that take part."""
        return set(self._live)

    def join(self, device: str, boot_id: str, transitions: int = 0) -> None:
        """Count `device` as live, with blocks of `transitions`, and let it have an ack for a life of it."""
        known = self._live.get(device)
        if known is None or transitions:
            self._live[device] = transitions or known or self._default_unit
        self._changed[device, boot_id] = None

    def leave(self, device: str) -> None:
        """Let `device` take part no longer, and have no ack."""
        self._live.pop(device, None)
        self._changed = {due: None for due in self._changed if due[0] != device}

    def covers(self, device: str, boot_id: str) -> bool:
        """Whether a block is within its life's credit, or can be: there is room."""
        if not self._sessions.has_credit(device, boot_id):
            self.join(device, boot_id)
            self.grant()
        return self._sessions.has_credit(device, boot_id)

    def take_due(self) -> list[tuple[str, str]]:
        """Give credit, and return the (device, life) of live devices for which anything changed since the last call."""
        self.grant()
        due = [(name, life) for name, life in self._changed if name in self._live]
        self._changed.clear()
        return due

    def grant(self) -> None:
        """Give credit where room allows: to all when room may have grown, else to those with news."""
        room = self._experience.room()
        now = (self._experience.samples, len(self._live))
        devices = list(self._live) if now != self._swept else self._live_with_news()
        if room <= 0 or not devices:
            return
        self._swept = now
        share = room // len(self._live)
        for device in devices:
            if device not in self._sessions:
                del self._live[device]
            elif self._sessions.grant(device, min(MAX_AHEAD, max(1, share // self._live[device]))):
                self._changed[device, self._sessions.active(device)] = None

    def _live_with_news(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self._changed if name in self._live))
