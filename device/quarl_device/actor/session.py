"""The actor's side of the protocol, as a pure state machine: no IO, no threads, no clock of its own.

Events go in (link, learner, policy, ack, block, tick), decisions come out: which blocks to send now, whether the loop
may step or why not, whether to announce this device again.

What it holds to:

* Blocks are sent in the order in which they were made, each again until the learner says `inserted`: those of earlier
  lives (boot ids) first, each life to its end, under its own boot id. The next life's wait until all are `durable`.
* The learner's credit bounds what is sent, and what is made while it is there. Without a learner the loop goes on, as
  far as the outbox and `max_offline_s` allow.
  After a reconnection, a new learner epoch, or silence while blocks are out, sending goes back to the first block that
  is not known to be inserted. The learner drops duplicates, so every block ends in replay exactly once.
* A block is kept until the learner says `durable`: a learner that restarts may ask for it again.
* Everything known about `inserted` and `credit` belongs to one learner epoch and one life, and is forgotten with it.
* Blocks that were freed are never asked for: every block carries `base`, the lowest sequence that can still be sent.
* Silence never ends in a standstill: an actor without credit announces itself again, which a learner answers by an ack.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from quarl_device.actor.outbox import Outbox
from quarl_device.actor.pace import Pace
from quarl_device.errors import UsageError

Blocked = Literal[
    "",
    "link down",
    "no learner",
    "no policy",
    "no credit",
    "catching up",
    "spool full",
    "spool cannot be written",
    "waiting for the next policy",
]


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Patience of a session.

    Attributes:
        resend_after_s: silence after which blocks that are out are sent again; doubles up to `resend_max_s`.
        resend_max_s: see above.
        stuck_after_s: the same while the broker has not even taken them, as on a slow link.
        announce_every_s: how often the device's birth is renewed.
        learner_silent_s: a learner not heard of for so long counts as gone.
        max_in_flight_blocks: most blocks sent and not yet inserted. Times the number of devices it should stay below
            the broker's queue (Mosquitto: 1,000 messages), beyond which brokers drop QoS 1 messages silently.
        max_in_flight_bytes: the same in bytes, so that a slow link is not stuffed; one block may go over it.
        max_offline_s: how long the loop goes on beyond its credit while the link is down or the learner is gone.
        max_upload_bytes_per_s: of blocks, also while catching up; 0 for no bound.
    """

    resend_after_s: float = 1.0
    resend_max_s: float = 10.0
    stuck_after_s: float = 60.0
    announce_every_s: float = 10.0
    learner_silent_s: float = 30.0
    max_in_flight_blocks: int = 64
    max_in_flight_bytes: int = 8 * 1024 * 1024
    max_offline_s: float = 0.0
    max_upload_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.resend_after_s <= self.resend_max_s:
            raise UsageError(f"resend_after_s {self.resend_after_s} is not in 0..resend_max_s {self.resend_max_s}")
        if self.max_in_flight_blocks < 1:
            raise UsageError(f"max_in_flight_blocks {self.max_in_flight_blocks} is below 1")
        if self.max_in_flight_bytes < 1 or self.max_offline_s < 0 or self.max_upload_bytes_per_s < 0:
            raise UsageError(
                f"max_in_flight_bytes {self.max_in_flight_bytes} (at least 1), max_offline_s {self.max_offline_s} and "
                f"max_upload_bytes_per_s {self.max_upload_bytes_per_s} (at least 0) do not hold"
            )


