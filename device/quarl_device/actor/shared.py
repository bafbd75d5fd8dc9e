"""What the threads of an agent share under one lock."""

from __future__ import annotations

import threading
import time

from quarl_device.actor.absence import Absence
from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.outbox import Outbox
from quarl_device.actor.session import ActorSession, SessionConfig
from quarl_device.actor.standstill import Standstill
from quarl_device.actor.stepping import Loop
from quarl_device.actor.tally import Tally
from quarl_device.errors import QuarlError
from quarl_device.notify import Notifier
from quarl_device.wire.block import BlockCodec
from quarl_device.wire.messages import LearnerBirth


class Shared:
    """State of an agent. Everything but the mailbox is read and written while `changed` is held.

    Args:
        outbox: keeps the blocks.
        config: of the session.
        notifier: is told how this agent does, and that its stepping thread lives.

    Attributes:
        changed: the lock; notified when the stepping thread may have something to do.
        mailbox: between any thread and the hot loop.
        outbox: blocks that the learner may still ask for.
        session: decides what is sent and whether the loop may step.
        standstill: why it may not.
        absence: whether the learner is there.
        tally: what was done, with the loop that runs.
        birth: the learner's, `None` before the first.
        codec: of the blocks of the running loop.
        rebuild: the loop is to be made anew, for another task or a lockstep that begins again.
        fault: what ended the agent, if it did not end well.
        reason: why it ends, "" while it runs.
    """

    def __init__(
        self, outbox: Outbox, config: SessionConfig | None = None, *, notifier: Notifier | None = None
    ) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.notifier = notifier or Notifier()
        self.mailbox = Mailbox(self.notifier.alive)
        self.outbox = outbox
        self.session = ActorSession(outbox, config)
        self.standstill = Standstill(time.monotonic())
        self.absence = Absence(0.0) if config is None else Absence(config.max_offline_s, config.max_offline_blocks)
        self.tally = Tally()
        self.birth: LearnerBirth | None = None
        self.codec: BlockCodec | None = None
        self.rebuild = False
        self.fault: QuarlError | None = None
        self.reason = ""

    @property
    def loop(self) -> Loop | None:
        """The loop that runs."""
        return self.tally.loop

    @property
    def acting(self) -> ActingPolicy | None:
        """The policy that acts."""
        loop = self.tally.loop
        return loop.acting if loop is not None else None

    def stop(self, reason: str) -> None:
        """Ask for a clean end, for the first reason that is given; needs no lock."""
        self.reason = self.reason or reason
        self.mailbox.ask_stop()

    def fail(self, error: QuarlError) -> None:
        """End with an error, the first that there was."""
        self.fault = self.fault or error
        self.stop("failed")
