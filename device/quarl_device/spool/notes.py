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

    def mark_if_due(self, now_s: float) -> None:
        """`mark`, now and then: a restart after a kill is to begin about there whatever the policy of syncing."""
        if now_s - self._marked_s >= _MARK_S:
            self._marked_s = now_s
            self.mark()

    def keep_losses(self, going: Path | None = None) -> bool:
        """Bring the losses to disk that no record tells, or one in a file that is `going`; returns whether all are."""
        held = set(self._holdings.losses)
        self._said = {loss: path for loss, path in self._said.items() if loss in held}
        unsaid = [loss for loss in self._holdings.losses if self._said.get(loss, going) == going]
        if not unsaid:
            return True
        try:
            for loss in unsaid:
                self._append(*encode_loss(loss))
                self._said[loss] = self._holdings.segments[-1].path
        except OSError as cause:
            _LOG.error("what is lost cannot be noted: %s", cause.strerror)
            return False
        self._appender.sync_job()()
        return not self._appender.fault

    def _append(self, head: bytes, payload: bytes = b"") -> None:
        if self._appender.file < 0:
            self._begin_file()
        self._appender.append(head, payload)
