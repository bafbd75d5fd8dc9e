"""The learner's presence on the wire: its birth, its renewals, its goodbye, and that it is the only one (W8)."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

from quarl_device.capped_log import Burst
from quarl_device.errors import LearnerAlive, QuarlError
from quarl_device.link import Link, Message, Will
from quarl_device.wire.messages import LearnerBirth
from quarl_device.wire.topics import Topics
from quarl_edge.learner.claim import believable

_LOG = logging.getLogger(__name__)
RENEW_PERIOD_S = 10.0
SETTLED_S = 30.0
THROWN_OFF_NEWCOMER = 4
THROWN_OFF_SETTLED = 8
THROWN_OFF_UNHEARD = 100
"""Where no other learner was heard: half an hour or so of it, with the pauses between attempts."""
_ONE_EACH = "learners with certificates need one each: quarl-edge enroll NAME --role learner"


class Presence:
    """Publishes the learner's birth, renews it, and says goodbye; notices when another learner takes the fleet.

    The `learner` topic is watched from the start. A birth of a later epoch (or of the same one with a later beat, where
    two started in one second) that is not ours deposes this learner: from then on it publishes nothing, so that its
    goodbye cannot hide the other's birth. So does the will or the goodbye of a later one: devices that met it follow
    nobody older. An older birth that overwrote ours is answered with a renewal, and so is our own will, of whatever
    connection, or a goodbye that somebody forged: births are not signed.

    Two learners with one client id, as one certificate gives, throw each other off the broker. But a bad network ends
    connections right after they began, too, and no client can tell which of both it was. So that alone is evidence of
    nothing: it is together with the birth or will of another learner, heard meanwhile. Then the newcomer gives up
    first, so that one goes on. Where none is heard (the other one serves another fleet) only very many ends in a row
    are taken for it, and with a client id of its own, as accounts and passwords have it, nothing is.

    Args:
        link: connected link whose will is `will_of(topics, birth)`.
        topics: of the fleet.
        birth: what to say; `beat` is counted here from the one given, which should be random.
        takeover: announce even while another learner renews its birth.
        shared_id: another client may have this one's client id: the broker takes it from the certificate.
    """

    def __init__(
        self, link: Link, topics: Topics, birth: LearnerBirth, *, takeover: bool = False, shared_id: bool = False
    ) -> None:
        self._takeover = takeover
        self._shared_id = shared_id
        self._heard_other = False
        self._lines = Burst(lines=3)
        self._link = link
        self._topics = topics
        self._birth = birth
        self._first_beat = birth.beat
        self._next_s = float("inf")
        # Held while a birth or the goodbye is published too: the link's thread announces after a reconnection, and a
        # birth that was decided on before the goodbye must not be retained after it. Publishing only hands over.
        # Reentrant, since a link may deliver on the thread that publishes.
        self._lock = threading.RLock()
        self._announced = self._left = False
        self._deposed_by: LearnerBirth | None = None
        self._connected_s = time.monotonic()
        self._settled = False
        link.on_connect(self._again)
        link.subscribe(topics.learner, self._on_birth)

    def announce(self) -> None:
        """Publish the birth now, unless this learner has left or another one serves the fleet."""
        with self._lock:
            if self._left or self._deposed_by is not None:
                return
            self._announced = True
            self._birth = dataclasses.replace(self._birth, beat=self._birth.beat + 1)
            birth = self._birth
            self._next_s = time.monotonic() + RENEW_PERIOD_S
            # The will of the next connection tells whoever watches that there was another one.
            self._link.set_will(will_of(self._topics, birth))
            self._link.publish(self._topics.learner, birth.encode(), retain=True)

    def check(self) -> None:
        """Raise LearnerAlive where another learner has taken the fleet, or uses this one's client id."""
        other = self._deposed_by
        if other is not None:
            since = "" if other.status == "online" else " and has left it" if other.left else " and lost its connection"
            raise LearnerAlive(
                f"another learner (epoch {other.epoch}) has taken this fleet over{since}; devices that met it follow "
                f"nobody older, so this one (epoch {self._birth.epoch}) ends",
                hint="two learners need two fleets: choose another --fleet; to go on in place of the other: --resume",
            )
        times = self._link.counters.cut_short
        if self._shared_id and times >= self._patience():
            heard = " (it was heard)" if self._heard_other else ""
            raise LearnerAlive(
                f"the broker ended this learner's connection {times} times right after it began: another client{heard} "
                "has its client id, and each throws the other off; this one ends",
                hint=_ONE_EACH,
            )

    def _patience(self) -> int:
        """Return how many connections in a row may be cut short before another client is taken for the cause."""
        if not self._heard_other:
            return THROWN_OFF_UNHEARD
        return THROWN_OFF_SETTLED if self._settled else THROWN_OFF_NEWCOMER

    def tick(self) -> None:
        """Renew the birth when it is due.

        Raises:
            LearnerAlive: see `check`.
        """
        self.check()
        now_s = time.monotonic()
        # What was heard before the connection began to break is no evidence of why it does.
        self._heard_other = self._heard_other and self._link.counters.cut_short > 0
        self._settled = self._settled or (self._link.connected and now_s - self._connected_s > SETTLED_S)
        if now_s >= self._next_s:
            self.announce()

    def leave(self, *, clear: bool) -> None:
        """Say that the learner is gone, once; nothing brings it back, a reconnection neither.

        Args:
            clear: also remove the retained birth and pushes, as a demo does; otherwise both stay for latecomers.
        """
        with self._lock:
            if self._left or self._deposed_by is not None or not self._announced:
                self._left = True
                return
            self._left = True
            self._link.publish(self._topics.learner, gone_birth(self._birth, left=True), retain=True)
        # Not under the lock: what comes meanwhile, the goodbye's own echo too, is handled by who takes it.
        if clear:
            self._link.flush(timeout_s=2.0)
            self._link.publish(self._topics.policy, b"", retain=True)
            self._link.publish(self._topics.edgetpu, b"", retain=True)
            self._link.publish(self._topics.learner, b"", retain=True)
        self._link.flush(timeout_s=2.0)

    def _again(self) -> None:
        self._connected_s = time.monotonic()
        if not self._announced:
            return
        if self._shared_id and self._lines.allows(self._connected_s):
            _LOG.warning(
                "the broker is back after it ended this learner's session; if neither it nor the network failed, "
                "another client came with this learner's certificate and took the session (%s)",
                _ONE_EACH,
            )
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
            is_own = other.epoch == own.epoch and self._first_beat <= other.beat <= own.beat
            if is_own and other.status == "online":
                return
            later = not is_own and (believable(other.epoch), other.beat) > (own.epoch, own.beat)
            # Not retained: said just now, by one that the claim did not see.
            alive = not (self._announced or self._takeover or message.retain) and other.status == "online"
            if later or alive:
                self._deposed_by = other
            elif self._announced and not self._left:
                self._next_s = 0.0
                self._heard_other = self._heard_other or not is_own


def gone_birth(birth: LearnerBirth, *, left: bool) -> bytes:
    """Return the payload that says that this learner is gone.

    Args:
        birth: of the learner.
        left: it says so itself; otherwise its will does.
    """
    return dataclasses.replace(birth, status="gone", left=left).encode()


def will_of(topics: Topics, birth: LearnerBirth) -> Will:
    """Return what the broker says for a learner whose connection breaks."""
    return Will(topic=topics.learner, payload=gone_birth(birth, left=False), retain=True)
