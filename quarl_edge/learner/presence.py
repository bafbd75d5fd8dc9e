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
from quarl_device.wire.messages import LearnerBirth
from quarl_device.wire.push import decode_push
from quarl_device.wire.topics import Topics

_LOG = logging.getLogger(__name__)
RENEW_PERIOD_S = 10.0
WATCH_S = 30.0
RETAINED_WAIT_S = 0.5
_HIGHEST_BELIEVABLE_EPOCH = 4_000_000_000  # the year 2096


def next_epoch(*, unix_s: float, highest_seen: int, checkpoint_epoch: int) -> int:
    """Return the epoch of a starting learner: later than all that is known, even when the clock is wrong (W8).

    Args:
        unix_s: this host's clock.
        highest_seen: highest epoch in any retained birth or push, 0 for none.
        checkpoint_epoch: epoch stored in the checkpoint that is resumed, 0 for none.
    """
    # Anybody could leave a huge epoch behind; believing it would leave no room for another (epochs have 32 bits).
    believable = highest_seen if highest_seen < _HIGHEST_BELIEVABLE_EPOCH else 0
    return max(int(unix_s), believable + 1, checkpoint_epoch + 1)


class Predecessor:
    """What a starting learner finds retained: another learner's birth and its last push.

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
            self.highest_epoch = max(self.highest_epoch, birth.epoch)
            self._changed.notify_all()

    def on_policy(self, message: Message) -> None:
        """Take a message of the `live/policy` topic; only its epoch matters here, so nothing is verified."""
        if not message.payload:
            return
        try:
            header, _ = decode_push(message.payload, _trust_nothing)
        except QuarlError:
            return
        self.highest_epoch = max(self.highest_epoch, header.epoch)

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

    Raises:
        LearnerAlive: another learner renewed its birth while watched, and `takeover` is false.
    """
    predecessor = Predecessor()
    link.subscribe(topics.learner, predecessor.on_birth)
    link.subscribe(topics.policy, predecessor.on_policy)
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
    """Publishes the learner's birth, renews it, and says goodbye.

    Args:
        link: connected link whose will is `gone_birth(birth)`.
        topics: of the fleet.
        birth: what to say; `beat` is counted here.
    """

    def __init__(self, link: Link, topics: Topics, birth: LearnerBirth) -> None:
        self._link = link
        self._topics = topics
        self._birth = birth
        self._next_s = 0.0
        self._lock = threading.Lock()
        link.on_connect(self.announce)

    def announce(self) -> None:
        """Publish the birth now; called again by the link after each reconnection."""
        with self._lock:
            self._birth = dataclasses.replace(self._birth, beat=self._birth.beat + 1)
            payload = self._birth.encode()
            self._next_s = time.monotonic() + RENEW_PERIOD_S
        self._link.publish(self._topics.learner, payload, retain=True)

    def tick(self) -> None:
        """Renew the birth when it is due."""
        if time.monotonic() >= self._next_s:
            self.announce()

    def leave(self, *, clear: bool) -> None:
        """Say that the learner is gone.

        Args:
            clear: also remove the retained birth and push, as a demo does; otherwise both stay for latecomers.
        """
        with self._lock:
            self._next_s = float("inf")
            gone = gone_birth(self._birth)
        self._link.publish(self._topics.learner, gone, retain=True)
        if clear:
            self._link.flush(timeout_s=2.0)
            self._link.publish(self._topics.policy, b"", retain=True)
            self._link.publish(self._topics.learner, b"", retain=True)
        self._link.flush(timeout_s=2.0)


def gone_birth(birth: LearnerBirth) -> bytes:
    """Return the payload that says that this learner is gone; also its MQTT will."""
    return dataclasses.replace(birth, status="gone").encode()


def _is_renewal(earlier: LearnerBirth, later: LearnerBirth) -> bool:
    return (later.epoch, later.beat) != (earlier.epoch, earlier.beat)


def _trust_nothing(signature: bytes, signed: bytes) -> None:
    """Accept any signature: only the epoch is read, as a lower bound of ours (see `next_epoch`)."""
    if len(signature) != SIGNATURE_BYTES or not signed:
        raise PayloadRefused("a push without a signature")
