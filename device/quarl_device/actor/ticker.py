"""What an agent does by the clock: renewed births, re-sends, telemetry, slow blocks, a link that went down."""

from __future__ import annotations

import logging
import threading
import time

from quarl_device.actor.backlog import BACKLOG_BLOCKS, Backlog, lasting
from quarl_device.actor.inbox import Inbox
from quarl_device.actor.live_slot import LiveSlot
from quarl_device.actor.shared import Shared
from quarl_device.actor.speaker import Speaker
from quarl_device.actor.stepping import Loop
from quarl_device.capped_log import Fading
from quarl_device.link import Link

_LOG = logging.getLogger(__name__)
_TICK_S = 0.1
_TELEMETRY_PERIOD_S = 1.0
_FLUSH_AFTER_S = 1.0
_STATUS_PERIOD_S = 1.0
_BACKLOG_PERIOD_S = 10.0


class Ticker:
    """A thread that ticks from `start` to `stop`.

    Args:
        link: whose fall is noticed.
        shared: what the clock changes.
        speaker: says what is due.
        inbox: for telemetry.
        live: writes the newest policy now and then.
    """

    def __init__(
        self, link: Link, *, shared: Shared, speaker: Speaker, inbox: Inbox, live: LiveSlot | None = None
    ) -> None:
        self._live = live
        self._link = link
        self._shared = shared
        self._speaker = speaker
        self._inbox = inbox
        self._telemetry_due_s = 0.0
        self._backlog = Backlog()
        self._backlog_due_s = 0.0
        self._same = Fading()
        self._status = ""
        self._status_due_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)

    def start(self) -> None:
        """Begin to tick."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it was started."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._ended.wait(_TICK_S):
            try:
                self.tick(time.monotonic())
            # Births, re-sends and telemetry must go on whatever went wrong this time.
            except Exception:
                _LOG.exception("tick failed")

    def tick(self, now_s: float) -> None:
        """Do what is due at `now_s`, monotonic time."""
        shared = self._shared
        with shared.changed:
            session = shared.session
            slow = shared.outbox.upkeep(now_s)
            if session.link_up and not self._link.connected:
                session.link_changed(up=False, now_s=now_s)
            session.tick(now_s, in_air=self._link.connected and not self._link.flush(timeout_s=0.0))
            shared.absence.note(session.learner, session.epoch, now_s)
            shared.absence.note_stop(now_s, stopped=session.stopped_by_blocks)
            if shared.standstill.is_news(now_s) or self._speaker.is_outdated:
                session.request_announce()
            if session.announce_due(now_s):
                self._speaker.announce()
            self._speaker.send_blocks()
            self._tell_backlog(now_s)
            if shared.loop is not None:
                self._tell(shared.loop, now_s)
                self._flush_slow_block(shared.loop, now_s)
            self._tell_manager(now_s)
        if slow is not None:
            # Not under the lock: a memory card may take a second.
            slow()
        if self._live is not None:
            self._live.upkeep(now_s)

    def _tell(self, loop: Loop, now_s: float) -> None:
        if now_s >= self._telemetry_due_s:
            self._telemetry_due_s = now_s + _TELEMETRY_PERIOD_S
            self._speaker.send_telemetry(loop, self._inbox, now_s)
        self._shared.tally.log_progress(loop, self._shared.standstill.reason, now_s)

    def _tell_manager(self, now_s: float) -> None:
        """Have the stepping thread show that it lives, and say what it does, at most once a second."""
        shared = self._shared
        if shared.notifier.is_due:
            shared.mailbox.ask_sign()
        if now_s < self._status_due_s:
            return
        acting = shared.acting
        acts = f"acts with version {acting.epoch}.{acting.version}" if acting is not None else "no policy"
        status = shared.standstill.lasting(now_s) or acts
        if status != self._status:
            self._status, self._status_due_s = status, now_s + _STATUS_PERIOD_S
            shared.notifier.status(status)

    def _tell_backlog(self, now_s: float) -> None:
        """Say every ten seconds how far the delivery of what waits is; ever seldomer while nothing moves, and why."""
        if now_s < self._backlog_due_s:
            return
        self._backlog_due_s = now_s + _BACKLOG_PERIOD_S
        outbox, session = self._shared.outbox, self._shared.session
        self._backlog.note(outbox.pending_bytes, now_s)
        if session.pending <= BACKLOG_BLOCKS:
            return
        reason = session.blocked()
        if not self._same.is_due((reason, session.pending), now_s):
            return
        held_up = f"; {reason}" if reason else ""
        held_up += f" for {lasting(session.absent_s)}" if reason and session.absent_s else ""
        _LOG.info(
            "%s blocks (%s KiB) wait for the learner: %s%s",
            f"{session.pending:,}",
            f"{outbox.pending_bytes / 1024:,.0f}",
            self._backlog.delivery,
            held_up,
        )

    def _flush_slow_block(self, loop: Loop, now_s: float) -> None:
        """Ask for a block that has been in the making for long, but never in lockstep, where blocks have one length."""
        birth = self._shared.birth
        slow = 0 < loop.block_began_s < now_s - _FLUSH_AFTER_S
        if slow and birth is not None and birth.mode != "lockstep":
            self._shared.mailbox.ask_flush()
