"""What the learner hears: experience, births and telemetry; and the acks that it answers with."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from quarl_device.errors import QuarlError
from quarl_device.link import Link, Message
from quarl_device.wire.messages import DeviceState, Telemetry
from quarl_device.wire.topics import Topics
from quarl_edge.ingest.ingest import Ingest

_LOG = logging.getLogger(__name__)
_MAX_DEVICES = 4_096


@dataclass(frozen=True, kw_only=True)
class ActorView:
    """What the learner knows of one device.

    Attributes:
        state: its last birth or death.
        telemetry: its last telemetry, `None` before the first.
    """

    state: DeviceState
    telemetry: Telemetry | None = None


class Receiver:
    """Feeds experience to `Ingest` on the link's thread and publishes acks.

    Args:
        link: to the broker.
        topics: of the fleet.
        ingest: thread-safe; validates, journals, inserts.
    """

    def __init__(self, link: Link, topics: Topics, ingest: Ingest) -> None:
        self._link = link
        self._topics = topics
        self._ingest = ingest
        self._arrived = threading.Condition()
        self._arrivals = 0
        self._actors: dict[str, ActorView] = {}
        self._refused_states = 0
        self.last_arrival_s = time.monotonic()

    def listen(self) -> None:
        """Subscribe; from now on experience is taken."""
        self._link.subscribe(self._topics.any_state, self._on_state)
        self._link.subscribe(self._topics.any_telemetry, self._on_telemetry, qos=0)
        self._link.subscribe(self._topics.any_xp, self._on_experience)

    def send_acks(self) -> None:
        """Publish what changed since the last call: storage, refusals, credit."""
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
    def actors(self) -> dict[str, ActorView]:
        """Devices whose last word was a birth, by name."""
        return {name: view for name, view in list(self._actors.items()) if view.state.status == "online"}

    def _on_experience(self, message: Message) -> None:
        self._ingest.offer(self._topics.device_of(message.topic), message.payload)
        with self._arrived:
            self._arrivals += 1
            self.last_arrival_s = time.monotonic()
            self._arrived.notify_all()
        self.send_acks()

    def _on_state(self, message: Message) -> None:
        device = self._topics.device_of(message.topic)
        if not message.payload:
            self._actors.pop(device, None)
            return
        try:
            state = DeviceState.decode(message.payload)
        except QuarlError as error:
            self._refused_states += 1
            _LOG.warning("state of %s refused: %s", device, error)
            return
        if state.device != device:
            _LOG.warning("state of %s refused: it names %s", device, state.device)
            return
        if device not in self._actors and len(self._actors) >= _MAX_DEVICES:
            _LOG.warning("state of %s refused: %d devices are known already", device, _MAX_DEVICES)
            return
        known = self._actors.get(device)
        self._actors[device] = ActorView(state=state, telemetry=known.telemetry if known else None)
        if state.status == "online":
            self._ingest.opened(device, state.boot_id)
            self.send_acks()
        else:
            self._ingest.closed(device)

    def _on_telemetry(self, message: Message) -> None:
        device = self._topics.device_of(message.topic)
        known = self._actors.get(device)
        if known is None:
            return
        try:
            telemetry = Telemetry.decode(message.payload)
        except QuarlError as error:
            _LOG.warning("telemetry of %s refused: %s", device, error)
            return
        self._actors[device] = ActorView(state=known.state, telemetry=telemetry)
