"""What the learner hears: experience, births and telemetry; and the acks that it answers with."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quarl_device.capped_log import CappedWarnings
from quarl_device.errors import QuarlError
from quarl_device.link import Link, Message
from quarl_device.wire.learner_telemetry import LearnerTelemetry
from quarl_device.wire.messages import DeviceState, Telemetry
from quarl_device.wire.topics import Topics
from quarl_edge.flow.lag import PolicyLag
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.ingest.sessions import Verdict

_LOG = logging.getLogger(__name__)
_MAX_DEVICES = 4_096
_FEW_CONTRIBUTORS = 4
_SWEEP_S = 1.0
SILENT_S = 60.0
"""A device not heard of for so long is gone: it renews its birth every 10 s. Its will may be lost."""


@dataclass(frozen=True, kw_only=True)
class ActorView:
    """What the learner knows of one device.

    Attributes:
        state: its last birth or death.
        telemetry: its last telemetry, `None` before the first.
    """

    state: DeviceState
    telemetry: Telemetry | None = None


@dataclass(frozen=True, kw_only=True)
class FlowReport:
    """How experience and policies flow at one moment: what goes on the wire every second, and to Prometheus.

    Attributes:
        learner: what the learner says of itself.
        actors: what the devices that are online said last, by name.
        blocked_s: seconds that the learner waited in this session, by reason.
    """

    learner: LearnerTelemetry
    actors: Mapping[str, ActorView]
    blocked_s: Mapping[str, float]


class Receiver:
    """Feeds experience to `Ingest` on the link's thread and publishes acks.

    Args:
        link: to the broker.
        topics: of the fleet.
        ingest: thread-safe; validates, journals, inserts.
        clock: monotonic seconds, for tests.

    Attributes:
        last_stored_s: monotonic time at which a block was stored last, at first that of the start.
        contributors: (device, boot id) of the first lives whose blocks were stored: lockstep takes one.
    """

    def __init__(
        self, link: Link, topics: Topics, ingest: Ingest, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._heard_s: dict[str, float] = {}  # of the devices in `_actors`
        self._swept_s = clock()
        self._link = link
        self._topics = topics
        self._ingest = ingest
        self._arrived = threading.Condition()
        self._arrivals = 0
        self._actors: dict[str, ActorView] = {}
        self._last_beats: dict[tuple[str, str], int] = {}
        self._names: dict[str, str] = {}  # devices by topic: a name is checked once
        self._refusals = CappedWarnings(_LOG)
        self.last_stored_s = time.monotonic()
        self.contributors: set[tuple[str, str]] = set()

    def listen(self) -> None:
        """Subscribe; from now on experience is taken."""
        self._link.subscribe(self._topics.any_state, self._on_state)
        self._link.subscribe(self._topics.any_telemetry, self._on_telemetry, qos=0)
        self._link.subscribe(self._topics.any_xp, self._on_experience)
        # One ack answers all the blocks of a device that came together.
        self._link.on_idle(self.send_acks)

    def send_acks(self) -> None:
        """Publish what changed since the last call: storage, refusals, credit."""
        self._drop_silent()
        for device, ack in self._ingest.acks():
            self._link.publish(self._topics.ack(device), ack.encode(), qos=0)

    def wait(self, arrivals: int, *, timeout_s: float) -> int:
        """Wait until more than `arrivals` blocks have come, at most `timeout_s`.

        Returns:
            Blocks that have come so far.
        """
        with self._arrived:
            if self._arrivals <= arrivals:
                self._arrived.wait(timeout_s)
            return self._arrivals

    @property
    def arrivals(self) -> int:
        """Blocks that have come so far, stored or not."""
        return self._arrivals

    @property
    def blocked(self) -> str:
        """Why no block can be stored (a full disk), "" while they can."""
        return self._ingest.blocked

    @property
    def refused(self) -> dict[str, int]:
        """Blocks that did not hold, by error code."""
        return {str(code): count for code, count in self._ingest.refused.items()}

    @property
    def connected(self) -> bool:
        """Whether the link stands."""
        return self._link.connected

    @property
    def counters(self) -> Mapping[str, Any]:
        """What has come: see `Ingest.counters`; and what the link caught in handlers."""
        return {**self._ingest.counters, "handler_errors": self._link.counters.handler_errors}

    @property
    def lag(self) -> PolicyLag:
        """How far behind the devices act."""
        return self._ingest.lag

    @property
    def actors(self) -> dict[str, ActorView]:
        """Devices whose last word was a birth, by name."""
        return {name: view for name, view in list(self._actors.items()) if view.state.status == "online"}

    @property
    def policies_in_use(self) -> list[tuple[int, int]]:
        """(epoch, version) of the policy that each device online says to act with, (0, 0) without one."""
        return [(view.state.epoch, view.state.policy_version) for view in self.actors.values()]

    def _drop_silent(self) -> None:
        """Count devices that fell silent as gone, so that they take no share of the credit."""
        now_s = self._clock()
        if now_s - self._swept_s < _SWEEP_S:
            return
        self._swept_s = now_s
        for device, view in list(self._actors.items()):
            if view.state.status == "online" and now_s - self._heard_s.get(device, now_s) > SILENT_S:
                _LOG.warning("device %s was not heard of for %.0f s: it counts as gone", device, SILENT_S)
                gone = dataclasses.replace(view.state, status="gone")
                self._actors[device] = ActorView(state=gone, telemetry=view.telemetry)
                self._ingest.closed(device)

    def _on_experience(self, message: Message) -> None:
        device = self._device_of(message)
        # Experience is never retained: what a broker kept is somebody's mistake or malice, and no actor waits for it.
        if not device or message.retain:
            return
        if device in self._actors:
            self._heard_s[device] = self._clock()
        before = self._ingest.env_steps
        verdict = self._ingest.offer(device, message.payload)
        with self._arrived:
            self._arrivals += 1
            if verdict is Verdict.ACCEPT:
                self.last_stored_s = time.monotonic()
                # What an actor says to be lost is no experience, of whatever life.
                if self._ingest.env_steps > before and len(self.contributors) < _FEW_CONTRIBUTORS:
                    self.contributors.add((device, self._ingest.sessions.active(device)))
            self._arrived.notify_all()

    def _device_of(self, message: Message) -> str:
        """Return whose topic it is, "" for a name that no device has."""
        device = self._names.get(message.topic, "")
        if not device:
            try:
                device = self._topics.device_of(message.topic)
            except QuarlError as error:
                self._refuse("a device", str(error))
                return ""
            if len(self._names) < _MAX_DEVICES:
                self._names[message.topic] = device
        return device

    def _on_state(self, message: Message) -> None:
        device = self._device_of(message)
        if not device:
            return
        if not message.payload:
            self._actors.pop(device, None)
            self._heard_s.pop(device, None)
            return
        try:
            state = DeviceState.decode(message.payload)
        except QuarlError as error:
            self._refuse(device, str(error))
            return
        if state.device != device:
            self._refuse(device, f"it names {state.device}")
            return
        known = self._actors.get(device)
        if state.mode == "deploy":
            self._leave_out(device, state, known)
            return
        if known is None and not self._make_room():
            self._refuse(device, f"{_MAX_DEVICES} devices are known already")
            return
        self._heard_s[device] = self._clock()
        if state.status == "online":
            self._born(device, state, known)
        elif known is None or known.state.boot_id == state.boot_id:
            # The late word of an earlier life says nothing about this one.
            self._actors[device] = ActorView(state=state, telemetry=known.telemetry if known else None)
            self._ingest.closed(device)

    def _leave_out(self, device: str, state: DeviceState, known: ActorView | None) -> None:
        """A device that only acts sends no experience: it has no share in the credit, and no stream."""
        # The late will of an earlier life says nothing about one that trains.
        if known is not None and (state.status == "online" or known.state.boot_id == state.boot_id):
            del self._actors[device]
            self._heard_s.pop(device, None)
            self._ingest.closed(device)

    def _born(self, device: str, state: DeviceState, known: ActorView | None) -> None:
        # Every life is answered: one that seems over may be the newest, whose birth an older one's has overtaken.
        self._ingest.opened(device, state.delivering or state.boot_id)
        if known is None or known.state.boot_id == state.boot_id:
            self._actors[device] = ActorView(state=state, telemetry=known.telemetry if known else None)
        elif state.beat > self._last_beats.get((device, state.boot_id), -1):
            self._actors[device] = ActorView(state=state)
            self._remember_beat(device, known.state)
        self.send_acks()

    def _remember_beat(self, device: str, state: DeviceState) -> None:
        """A life that is followed by another shows itself again only by a birth that was not heard before."""
        self._last_beats[device, state.boot_id] = state.beat
        if len(self._last_beats) > _MAX_DEVICES:
            del self._last_beats[next(iter(self._last_beats))]

    def _make_room(self) -> bool:
        """Say whether one more device can be known, forgetting one that is gone where that is needed."""
        if len(self._actors) >= _MAX_DEVICES:
            gone = next((name for name, view in self._actors.items() if view.state.status == "gone"), None)
            if gone is None:
                return False
            del self._actors[gone]
            self._heard_s.pop(gone, None)
        return True

    def _refuse(self, device: str, reason: str) -> None:
        self._refusals.warning("message of %s refused: %s", device, reason)

    def _on_telemetry(self, message: Message) -> None:
        device = self._device_of(message)
        known = self._actors.get(device)
        if known is None:
            return
        try:
            telemetry = Telemetry.decode(message.payload)
        except QuarlError as error:
            self._refuse(device, str(error))
            return
        if telemetry.boot_id != known.state.boot_id:
            return
        self._heard_s[device] = self._clock()
        self._actors[device] = ActorView(state=known.state, telemetry=telemetry)
