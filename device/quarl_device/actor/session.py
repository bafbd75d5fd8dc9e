"""The actor's side of the protocol, as a pure state machine: no IO, no threads, no clock of its own.

Events go in (link, learner, policy, ack, block, tick), decisions come out: which blocks to send now, whether the loop
may step or why not, whether to announce this device again.

What it holds to:

* Blocks are sent in sequence order, up to the learner's credit, each again until the learner says `inserted`.
  After a reconnection, a new learner epoch, or silence while blocks are out, sending goes back to the first block that
  is not known to be inserted. The learner drops duplicates, so every block ends in replay exactly once.
* A block is kept until the learner says `durable`: a learner that restarts may ask for it again.
* Everything known about `inserted` and `credit` belongs to one learner epoch and is forgotten with it.
* Blocks that were freed are never asked for: every block carries `base`, the lowest sequence that can still be sent.
* Silence never ends in a standstill: an actor without credit announces itself again, which a learner answers by an ack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quarl_device.actor.outbox import Outbox
from quarl_device.errors import UsageError

Blocked = Literal["", "link down", "no learner", "no policy", "no credit", "outbox full", "waiting for the next policy"]


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Patience of a session.

    Attributes:
        resend_after_s: silence after which blocks that are out are sent again; doubles up to `resend_max_s`.
        resend_max_s: see above.
        announce_every_s: how often the device's birth is renewed.
        learner_silent_s: a learner not heard of for so long counts as gone.
        max_in_flight_blocks: most blocks sent and not yet inserted. Times the number of devices it should stay below
            the broker's queue (Mosquitto: 1,000 messages), beyond which brokers drop QoS 1 messages silently.
    """

    resend_after_s: float = 1.0
    resend_max_s: float = 10.0
    announce_every_s: float = 10.0
    learner_silent_s: float = 30.0
    max_in_flight_blocks: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.resend_after_s <= self.resend_max_s:
            raise UsageError(f"resend_after_s {self.resend_after_s} is not in 0..resend_max_s {self.resend_max_s}")
        if self.max_in_flight_blocks < 1:
            raise UsageError(f"max_in_flight_blocks {self.max_in_flight_blocks} is below 1")


