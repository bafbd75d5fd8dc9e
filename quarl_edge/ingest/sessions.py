"""Which blocks have come from which life of which device: the part of exactly-once that is pure bookkeeping.

Rules:

* A device lives one life (boot id) at a time. A block of another boot id than the current one begins a new life, unless
  that life is known to be over: then it is stale.
* A life's blocks are accepted in sequence and once each (W1). What is expected first in an unknown life is the block's
  `base`, the lowest sequence that the actor can still send.
* `base` and declared dropped ranges move the expectation forward over blocks that will never come. So a learner that
  lost track (a torn journal, an evicted device) neither waits for ever for what the actor has freed, nor accepts
  anything twice.
* A refused block counts as done with: the actor must not send it again.
* A block beyond the expected one is a gap: it is not taken, and comes again after the missing one. Every block that is
  sent says its `base` of that moment, so a gap that the actor cannot fill is never waited for.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quarl_device.errors import JournalError
from quarl_device.wire.messages import Ack

MAX_DEVICES = 4_096
MAX_OLD_BOOTS = 16
MAX_REFUSED = 64


class Verdict(enum.Enum):
    """What to do with a block."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    GAP = "gap"
    STALE = "stale"


@dataclass(slots=True)
class _Session:
    """One device.

    Attributes:
        boot_id: its current life.
        expected: sequence that comes next, `None` before the first block.
        credit: exclusive upper bound of the sequences that it may send.
        refused: sequence to error code, the newest `MAX_REFUSED`.
        old_boots: lives that are over, newest last.
        lost: blocks that its actor can no longer send and that never came.
    """

    boot_id: str
    expected: int | None = None
    credit: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    old_boots: list[str] = field(default_factory=list)
    lost: int = 0

    def begin(self, boot_id: str) -> None:
        self.old_boots = [*self.old_boots, self.boot_id][-MAX_OLD_BOOTS:]
        self.boot_id, self.expected, self.credit = boot_id, None, 0
        self.refused.clear()

    def skip(self, base: int, dropped: Sequence[tuple[int, int]]) -> None:
        """Move the expectation over what will never come."""
        expected = base if self.expected is None else self.expected
        self.lost += max(0, base - expected)
        expected = max(expected, base)
        for low, high in sorted(dropped):
            if low <= expected <= high:
                self.lost += high + 1 - expected
                expected = high + 1
        self.expected = expected


