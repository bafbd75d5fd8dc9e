"""Whether a starting learner may serve a fleet, and with which epoch: what other learners left or still say (W8).

A learner that is online renews its birth. One that said goodbye is gone. One whose will came, because its connection
broke, may be back in a moment; above all where this learner's own connection broke it: a broker that takes the client
id from a certificate ends the session of the one client to let the other in. Then the two can never be heard at once,
but every will carries a beat, and one with a later beat shows that its learner was back in between.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from quarl_device.errors import LearnerAlive, PayloadRefused, QuarlError
from quarl_device.link import Backoff, Link, Message
from quarl_device.wire.keys import SIGNATURE_BYTES
from quarl_device.wire.manifest import decode_header
from quarl_device.wire.messages import HIGHEST_BELIEVABLE_EPOCH, DeviceState, LearnerBirth
from quarl_device.wire.topics import Topics
from quarl_edge.learner.stop import AskedToStop

_LOG = logging.getLogger(__name__)
WATCH_S = 30.0
LOST_WATCH_S = 5.0
RETAINED_WAIT_S = 0.5
CLAIM_BACKOFF = Backoff(base_s=2.0, cap_s=2.0)
"""For the link of a claim: another learner that throws it off, and is thrown off by it, is left the time to speak."""
_SUBSCRIBE_TIMEOUT_S = 5.0
_BELIEVED_AHEAD_S = 10 * 365 * 86_400


def next_epoch(*, unix_s: float, highest_seen: int, checkpoint_epoch: int) -> int:
    """Return the epoch of a starting learner: later than all that is known, even when the clock is wrong (W8).

    Args:
        unix_s: this host's clock.
        highest_seen: highest epoch in any retained birth or push, 0 for none.
        checkpoint_epoch: epoch stored in the checkpoint that is resumed, 0 for none.
    """
    return max(int(unix_s), believable(highest_seen, unix_s=unix_s) + 1, checkpoint_epoch + 1)


def believable(epoch: int, *, unix_s: float | None = None) -> int:
    """Return `epoch`, or 0 where it lies too far ahead of this host's clock to be a learner's.

    Anybody can leave any epoch behind. What is believed must leave room for all learners to come, below what actors
    believe: they may have no clock of their own.
    """
    now_s = time.time() if unix_s is None else unix_s
    return epoch if epoch < min(now_s + _BELIEVED_AHEAD_S, HIGHEST_BELIEVABLE_EPOCH) else 0


class Predecessor:
    """What a starting learner finds retained: another learner's birth, its last push, and what devices run.

    Births are renewed every 10 s with a growing `beat`, and so are the wills that go with them. Only what changes while
    it is watched, or is said just now, counts as a sign of life.

    Attributes:
        highest_epoch: of all that was found.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._birth: LearnerBirth | None = None
        self._alive = False
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
            self._alive = not birth.left and (self._alive or self._is_sign_of_life(birth, message))
            self._birth = birth
            self._see(birth.epoch)
            self._changed.notify_all()

    def _is_sign_of_life(self, birth: LearnerBirth, message: Message) -> bool:
        earlier = self._birth
        if earlier is None or earlier.left:
            return birth.status == "online" and not message.retain
        if birth.status == "online":
            return (birth.epoch, birth.beat) != (earlier.epoch, earlier.beat)
        # A will says that a connection broke; a later one, that there was another connection since.
        return earlier.status == "gone" and (birth.epoch, birth.beat) > (earlier.epoch, earlier.beat)

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
        self.highest_epoch = max(self.highest_epoch, believable(epoch))

    @property
    def birth(self) -> LearnerBirth | None:
        """What the last learner said, or its will."""
        return self._birth

    def alive_within(self, seconds: float, *, cancelled: Callable[[], bool]) -> bool:
        """Watch for at most `seconds` whether the other learner gives a sign of life; its goodbye ends the watch.

        Raises:
            AskedToStop: `cancelled` turned true before anything was certain.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._alive and self._birth is not None and not self._birth.left:
                if cancelled():
                    raise AskedToStop
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.2))
            return self._alive


def claim_fleet(
    link: Link,
    topics: Topics,
    *,
    takeover: bool,
    cancelled: Callable[[], bool],
    watch_s: float = WATCH_S,
    lost_watch_s: float = LOST_WATCH_S,
) -> int:
    """Make sure that no other learner serves the fleet; return the highest epoch seen.

    Args:
        link: connected; reconnects no faster than `CLAIM_BACKOFF` where its client id may be another learner's too.
        topics: of the fleet.
        takeover: do not watch.
        cancelled: looked at while another learner is watched.
        watch_s: how long one is watched whose birth is retained.
        lost_watch_s: the same of one whose will is retained: it may come back.

    Raises:
        LearnerAlive: another learner gave a sign of life while watched, and `takeover` is false.
        AskedToStop: `cancelled` turned true first; nothing is known of the fleet then.
    """
    predecessor = Predecessor()
    link.subscribe(topics.learner, predecessor.on_birth)
    link.subscribe(topics.policy, predecessor.on_policy)
    link.subscribe(topics.any_state, predecessor.on_state)
    # Over a slow link the subscriptions themselves take their time, and what is retained comes after them.
    link.flush(timeout_s=_SUBSCRIBE_TIMEOUT_S)
    time.sleep(RETAINED_WAIT_S)
    birth = predecessor.birth
    if birth is None or birth.left or takeover:
        return predecessor.highest_epoch
    if birth.status == "online":
        _LOG.warning("a learner's birth is retained; watching up to %.0f s whether it is alive", watch_s)
    else:
        _LOG.warning(
            "a learner (epoch %d) was lost without a goodbye; watching %.0f s whether it comes back",
            birth.epoch,
            lost_watch_s,
        )
    seconds = watch_s if birth.status == "online" else lost_watch_s
    if predecessor.alive_within(seconds, cancelled=cancelled):
        raise LearnerAlive(
            f"another learner ({_name(predecessor.birth or birth)}) serves this fleet and goes on; this one ends",
            hint="choose another --fleet, or take over with --takeover; learners with certificates need one each: "
            "quarl-edge enroll NAME --role learner",
        )
    return predecessor.highest_epoch


def _name(birth: LearnerBirth) -> str:
    return f"epoch {birth.epoch}, {birth.env_id}, {birth.algorithm}"


def _trust_nothing(signature: bytes, signed: bytes) -> None:
    """Accept any signature: only the epoch is read, as a lower bound of ours (see `next_epoch`)."""
    if len(signature) != SIGNATURE_BYTES or not signed:
        raise PayloadRefused("a push without a signature")
