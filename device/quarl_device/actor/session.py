"""The actor's side of the protocol, as a pure state machine: no IO, no threads, no clock of its own.

Events go in (link, learner, policy, ack, block, tick), decisions come out: which blocks to send now, whether the loop
may step or why not, whether to announce this device again.

What it holds to:

* Blocks are sent in the order in which they were made, each again until the learner says `inserted`: those of earlier
  lives (boot ids) first, each life to its end, under its own boot id. The next life's wait until all are `durable`.
* The learner's credit bounds what is sent, and what is made while it is there. Where link or learner are lost, the loop
  goes on as far as the outbox, `max_offline_s` and `max_offline_blocks` allow. A learner that said goodbye has no use
  for more: it pauses.
  After a reconnection, a new learner epoch, or silence while blocks are out, sending goes back to the first block that
  is not known to be inserted. The learner drops duplicates, so every block ends in replay exactly once.
* A block is kept until the learner says `durable`: a learner that restarts may ask for it again.
* Everything known about `inserted` and `credit` belongs to one learner epoch and one life, and is forgotten with it.
* Blocks that were freed are never asked for: every block carries `base`, the lowest sequence that can still be sent.
* Silence never ends in a standstill: an actor without credit announces itself again, which a learner answers by an ack.
"""

from __future__ import annotations

from quarl_device.actor.blocked import Blocked, spool_full
from quarl_device.actor.outbox import Outbox
from quarl_device.actor.pace import Pace
from quarl_device.actor.presence import Learner, Presence
from quarl_device.actor.session_config import SessionConfig
from quarl_device.actor.window import Window