class ActorSession:
    """One boot of one actor, towards whatever learner there is.

    Args:
        outbox: keeps the blocks; empty, and nobody else's.
        config: see `SessionConfig`.

    Attributes:
        epoch: the learner's epoch, -1 before any birth.
        next_sequence: sequence of the block that comes next.
        inserted: every block up to here is in the learner's replay (or refused, or declared dropped), as far as known.
        durable: the same, surviving a crash of the learner.
        credit: exclusive upper bound of the sequences that may be sent.
        resends: blocks sent again so far.
    """

    def __init__(self, outbox: Outbox, config: SessionConfig | None = None) -> None:
        self._outbox = outbox
        self._config = config or SessionConfig()
        self.epoch = -1
        self.next_sequence = 0
        self.inserted = -1
        self.durable = -1
        self.credit = 0
        self.resends = 0
        self._known_inserted = -1  # as this epoch's learner said it, which may be less than what is durable
        self._link_up = False
        self._learner_online = False
        self._learner_beat = -1
        self._learner_heard_s = 0.0
        self._lockstep = False
        self._policy: tuple[int, int] | None = None
        self._spent: tuple[int, int] | None = None
        self._unsent = 0  # the sequence to send next
        self._sent_once = 0  # every sequence below was sent at least once
        self._quiet_since_s = 0.0
        self._patience_s = self._config.resend_after_s
        self._announce = False
        self._announced_s = 0.0

    # Events ----------------------------------------------------------------------------------------------------------

    def link_changed(self, *, up: bool, now_s: float) -> None:
        """The link came up (again) or went down: what was in the air may be lost."""
        self._link_up = up
        if up:
            self._announce = True
            self._go_back(now_s)

    def learner_online(self, *, epoch: int, beat: int, lockstep: bool, now_s: float) -> bool:
        """A learner's birth, new or renewed.

        Returns:
            Whether it opens a new epoch, which forgets everything known of the learner before. A birth of an older
            epoch than known is ignored.
        """
        if epoch < self.epoch:
            return False
        self._lockstep = lockstep
        if epoch > self.epoch:
            self.epoch = epoch
            self.inserted = self.durable
            self._known_inserted = -1
            self.credit = 0
            self._heard(beat, now_s)
            self._announce = True
            self._go_back(now_s)
            return True
        if not self._learner_online and beat != self._learner_beat:
            self._announce = True
            self._go_back(now_s)
        if beat != self._learner_beat:
            self._heard(beat, now_s)
        return False

    def learner_gone(self, *, epoch: int) -> bool:
        """The learner's will or farewell; returns whether it was the learner this session knew to be there."""
        if epoch != self.epoch or not self._learner_online:
            return False
        self._learner_online = False
        return True

    def policy_accepted(self, epoch: int, version: int) -> None:
        """A pushed policy stands ready for the loop."""
        self._policy = (epoch, version)

    def policy_lost(self) -> None:
        """The policies known so far are of no use for the learner's new task."""
        self._policy = None

    def block_made(self, payload: bytes, *, epoch: int, version: int, now_s: float) -> int:
        """Take over an encoded block, acted at its last row with policy (epoch, version); returns its sequence."""
        sequence = self.next_sequence
        self._outbox.put(sequence, payload)
        self.next_sequence += 1
        self._spent = (epoch, version)
        if self._unsent == sequence and sequence <= self.inserted + 1:
            self._quiet_since_s = now_s  # nothing was out: silence begins now
        return sequence

    def ack(self, *, epoch: int, inserted: int, durable: int, credit: int, now_s: float) -> bool:
        """The learner's ack; returns whether anything moved. An ack of another epoch says nothing and is ignored."""
        if epoch != self.epoch or inserted >= self.next_sequence or durable > inserted:
            return False
        self._learner_online = True
        self._learner_heard_s = now_s
        self._known_inserted = max(self._known_inserted, inserted)
        # A learner that does not know this boot counts its credit from 0, and will learn `base` from the first block.
        credit += max(0, self._outbox.base - 1 - self._known_inserted)
        moved = inserted > self.inserted or credit > self.credit or durable > self.durable
        if inserted > self.inserted or credit > self.credit:
            self._quiet_since_s = now_s
            self._patience_s = self._config.resend_after_s
        self.inserted = max(self.inserted, inserted)
        self.credit = max(self.credit, credit)
        if durable > self.durable:
            self.durable = durable
            self._outbox.free(durable)
        self._unsent = max(self._unsent, self.inserted + 1)
        return moved

    def tick(self, now_s: float) -> None:
        """Time passed: send again what stayed unanswered, ask again for credit, notice a silent learner."""
        if self._learner_online and now_s - self._learner_heard_s > self._config.learner_silent_s:
            self._learner_online = False
        if not (self._link_up and self._learner_online):
            return
        waiting = self._unsent > self.inserted + 1 or self.next_sequence >= self.credit
        if waiting and now_s - self._quiet_since_s >= self._patience_s:
            self._patience_s = min(2 * self._patience_s, self._config.resend_max_s)
            self._quiet_since_s = now_s
            self._unsent = self._first_unconfirmed()
            self._announce = self._announce or self.next_sequence >= self.credit

    def drop_pending(self) -> int:
        """Give up every block not yet durable (a lockstep resume makes them again); returns how many.

        `base` of what is sent from now on says so to the learner.
        """
        dropped = self._outbox.free(self.next_sequence - 1)
        self._unsent = self.next_sequence
        return dropped

    # Decisions -------------------------------------------------------------------------------------------------------

    @property
    def link_up(self) -> bool:
        """Whether the link is up, as far as this session was told."""
        return self._link_up

    @property
    def pending(self) -> int:
        """Blocks not yet durable."""
        return len(self._outbox)

    @property
    def awaits_insertion(self) -> bool:
        """Whether blocks wait for a learner that is there and can be reached."""
        return self.inserted < self.next_sequence - 1 and not self._absent()

    @property
    def base(self) -> int:
        """The lowest sequence that can still be sent."""
        return self._outbox.base

    def blocked(self) -> Blocked:
        """Return "" when the loop may make another block, else why not."""
        if self._policy is None:
            return self._absent() or "no policy"
        if self._lockstep and (self._policy[0] != self.epoch or self._policy == self._spent):
            return self._absent() or "waiting for the next policy"
        if self._outbox.full:
            return self._absent() or "outbox full"
        if self.next_sequence >= self.credit:
            return self._absent() or "no credit"
        return ""

    def next_to_send(self) -> int | None:
        """Return the sequence to send now, or None; call `sent` before asking again."""
        if not (self._link_up and self._learner_online):
            return None
        self._unsent = max(self._unsent, self._outbox.base)
        limit = min(self.credit, self.next_sequence, self.inserted + 1 + self._config.max_in_flight_blocks)
        return self._unsent if self._unsent < limit else None

    def sent(self, sequence: int) -> None:
        """Block `sequence` is being handed to the link: said before, since an answer may come before that returns."""
        self._unsent = sequence + 1
        if sequence < self._sent_once:
            self.resends += 1
        else:
            self._sent_once = self._unsent

    def not_taken(self, sequence: int) -> None:
        """The link did not take block `sequence` after all: try again later."""
        self._unsent = min(self._unsent, max(sequence, self._first_unconfirmed()))
        if sequence == self._sent_once - 1:
            self._sent_once = sequence

    def announce_due(self, now_s: float) -> bool:
        """Return whether the device's birth is to be published now."""
        return self._link_up and (self._announce or now_s - self._announced_s >= self._config.announce_every_s)

    def request_announce(self) -> None:
        """Something in the birth changed: publish it again soon."""
        self._announce = True

    def announced(self, now_s: float) -> None:
        """The birth was handed to the link."""
        self._announce = False
        self._announced_s = now_s

    # Inside ----------------------------------------------------------------------------------------------------------

    def _absent(self) -> Literal["", "link down", "no learner"]:
        if not self._link_up:
            return "link down"
        return "" if self._learner_online else "no learner"

    def _heard(self, beat: int, now_s: float) -> None:
        self._learner_online = True
        self._learner_beat = beat
        self._learner_heard_s = now_s

    def _first_unconfirmed(self) -> int:
        return max(self.inserted + 1, self._outbox.base)

    def _go_back(self, now_s: float) -> None:
        self._unsent = self._first_unconfirmed()
        self._quiet_since_s = now_s
        self._patience_s = self._config.resend_after_s