class SessionTable:
    """The sessions of all devices, in memory bounded by `max_devices`: the quietest device is forgotten first.

    Args:
        epoch: of the learner, stated in every ack.
        max_devices: remembered devices.
    """

    def __init__(self, epoch: int = 0, *, max_devices: int = MAX_DEVICES) -> None:
        self.epoch = epoch
        self._max_devices = max_devices
        self._sessions: dict[str, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, device: str) -> bool:
        return device in self._sessions

    @property
    def lost(self) -> int:
        """Blocks of the remembered devices that their actors gave up before they came."""
        return sum(session.lost for session in self._sessions.values())

    def open(self, device: str, boot_id: str, base: int | None = None) -> bool:
        """Note that `device` announced a life.

        Args:
            device: its name.
            boot_id: the life.
            base: lowest sequence that it can still send, if it says so.

        Returns:
            Whether it is the current one now; false for one that is known to be over.
        """
        session = self._session(device, boot_id)
        if session is not None and base is not None:
            session.skip(base, ())
        return session is not None

    def examine(
        self, device: str, boot_id: str, sequence: int, base: int, dropped: Sequence[tuple[int, int]] = ()
    ) -> Verdict:
        """Judge a block without accepting it yet; `accept` or `refuse` follows an ACCEPT.

        Args:
            device: its name.
            boot_id: the life that it belongs to.
            sequence: its number in that life.
            base: lowest sequence that the actor can still send.
            dropped: inclusive ranges that will never be sent.
        """
        session = self._session(device, boot_id)
        if session is None:
            return Verdict.STALE
        session.skip(base, dropped)
        expected = session.expected or 0
        if sequence > expected:
            return Verdict.GAP
        return Verdict.ACCEPT if sequence >= expected else Verdict.DUPLICATE

    def accept(self, device: str, dropped: Sequence[tuple[int, int]] = ()) -> None:
        """Count the block that `examine` found to be next as stored."""
        session = self._sessions[device]
        expected = (session.expected or 0) + 1
        session.expected = expected
        session.skip(expected, dropped)
        session.credit = max(session.credit, session.expected)

    def admit(
        self, device: str, boot_id: str, sequence: int, base: int, dropped: Sequence[tuple[int, int]] = ()
    ) -> Verdict:
        """`examine`, and `accept` at once where the verdict is ACCEPT."""
        verdict = self.examine(device, boot_id, sequence, base, dropped)
        if verdict is Verdict.ACCEPT:
            self.accept(device, dropped)
        return verdict

    def refuse(
        self,
        device: str,
        boot_id: str,
        sequence: int,
        base: int,
        dropped: Sequence[tuple[int, int]] = (),
        *,
        code: int,
    ) -> Verdict:
        """Like `admit` for a block that does not hold: it is done with, and its error code goes into the acks."""
        verdict = self.examine(device, boot_id, sequence, base, dropped)
        if verdict is Verdict.ACCEPT:
            refused = self._sessions[device].refused
            refused[sequence] = code
            while len(refused) > MAX_REFUSED:
                del refused[next(iter(refused))]
            self.accept(device, dropped)
        return verdict

    def boot_id(self, device: str) -> str:
        """Return the current life of `device`, "" for an unknown one."""
        session = self._sessions.get(device)
        return "" if session is None else session.boot_id

    def expected(self, device: str) -> int | None:
        """Return the sequence that comes next, `None` for an unknown device or life."""
        session = self._sessions.get(device)
        return None if session is None else session.expected

    def grant(self, device: str, ahead: int) -> bool:
        """Let `device` send up to `ahead` blocks beyond what has come in. A credit once given is never taken back.

        Returns:
            Whether the credit grew.
        """
        session = self._sessions[device]
        credit = (session.expected or 0) + ahead
        if credit <= session.credit:
            return False
        session.credit = credit
        return True

    def ack(self, device: str) -> Ack:
        """Return the ack that `device` should see now.

        Every accepted block is in the journal before it is in replay, so `durable` is `inserted`.
        """
        session = self._sessions[device]
        stored = -1 if session.expected is None else session.expected - 1
        return Ack(
            boot_id=session.boot_id,
            epoch=self.epoch,
            inserted=stored,
            durable=stored,
            refused=dict(session.refused),
            credit=session.credit,
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the table as JSON, quietest device first."""
        return {
            device: {"boot": session.boot_id, "next": session.expected, "old": list(session.old_boots)}
            for device, session in self._sessions.items()
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Replace the table by a `snapshot`.

        Raises:
            JournalError: the snapshot does not hold.
        """
        sessions: dict[str, _Session] = {}
        for device, entry in snapshot.items():
            try:
                boot_id, expected, old = entry["boot"], entry["next"], entry["old"]
                if not (isinstance(boot_id, str) and all(isinstance(boot, str) for boot in old)):
                    raise TypeError("a boot id is not a string")
                known = None if expected is None else int(expected)
                sessions[device] = _Session(boot_id, known, old_boots=list(old))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise JournalError(f"the journal's session table does not hold for {device!r}: {error!r}") from error
        self._sessions = sessions

    def _session(self, device: str, boot_id: str) -> _Session | None:
        """Return the session of `device`, in life `boot_id`, as the most recent one; `None` if that life is over."""
        session = self._sessions.pop(device, None)
        if session is None:
            session = _Session(boot_id)
        stale = boot_id in session.old_boots
        if not stale and boot_id != session.boot_id:
            session.begin(boot_id)
        self._sessions[device] = session
        if len(self._sessions) > self._max_devices:
            del self._sessions[next(iter(self._sessions))]
        return None if stale else session