__all__ = ["ActorSession", "SessionConfig"]


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
        self._presence = Presence(silent_s=self._config.learner_silent_s)
        self._window = Window(
            max_blocks=self._config.max_in_flight_blocks,
            max_bytes=self._config.max_in_flight_bytes,
            resend_after_s=self._config.resend_after_s,
            resend_max_s=self._config.resend_max_s,
        )
        self._in_turns = False
        self._policy: tuple[int, int] | None = None
        self._spent: tuple[int, int] | None = None
        self._unsent = outbox.base  # the sequence to send next
        self._sent_once = outbox.base  # every sequence below was sent at least once
        self._announce = False
        self._announced_s = 0.0

    @property
    def learner(self) -> Learner:
        """What is known of the learner."""
        return self._presence.learner

    # Events ----------------------------------------------------------------------------------------------------------

    def link_changed(self, *, up: bool, now_s: float) -> None:
        """The link came up (again) or went down: what was in the air may be lost."""
        self._presence.link_up = up
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
            self._presence.born(beat=beat, anew=True, now_s=now_s)
            self._announce = True
            self._go_back(now_s)
            return True
        if self._presence.born(beat=beat, anew=False, now_s=now_s):
            self._announce = True
            self._go_back(now_s)
        return False

    def learner_gone(self, *, epoch: int, left: bool) -> bool:
        """The learner's farewell (`left`), or its will; returns whether it is news of the learner of this epoch."""
        return epoch == self.epoch and self._presence.parted(left=left)

    def policy_accepted(self, epoch: int, version: int) -> None:
        """A pushed policy stands ready for the loop."""
        self._policy = (epoch, version)

    def policy_lost(self) -> None:
        """The policies known so far are of no use for the learner's new task."""
        self._policy = None

    def block_made(
        self,
        payload: bytes,
        *,
        epoch: int,
        version: int,
        now_s: float,
        steps: int = 0,
        first_step: int | None = None,
        ends_turn: bool = True,
    ) -> int:
        """Take over an encoded block, acted at its last row with policy (epoch, version); returns its sequence."""
        sequence = self.next_sequence
        self._outbox.put(sequence, payload, steps=steps, first_step=first_step)
        self.next_sequence += 1
        if ends_turn:
            self._spent = (epoch, version)
        self._follow(now_s)  # room may have been made
        if self._delivers_own and self._unsent == sequence and not self._window:
            self._window.listen(now_s)  # nothing was out
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
        self._presence.answered(now_s)
        self._known_inserted = max(self._known_inserted, inserted)
        # Credit counts from `inserted`. Blocks that are held no longer use none: the next one sent says so.
        first = self._outbox.next_held(self._known_inserted + 1)
        credit += max(0, (self._outbox.base if first is None else first) - self._known_inserted - 1)
        moved = inserted > self.inserted or credit > self.credit or durable > self.durable
        if inserted > self.inserted or credit > self.credit:
            self._window.answered(now_s)
        self.inserted = max(self.inserted, inserted)
        self.credit = max(self.credit, credit)
        self._window.arrived(self.inserted)
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
        self._presence.note(now_s)
        if self._presence.absent:
            return
        lacks_credit = self._lacks_credit()
        at_least_s = self._config.stuck_after_s if in_air else 0.0
        waiting = len(self._window) > 0 or lacks_credit
        if waiting and self._window.silent_for_too_long(now_s, at_least_s=at_least_s):
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
        return self._presence.link_up

    @property
    def pending(self) -> int:
        """Blocks not yet durable."""
        return len(self._outbox)

    @property
    def awaits_insertion(self) -> bool:
        """Whether blocks wait for a learner that is there and can be reached."""
        first = self._outbox.next_held(self.inserted + 1)
        return not self._presence.absent and not self.sets_aside and (first is not None or not self._delivers_own)

    @property
    def base(self) -> int:
        """The lowest sequence that can still be sent."""
        return self._outbox.base

    def blocked(self) -> Blocked:
        """Return "" when the loop may make another block, else why not."""
        if self._policy is None:
            return self._presence.absent or "no policy"
        if self._in_turns and (self._policy[0] != self.epoch or self._policy == self._spent):
            return self._presence.absent or "waiting for the next policy"
        if self._outbox.fault:
            return "spool cannot be written"
        return self._full() if self._outbox.full else self._beyond_credit()

    def _full(self) -> Blocked:
        following = self._outbox.next_held(self._unsent)
        lacks_credit = not self._window and following is not None and following >= self.credit
        return spool_full(self._presence.absent, sets_aside=self.sets_aside, lacks_credit=lacks_credit)

    @property
    def absent_s(self) -> float:
        """How long there has been no link or no learner, 0 while there are both."""
        return self._presence.absent_s

    def _beyond_credit(self) -> Blocked:
        absent = self._presence.absent
        if self.learner == "left":
            return absent
        if self._delivers_own and self.next_sequence < self.credit:
            return ""
        if absent:
            goes_on = self._presence.absent_s < self._config.max_offline_s and not self._enough_waits
            return "" if goes_on else absent
        return "no credit" if self._delivers_own and self._unsent >= self.next_sequence else "catching up"

    @property
    def _enough_waits(self) -> bool:
        bound = self._config.max_offline_blocks
        return bound is not None and self.pending >= bound

    @property
    def stopped_by_blocks(self) -> bool:
        """Whether the loop stands still without link or learner for the number of blocks that wait."""
        return self._enough_waits and self.learner != "left" and bool(self.blocked()) and bool(self._presence.absent)

    def next_to_send(self, now_s: float) -> int | None:
        """Return the sequence to send now, or None; call `sent` before asking again."""
        if self._presence.absent or self.sets_aside or not self._pace.allows(now_s):
            return None
        sequence = self._outbox.next_held(max(self._unsent, self._outbox.base))
        if sequence is None or sequence >= self.credit or not self._window.open:
            return None
        self._unsent = sequence  # over what is held no longer
        return sequence

    def sent(self, sequence: int, size_bytes: int = 0) -> None:
        """Block `sequence` is being handed to the link: said before, since an answer may come before that returns."""
        self._unsent = sequence + 1
        self._pace.spend(size_bytes)
        self._window.add(sequence, size_bytes)
        if sequence < self._sent_once:
            self.resends += 1
        else:
            self._sent_once = self._unsent

    def not_taken(self, sequence: int) -> None:
        """The link did not take block `sequence` after all: try again later."""
        self._unsent = min(self._unsent, max(sequence, self._first_unconfirmed()))
        self._pace.spend(-self._window.take_back(sequence))
        if sequence == self._sent_once - 1:
            self._sent_once = sequence

    def not_held(self, now_s: float) -> None:
        """The outbox did not have what it was asked for: it was damaged, and is dropped."""
        self._follow(now_s)

    def announce_due(self, now_s: float) -> bool:
        """Return whether the device's birth is to be published now."""
        return self.link_up and (self._announce or now_s - self._announced_s >= self._config.announce_every_s)

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

    def _lacks_credit(self) -> bool:
        """Whether the next block, sent or yet to be made, waits for credit."""
        following = self._outbox.next_held(self._unsent)
        if following is None:
            return self._delivers_own and self.next_sequence >= self.credit
        return following >= self.credit or (self._delivers_own and self.next_sequence >= self.credit)

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
        self._window.clear()

    def _go_back(self, now_s: float) -> None:
        self._send_again()
        self._window.answered(now_s)