class ActorSession:
    """One boot of one actor, towards whatever learner there is.

    Args:
        outbox: keeps the blocks; this life has put none yet, and nobody else uses it.
        config: see `SessionConfig`.

    Attributes:
        epoch: the learner's epoch, -1 before any birth.
        next_sequence: sequence of the block that comes next in this life.
        delivering: the life whose blocks are sent now; what follows is about that one.
        inserted: every block up to here is in the learner's replay (or refused, or declared dropped), as far as known.
        durable: the same, surviving a crash of the learner.
        credit: exclusive upper bound of the sequences that may be sent.
        resends: blocks sent again so far.
        sets_aside: blocks of another task than the learner's are held, and nothing is sent.
    """

    def __init__(self, outbox: Outbox, config: SessionConfig | None = None) -> None:
        self._outbox = outbox
        self._config = config or SessionConfig()
        self.epoch = -1
        self.next_sequence = 0
        self.delivering = outbox.delivering
        self.inserted = self.durable = outbox.base - 1
        self.credit = 0
        self.resends = 0
        self.sets_aside = False
        self._known_inserted = -1  # as this epoch's learner said it, which may be less than what is durable
        self._pace = Pace(self._config.max_upload_bytes_per_s)
        self._in_flight: deque[tuple[int, int]] = deque()  # (sequence, bytes) of what is sent and not inserted
        self._in_flight_bytes = 0
        self._link_up = False
        self._learner_online = False
        self._learner_left = False  # it said goodbye, or its will did: a late ack does not bring it back
        self._learner_beat = -1
        self._learner_heard_s = 0.0
        self._in_turns = False
        self._policy: tuple[int, int] | None = None
        self._spent: tuple[int, int] | None = None
        self._unsent = outbox.base  # the sequence to send next
        self._sent_once = outbox.base  # every sequence below was sent at least once
        self._offline_since_s: float | None = None
        self._offline_s = 0.0
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

    def learner_online(self, *, epoch: int, beat: int, in_turns: bool, now_s: float) -> bool:
        """A learner's birth, new or renewed; `in_turns`: a policy makes one turn (lockstep, rounds), not more.

        Returns:
            Whether it opens a new epoch, which forgets everything known of the learner before. A birth of an older
            epoch than known is ignored.
        """
        if epoch < self.epoch:
            return False
        self._in_turns = in_turns
        if epoch > self.epoch:
            self.epoch = epoch
            self._forget_answers()
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
        self._learner_left = True
        return True

    def policy_accepted(self, epoch: int, version: int) -> None:
        """A pushed policy stands ready for the loop."""
        self._policy = (epoch, version)

    def policy_lost(self) -> None:
        """The policies known so far are of no use for the learner's new task."""
        self._policy = None

    def block_made(
        self, payload: bytes, *, epoch: int, version: int, now_s: float, steps: int = 0, ends_turn: bool = True
    ) -> int:
        """Take over an encoded block, acted at its last row with policy (epoch, version); returns its sequence."""
        sequence = self.next_sequence
        self._outbox.put(sequence, payload, steps=steps)
        self.next_sequence += 1
        if ends_turn:
            self._spent = (epoch, version)
        self._follow(now_s)  # room may have been made
        if self._delivers_own and self._unsent == sequence and not self._in_flight:
            self._quiet_since_s = now_s  # nothing was out: silence begins now
        return sequence

    def ack(self, *, boot_id: str, epoch: int, inserted: int, durable: int, credit: int, now_s: float) -> bool:
        """The learner's ack; returns whether anything moved.

        One of another epoch, or for another life than the one that is delivered, says nothing and is ignored.
        """
        if epoch != self.epoch or boot_id != self.delivering or durable > inserted:
            return False
        if inserted >= self._outbox.end:
            if self._delivers_own:
                return False
            # The learner may know blocks of an earlier life that a power cut took from here.
            inserted, durable = self._outbox.end - 1, min(durable, self._outbox.end - 1)
        self._learner_online = not self._learner_left
        self._learner_heard_s = now_s
        self._known_inserted = max(self._known_inserted, inserted)
        # Credit counts from `inserted`. Blocks that are held no longer use none: the next one sent says so.
        first = self._outbox.next_held(self._known_inserted + 1)
        credit += max(0, (self._outbox.base if first is None else first) - self._known_inserted - 1)
        moved = inserted > self.inserted or credit > self.credit or durable > self.durable
        if inserted > self.inserted or credit > self.credit:
            self._quiet_since_s = now_s
            self._patience_s = self._config.resend_after_s
        self.inserted = max(self.inserted, inserted)
        self.credit = max(self.credit, credit)
        while self._in_flight and self._in_flight[0][0] <= self.inserted:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        self._unsent = max(self._unsent, self.inserted + 1)
        if durable > self.durable:
            self.durable = durable
            self._outbox.free(durable)
            self._follow(now_s)
        return moved

    def tick(self, now_s: float, *, in_air: bool = False) -> None:
        """Time passed: send again what stayed unanswered, ask again for credit, notice a silent learner.

        Args:
            now_s: monotonic time.
            in_air: the broker has not taken yet what was sent. On a slow link that explains the silence, and sending
                again would only lengthen it; for `stuck_after_s`.
        """
        if self._learner_online and now_s - self._learner_heard_s > self._config.learner_silent_s:
            self._learner_online = False
        self._note_absence(now_s)
        if self._absent():
            return
        lacks_credit = self._lacks_credit()
        waiting = bool(self._in_flight) or lacks_credit
        patience_s = max(self._patience_s, self._config.stuck_after_s) if in_air else self._patience_s
        if waiting and now_s - self._quiet_since_s >= patience_s:
            self._patience_s = min(2 * self._patience_s, self._config.resend_max_s)
            self._quiet_since_s = now_s
            self._send_again()
            self._announce = self._announce or lacks_credit

    def meet_task(self, task: str, now_s: float) -> bool:
        """A birth names its learner's task, and is not signed: blocks of another one are set aside, not given up.

        Returns:
            Whether they are since now. `begin_task` gives them up; a birth with their own task has them sent again.
        """
        before, self.sets_aside = self.sets_aside, self._outbox.holds_other_task(task)
        if not self.sets_aside:
            self.begin_task(task, now_s)
        return self.sets_aside and not before

    def begin_task(self, task: str, now_s: float) -> int:
        """The learner's task: blocks of another one are given up; returns how many.

        `base` of what is sent from now on says so to the learner. A lockstep that is made again is another task.
        """
        dropped, self.sets_aside = self._outbox.begin_task(task), False
        self._follow(now_s)
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
        first = self._outbox.next_held(self.inserted + 1)
        return not self._absent() and not self.sets_aside and (first is not None or not self._delivers_own)

    @property
    def base(self) -> int:
        """The lowest sequence that can still be sent."""
        return self._outbox.base

    def blocked(self) -> Blocked:
        """Return "" when the loop may make another block, else why not."""
        if self._policy is None:
            return self._absent() or "no policy"
        if self._in_turns and (self._policy[0] != self.epoch or self._policy == self._spent):
            return self._absent() or "waiting for the next policy"
        if self._outbox.fault:
            return "spool cannot be written"
        return "spool full" if self._outbox.full else self._beyond_credit()

    def _beyond_credit(self) -> Blocked:
        if self._delivers_own and self.next_sequence < self.credit:
            return ""
        absent = self._absent()
        if absent:
            return "" if self._offline_s < self._config.max_offline_s else absent
        return "no credit" if self._delivers_own and self._unsent >= self.next_sequence else "catching up"

    def next_to_send(self, now_s: float) -> int | None:
        """Return the sequence to send now, or None; call `sent` before asking again."""
        if self._absent() or self.sets_aside or not self._pace.allows(now_s):
            return None
        sequence = self._outbox.next_held(max(self._unsent, self._outbox.base))
        if sequence is None or sequence >= self.credit or not self._fits_in_flight():
            return None
        self._unsent = sequence  # over what is held no longer
        return sequence

    def sent(self, sequence: int, size_bytes: int = 0) -> None:
        """Block `sequence` is being handed to the link: said before, since an answer may come before that returns."""
        self._unsent = sequence + 1
        self._pace.spend(size_bytes)
        self._in_flight.append((sequence, size_bytes))
        self._in_flight_bytes += size_bytes
        if sequence < self._sent_once:
            self.resends += 1
        else:
            self._sent_once = self._unsent

    def not_taken(self, sequence: int) -> None:
        """The link did not take block `sequence` after all: try again later."""
        self._unsent = min(self._unsent, max(sequence, self._first_unconfirmed()))
        if self._in_flight and self._in_flight[-1][0] == sequence:
            size_bytes = self._in_flight.pop()[1]
            self._in_flight_bytes -= size_bytes
            self._pace.spend(-size_bytes)
        if sequence == self._sent_once - 1:
            self._sent_once = sequence

    def not_held(self, now_s: float) -> None:
        """The outbox did not have what it was asked for: it was damaged, and is dropped."""
        self._follow(now_s)

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

    @property
    def _delivers_own(self) -> bool:
        return self.delivering == self._outbox.boot_id

    def _absent(self) -> Literal["", "link down", "no learner"]:
        if not self._link_up:
            return "link down"
        return "" if self._learner_online else "no learner"

    def _note_absence(self, now_s: float) -> None:
        if not self._absent():
            self._offline_since_s, self._offline_s = None, 0.0
        else:
            self._offline_since_s = now_s if self._offline_since_s is None else self._offline_since_s
            self._offline_s = now_s - self._offline_since_s

    def _heard(self, beat: int, now_s: float) -> None:
        self._learner_online, self._learner_left = True, False
        self._learner_beat = beat
        self._learner_heard_s = now_s

    def _lacks_credit(self) -> bool:
        """Whether the next block, sent or yet to be made, waits for credit."""
        following = self._outbox.next_held(self._unsent)
        if following is None:
            return self._delivers_own and self.next_sequence >= self.credit
        return following >= self.credit or (self._delivers_own and self.next_sequence >= self.credit)

    def _fits_in_flight(self) -> bool:
        config = self._config
        return len(self._in_flight) < config.max_in_flight_blocks and (
            self._in_flight_bytes < config.max_in_flight_bytes
        )

    def _first_unconfirmed(self) -> int:
        return max(self.inserted + 1, self._outbox.base)

    def _forget_answers(self) -> None:
        """Another learner, or another life: nothing is known but what is durable."""
        self.inserted = self.durable
        self._known_inserted = -1
        self.credit = 0

    def _follow(self, now_s: float) -> None:
        """Turn to the life that the outbox delivers now, and over what it holds no longer."""
        if self._outbox.delivering != self.delivering:
            self.delivering = self._outbox.delivering
            self.durable = self._outbox.base - 1
            self._forget_answers()
            self._sent_once = self._outbox.base
            self._announce = True
            self._go_back(now_s)
        self._unsent = max(self._unsent, self._outbox.base)

    def _send_again(self) -> None:
        self._unsent = self._first_unconfirmed()
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def _go_back(self, now_s: float) -> None:
        self._send_again()
        self._quiet_since_s = now_s
        self._patience_s = self._config.resend_after_s
