"""What an agent has done so far, over all its loops: progress lines, telemetry and the summary at the end."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import dataclass, field

from quarl_device.actor.inbox import Inbox
from quarl_device.actor.outbox import Outbox
from quarl_device.actor.session import ActorSession
from quarl_device.actor.standstill import Standstill
from quarl_device.actor.stepping import Loop
from quarl_device.capped_log import Fading
from quarl_device.wire.messages import Telemetry

_LOG = logging.getLogger(__name__)
_PROGRESS_PERIOD_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What an agent did.

    Attributes:
        steps: environment steps.
        episodes: finished ones.
        blocks: made.
        blocks_pending: not known to be durable at the end; a spool on disk keeps them for the next start.
        blocks_dropped: given up: to make room, of another task, or damaged.
        steps_dropped: environment steps in them, as far as known.
        steps_per_s: over the time that was not spent blocked.
        act_us_p50: median time of one policy call.
        policies: swapped in.
        blocked_s: seconds spent standing still, by reason.
        reason: why it ended.
    """

    steps: int
    episodes: int
    blocks: int
    blocks_pending: int
    blocks_dropped: int
    steps_dropped: int
    steps_per_s: float
    act_us_p50: float
    policies: int
    blocked_s: dict[str, float] = field(default_factory=dict)
    reason: str = ""


class Tally:
    """Counts of the loop that runs and of those before it.

    Attributes:
        loop: the one that runs, `None` before the first and while a new one is made.
    """

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self._steps_before = 0
        self._episodes_before = 0
        self._policies_before = 0
        self._began_s = time.monotonic()
        self._telemetry_at_s = self._began_s
        self._telemetry_steps = 0
        self._progress_due_s = 0.0
        self._same = Fading()

    def retire(self) -> Loop | None:
        """Take the running loop away and keep its counts."""
        old, self.loop = self.loop, None
        if old is not None:
            self._steps_before += old.episodes.steps
            self._episodes_before += old.episodes.episodes
            self._policies_before += old.versions_seen
        return old

    @property
    def steps(self) -> int:
        """Environment steps."""
        return self._steps_before + (self.loop.episodes.steps if self.loop is not None else 0)

    @property
    def episodes(self) -> int:
        """Finished episodes."""
        return self._episodes_before + (self.loop.episodes.episodes if self.loop is not None else 0)

    @property
    def policies(self) -> int:
        """Policies swapped in."""
        return self._policies_before + (self.loop.versions_seen if self.loop is not None else 0)

    def log_progress(self, loop: Loop, blocked: str, now_s: float) -> None:
        """Log how far it has come, every few seconds; ever seldomer while it stands still."""
        if now_s < self._progress_due_s:
            return
        self._progress_due_s = now_s + _PROGRESS_PERIOD_S
        if blocked and not self._same.is_due((blocked, self.steps), now_s):
            return
        _LOG.info(
            "%s steps, %s episodes, mean return %.1f, policy %s%s",
            f"{self.steps:,}",
            f"{self.episodes:,}",
            loop.episodes.return_mean,
            loop.acting.version if loop.acting else "none",
            f", standing still: {blocked}" if blocked else "",
        )

    def telemetry(
        self,
        loop: Loop,
        boot_id: str,
        *,
        inbox: Inbox,
        session: ActorSession,
        outbox: Outbox,
        handler_errors: int,
        now_s: float,
    ) -> bytes:
        """Return the payload of a telemetry message, with rates since the last one."""
        steps = self.steps
        rate = (steps - self._telemetry_steps) / max(now_s - self._telemetry_at_s, 1e-9)
        self._telemetry_steps, self._telemetry_at_s = steps, now_s
        acts, pushes = sorted(loop.act_us), list(inbox.ready_ms)
        return Telemetry(
            boot_id=boot_id,
            steps=steps,
            episodes=self.episodes,
            steps_per_s=rate,
            act_us_p50=acts[len(acts) // 2] if acts else 0.0,
            act_us_p99=acts[int(0.99 * len(acts))] if acts else 0.0,
            push_ms_p50=max(0.0, statistics.median(pushes)) if pushes else 0.0,
            pushes=inbox.accepted,
            pushes_refused=inbox.refused,
            blocks_pending=session.pending,
            blocks_resent=session.resends,
            blocks_dropped=outbox.dropped_blocks,
            steps_dropped=outbox.dropped_steps,
            spool_bytes=outbox.pending_bytes,
            return_mean=loop.episodes.return_mean,
            handler_errors=handler_errors,
        ).encode()

    def summary(self, session: ActorSession, outbox: Outbox, standstill: Standstill, reason: str) -> Summary:
        """Return what was done, at the end."""
        acting_s = time.monotonic() - self._began_s - standstill.total_s
        acts = sorted(self.loop.act_us) if self.loop is not None else []
        return Summary(
            steps=self.steps,
            episodes=self.episodes,
            blocks=session.next_sequence,
            blocks_pending=session.pending,
            blocks_dropped=outbox.dropped_blocks,
            steps_dropped=outbox.dropped_steps,
            steps_per_s=self.steps / acting_s if acting_s > 0 else 0.0,
            act_us_p50=acts[len(acts) // 2] if acts else 0.0,
            policies=self.policies,
            blocked_s=standstill.by_reason(),
            reason=reason,
        )
