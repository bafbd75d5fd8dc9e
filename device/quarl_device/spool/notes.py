"""The records of a spool that are no blocks: how far blocks are freed, and what is lost.

Without a note of what is freed a restart sends more than it has to, which the learner knows; so these come now and
then. A loss must be on the disk before the file goes that held its blocks: until then a restart delivers them instead.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from quarl_device.actor.loss import Loss
from quarl_device.spool.appender import Appender
from quarl_device.spool.holdings import Holdings
from quarl_device.spool.records import FREED, encode_header, encode_loss
from quarl_device.spool.segment import Segment

_LOG = logging.getLogger(__name__)
_MARK_S = 5.0  # between notes of what is freed: 56 bytes each
_LIVES_BETWEEN_SYNCS = 8
"""A power cut brings back what was freed since the last fsync: no more lives than a learner remembers (16)."""


class Notes:
    """Writes them for one spool.

    Args:
        holdings: what they are about.
        appender: writes them.
        begin_file: gives the appender a file.
        said: losses that a record tells, by the file that it is in.

    Attributes:
        fault: why losses could not be brought to disk when that was tried last, "" if they could.
    """

    def __init__(
        self, holdings: Holdings, appender: Appender, *, begin_file: Callable[[], None], said: Mapping[Loss, Path]
    ) -> None:
        self._holdings = holdings
        self._appender = appender
        self._begin_file = begin_file
        self._said = dict(said)
        self._last_freed: tuple[str, int] | None = None  # that no record says yet
        self._lives_freed = 0  # since the last fsync
        self._marked_s = 0.0
        self.fault = ""

    def freed(self, life: str, sequence: int) -> None:
        """A life is done with up to a sequence."""
        self._last_freed = life, sequence

    def life_is_over(self) -> None:
        """Let no restart deliver a whole life again: after a kill, and of many lives not after a power cut either."""
        self.mark()
        self._lives_freed += 1
        if self._lives_freed >= _LIVES_BETWEEN_SYNCS:
            self._appender.sync_job()()
            self._lives_freed = 0

    def mark(self) -> None:
        """Note how far blocks are freed, where anything could come again."""
        if self._last_freed is None or not self._holdings.segments:
            return
        (life, sequence), self._last_freed = self._last_freed, None
        with contextlib.suppress(OSError):
            self._append(encode_header(kind=FREED, life=life, sequence=sequence))

    def mark_all(self) -> None:
        """Note of every life how far it is freed: files that go may have held the notes of others."""
        for life, first in self._holdings.firsts().items():
            self._last_freed = life, first - 1
            self.mark()

    def mark_if_due(self, now_s: float) -> None:
        """`mark`, now and then: a restart after a kill is to begin about there whatever the policy of syncing."""
        if now_s - self._marked_s >= _MARK_S:
            self._marked_s = now_s
            self.mark()

    def keep_losses(self, going: Path | None = None) -> bool:
        """Bring the losses to disk that no record tells, or one in a file that is `going`; returns whether all are."""
        unsaid = self._unsaid(going)
        if not unsaid and not self.fault:
            return True
        try:
            for loss in unsaid:
                self._append(*encode_loss(loss))
                self._said[loss] = self._holdings.segments[-1].path
        except OSError as cause:
            return self._failed(cause)
        self._appender.sync_job()()
        self.fault = self._appender.fault
        return not self.fault

    def write_losses_over(self, lost: Segment) -> bool:
        """As `keep_losses`, in the room of blocks that are lost, where a full disk has no other.

        A recovery may find that half done: what is gone of the file is in the losses, what is left of it too.
        """
        unsaid = self._unsaid(lost.path)
        try:
            self._appender.write_over(lost.path, b"".join(head + body for head, body in map(encode_loss, unsaid)))
        except OSError as cause:
            return self._failed(cause)
        self._said |= dict.fromkeys(unsaid, lost.path)
        self.fault = ""
        return True

    def _unsaid(self, going: Path | None) -> list[Loss]:
        held = set(self._holdings.losses)
        self._said = {loss: path for loss, path in self._said.items() if loss in held}
        return [loss for loss in self._holdings.losses if self._said.get(loss, going) == going]

    def _failed(self, cause: OSError) -> bool:
        self.fault = f"{cause.strerror}"
        _LOG.error("what is lost cannot be noted: %s", self.fault)
        return False

    def _append(self, head: bytes, payload: bytes = b"") -> None:
        if self._appender.file < 0:
            self._begin_file()
        self._appender.append(head, payload)
