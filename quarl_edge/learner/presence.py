"""The learner's presence on the wire: its birth, its epoch, and that it is the only one (W8)."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from quarl_device.errors import LearnerAlive, PayloadRefused, QuarlError
from quarl_device.link import Link, Message
from quarl_device.wire.keys import SIGNATURE_BYTES
from quarl_device.wire.manifest import decode_header
from quarl_device.wire.messages import HIGHEST_BELIEVABLE_EPOCH, DeviceState, LearnerBirth
from quarl_device.wire.topics import Topics

_LOG = logging.getLogger(__name__)
RENEW_PERIOD_S = 10.0
WATCH_S = 30.0
RETAINED_WAIT_S = 0.5
_SUBSCRIBE_TIMEOUT_S = 5.0
_BELIEVED_AHEAD_S = 10 * 365 * 86_400


def next_epoch(*, unix_s: float, highest_seen: int, checkpoint_epoch: int) -> int:
    """Return the epoch of a starting learner: later than all that is known, even when the clock is wrong (W8).

    Args:
        unix_s: this host's clock.
        highest_seen: highest epoch in any retained birth or push, 0 for none.
        checkpoint_epoch: epoch stored in the checkpoint that is resumed, 0 for none.
    """
    return max(int(unix_s), _believable(highest_seen, unix_s=unix_s) + 1, checkpoint_epoch + 1)


def _believable(epoch: int, *, unix_s: float | None = None) -> int:
    """Return `epoch`, or 0 where it lies too far ahead of this host's clock to be a learner's.

    Anybody can leave any epoch behind. What is believed must leave room for all learners to come, below what actors
    believe: they may have no clock of their own.
    """
    now_s = time.time() if unix_s is None else unix_s
    return epoch if epoch < min(now_s + _BELIEVED_AHEAD_S, HIGHEST_BELIEVABLE_EPOCH) else 0


class Predecessor:
    """What a starting learner finds retained: another learner's birth, its last push, and what devices run.

    Births are renewed every 10 s with a growing `beat`; only one that changes while it is watched counts as alive.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._birth: LearnerBirth | None = None
        self._beats = 0
        self.highest_epoch = 0

    def on_birth(self, message: Message) -> None:
        """Take a message of the `learner` topic."""
        if not message.payload:
            return
        try:
            birth = LearnerBirth.decode(message.payload)
        except QuarlError as error:
            _LOG.warning("a learner birth that does not hold was ignored: %s", error)
            return
        with self._changed:
            earlier = self._birth
            if earlier is not None and birth.status == "online" and _is_renewal(earlier, birth):
                self._beats += 1
            self._birth = birth
            self._see(birth.epoch)
            self._changed.notify_all()

    def on_policy(self, message: Message) -> None:
        """Take a message of the `live/policy` topic; only its epoch matters here, so nothing is verified."""
        if not message.payload:
            return
        try:
            header = decode_header(message.payload, _trust_nothing)
        except QuarlError:
            return
        self._see(header.epoch)

    def on_state(self, message: Message) -> None:
        """Take a device's birth: the epoch that it runs may be of a learner whose own topics are gone."""
        if not message.payload:
            return
        try:
            state = DeviceState.decode(message.payload)
        except QuarlError:
            return
        self._see(state.epoch)

    def _see(self, epoch: int) -> None:
        self.highest_epoch = max(self.highest_epoch, _believable(epoch))

    @property
    def online(self) -> bool:
        """Whether the retained birth claims that a learner is online."""
        return self._birth is not None and self._birth.status == "online"

    def alive_within(self, seconds: float, *, cancelled: Callable[[], bool]) -> bool:
        """Watch for at most `seconds` whether the other learner renews its birth."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self.online and not self._beats and not cancelled():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.2))
            return self.online and self._beats > 0


def claim_fleet(
    link: Link, topics: Topics, *, takeover: bool, cancelled: Callable[[], bool], watch_s: float = WATCH_S
) -> int:
    """Make sure that no other learner serves the fleet; return the highest epoch seen.

    Where `cancelled` turns true, it returns early and nothing is made sure: the caller must look too.

    Raises:
        LearnerAlive: another learner renewed its birth while watched, and `takeover` is false.
    """
    predecessor = Predecessor()
    link.subscribe(topics.learner, predecessor.on_birth)
    link.subscribe(topics.policy, predecessor.on_policy)
    link.subscribe(topics.any_state, predecessor.on_state)
    # Over a slow link the subscriptions themselves take their time, and what is retained comes after them.
    link.flush(timeout_s=_SUBSCRIBE_TIMEOUT_S)
    time.sleep(RETAINED_WAIT_S)
    if predecessor.online and not takeover:
        _LOG.warning("a learner's birth is retained; watching up to %.0f s whether it is alive", watch_s)
        if predecessor.alive_within(watch_s, cancelled=cancelled):
            raise LearnerAlive(
                f"another learner (epoch {predecessor.highest_epoch}) serves this fleet",
                hint="choose another --fleet, or take over with --takeover",
            )
    return predecessor.highest_epoch


class Presence:
    """Publishes the learner's birth, renews it, and says goodbye; notices when another learner takes the fleet.

    The `learner` topic is watched from the start. A birth of a later epoch (or of the same one with a later beat, where
    two started in one second) that is not ours deposes this learner: from then on it publishes nothing, so that its
    goodbye cannot hide the other's birth. An older one that overwrote ours is answered with a renewal.

    Args:
        link: connected link whose will is `gone_birth(birth)`.
        topics: of the fleet.
        birth: what to say; `beat` is counted here from the one given, which should be random.
        takeover: announce even while another learner renews its birth.
    """

    def __init__(self, link: Link, topics: Topics, birth: LearnerBirth, *, takeover: bool = False) -> None:
        self._takeover = takeover
        self._link = link
        self._topics = topics
        self._birth = birth
        self._first_beat = birth.beat
        self._next_s = float("inf")
        self._lock = threading.Lock()
        self._announced = self._left = False
        self._deposed_by = 0
        link.on_connect(self._again)
        link.subscribe(topics.learner, self._on_birth)

    def announce(self) -> None:
        """Publish the birth now, unless this learner has left or another one serves the fleet."""
        with self._lock:
            if self._left or self._deposed_by:
                return
            self._announced = True
            self._birth = dataclasses.replace(self._birth, beat=self._birth.beat + 1)
            payload = self._birth.encode()
            self._next_s = time.monotonic() + RENEW_PERIOD_S
        self._link.publish(self._topics.learner, payload, retain=True)

    def check(self) -> None:
        """Raise LearnerAlive where another learner has taken the fleet."""
        if self._deposed_by:
            raise LearnerAlive(
                f"another learner (epoch {self._deposed_by}) has taken this fleet over",
                hint="two learners need two fleets: choose another --fleet",
            )

    def tick(self) -> None:
        """Renew the birth when it is due.

        Raises:
            LearnerAlive: see `check`.
        """
        self.check()
        if time.monotonic() >= self._next_s:
            self.announce()

    def leave(self, *, clear: bool) -> None:
        """Say that the learner is gone, once; nothing brings it back, a reconnection neither.

        Args:
            clear: also remove the retained birth and push, as a demo does; otherwise both stay for latecomers.
        """
        with self._lock:
            if self._left or self._deposed_by or not self._announced:
                self._left = True
                return
            self._left = True
            gone = gone_birth(self._birth)
        self._link.publish(self._topics.learner, gone, retain=True)
        if clear:
            self._link.flush(timeout_s=2.0)
            self._link.publish(self._topics.policy, b"", retain=True)
            self._link.publish(self._topics.learner, b"", retain=True)
        self._link.flush(timeout_s=2.0)

    def _again(self) -> None:
        if self._announced:
            self.announce()

    def _on_birth(self, message: Message) -> None:
        if not message.payload:
            return
        try:
            other = LearnerBirth.decode(message.payload)
        except QuarlError:
            return
        with self._lock:
            own = self._birth
            if other.epoch == own.epoch and self._first_beat <= other.beat <= own.beat:
                return
            later = (_believable(other.epoch), other.beat) > (own.epoch, own.beat)
            # Not retained: said just now, by one that the claim did not see.
            alive = not (self._announced or self._takeover or message.retain)
            if (later or alive) and other.status == "online":
                self._deposed_by = other.epoch
            elif self._announced and not self._left:
                self._next_s = 0.0


def gone_birth(birth: LearnerBirth) -> bytes:
    """Return the payload that says that this learner is gone; also its MQTT will."""
    return dataclasses.replace(birth, status="gone").encode()


def _is_renewal(earlier: LearnerBirth, later: LearnerBirth) -> bool:
    return (later.epoch, later.beat) != (earlier.epoch, earlier.beat)


def _trust_nothing(signature: bytes, signed: bytes) -> None:
    """Accept any signature: only the epoch is read, as a lower bound of ours (see `next_epoch`)."""
    if len(signature) != SIGNATURE_BYTES or not signed:
        raise PayloadRefused("a push without a signature")
