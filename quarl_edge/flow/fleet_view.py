"""A fleet as one that only listens sees it: the last word of its learner and of every device, and how old it is."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quarl_device.actor.backlog import BACKLOG_BLOCKS, Backlog, Delivery
from quarl_device.errors import QuarlError
from quarl_device.link import Link, Message
from quarl_device.wire.learner_telemetry import Lag, LearnerTelemetry
from quarl_device.wire.messages import DeviceState, LearnerBirth, Telemetry
from quarl_device.wire.topics import Topics

MAX_DEVICES = 4_096


@dataclass(kw_only=True)
class DeviceView:
    """What was heard of one device.

    Attributes:
        state: its last birth or death.
        telemetry: its last telemetry of that life.
        heard_s: monotonic time of the last message that was said just then; `None` while all is retained.
        backlog: how what waits there shrinks.
    """

    state: DeviceState
    telemetry: Telemetry | None = None
    heard_s: float | None = None
    backlog: Backlog = field(default_factory=Backlog)


class FleetView:
    """Listens to one fleet and changes nothing. Thread-safe.

    Args:
        topics: of the fleet.
        clock: monotonic seconds, for tests.
        unix_clock: seconds since 1970, for tests.

    Attributes:
        refused: messages that did not hold.
    """

    def __init__(
        self,
        topics: Topics,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._unix_clock = unix_clock
        self._lock = threading.Lock()
        self._birth: LearnerBirth | None = None
        self._learner: LearnerTelemetry | None = None
        self._learner_heard_s: float | None = None
        self._devices: dict[str, DeviceView] = {}
        self.refused = 0

    def listen(self, link: Link) -> None:
        """Subscribe on `link`."""
        for topic, take in (
            (self._topics.learner, self._on_birth),
            (self._topics.learner_telemetry, self._on_learner),
            (self._topics.any_state, self._on_state),
            (self._topics.any_telemetry, self._on_telemetry),
        ):
            link.subscribe(topic, self._guarded(take), qos=0)

    @property
    def complete(self) -> bool:
        """Whether the learner that claims to be online, and every actor that does, has said how it goes.

        A device in deploy mode says all that it has to say with its birth.
        """
        with self._lock:
            states = (view for view in self._devices.values() if view.state.status == "online")
            online = [view for view in states if view.state.mode == "train"]
            learner = self._birth is None or self._birth.status == "gone" or self._learner is not None
            return learner and all(view.telemetry is not None for view in online)

    @property
    def empty(self) -> bool:
        """Whether nothing was heard."""
        return self._birth is None and self._learner is None and not self._devices

    def snapshot(self) -> dict[str, Any]:
        """Return all of it as JSON: `learner` (or null) and `actors`, by name."""
        with self._lock:
            now_s, now_unix_s = self._clock(), self._unix_clock()
            return {
                "fleet": self._topics.fleet,
                "learner": self._learner_row(now_s, now_unix_s),
                "actors": [self._device_row(name, now_s, now_unix_s) for name in sorted(self._devices)],
                "refused_messages": self.refused,
            }

    def _learner_row(self, now_s: float, now_unix_s: float) -> dict[str, Any] | None:
        birth, told = self._birth, self._learner
        if birth is None and told is None:
            return None
        row: dict[str, Any] = {
            "status": _standing(birth),
            "env": "" if birth is None else birth.env_id,
            "algorithm": "" if birth is None else birth.algorithm,
            "version": "" if birth is None else birth.version,
            "heard_s": _age(self._learner_heard_s, now_s),
        }
        if told is None:
            return row
        fields = dataclasses.asdict(told)
        fields.pop("lags")
        since = fields.pop("blocked_since_unix_s")
        return {**row, **fields, "blocked_s": max(0.0, now_unix_s - since) if told.blocked and since else 0.0}

    def _device_row(self, name: str, now_s: float, now_unix_s: float) -> dict[str, Any]:
        view = self._devices[name]
        state, told = view.state, view.telemetry
        row: dict[str, Any] = {
            "device": name,
            "status": state.status,
            "mode": state.mode,
            "heard_s": _age(view.heard_s, now_s),
            "envs": state.num_envs,
            "policy_epoch": state.epoch,
            "policy_version": state.policy_version,
            "runtime": state.runtime,
            "edge_tpu": state.edge_tpu,
            "digest": state.digest,
            "blocked": state.blocked,
            "blocked_s": _lasted(state, now_unix_s),
            "fault": state.fault,
            "lag": self._lag(name),
        }
        if told is not None:
            row |= {k: v for k, v in dataclasses.asdict(told).items() if k != "boot_id"}
            row |= _delivery_row(view.backlog.delivery if told.blocks_pending > BACKLOG_BLOCKS else None)
        return row

    def _lag(self, name: str) -> dict[str, Any] | None:
        lag = None if self._learner is None else self._learner.lags.get(name)
        return None if lag is None else _lag_row(lag)

    def _guarded(self, take: Callable[[Message], None]) -> Callable[[Message], None]:
        def on_message(message: Message) -> None:
            try:
                with self._lock:
                    take(message)
            except QuarlError:
                self.refused += 1

        return on_message

    def _on_birth(self, message: Message) -> None:
        self._birth = LearnerBirth.decode(message.payload) if message.payload else None
        if self._birth is None or self._birth.status == "gone":
            self._learner = None
        if not message.retain:
            self._learner_heard_s = self._clock()

    def _on_learner(self, message: Message) -> None:
        self._learner = LearnerTelemetry.decode(message.payload)
        self._learner_heard_s = self._clock()

    def _on_state(self, message: Message) -> None:
        device = self._topics.device_of(message.topic)
        if not message.payload:
            self._devices.pop(device, None)
            return
        state, known = DeviceState.decode(message.payload), self._devices.get(device)
        if known is None and len(self._devices) >= MAX_DEVICES:
            return
        same = known is not None and known.state.boot_id == state.boot_id
        heard_s = known.heard_s if known is not None else None
        self._devices[device] = DeviceView(
            state=state,
            telemetry=known.telemetry if known is not None and same else None,
            heard_s=heard_s if message.retain else self._clock(),
            backlog=known.backlog if known is not None and same else Backlog(),
        )

    def _on_telemetry(self, message: Message) -> None:
        known = self._devices.get(self._topics.device_of(message.topic))
        told = Telemetry.decode(message.payload)
        if known is not None and known.state.boot_id == told.boot_id:
            known.telemetry, known.heard_s = told, self._clock()
            known.backlog.note(told.spool_bytes, known.heard_s)


def _delivery_row(delivery: Delivery | None) -> dict[str, Any]:
    """Return how a backlog is delivered: both null where there is none or too little was seen, one where it grows."""
    if delivery is None or not delivery.known:
        return {"delivered_bytes_per_s": None, "delivered_in_s": None}
    left_s = None if delivery.left_s is None else round(delivery.left_s, 1)
    return {"delivered_bytes_per_s": round(delivery.bytes_per_s, 1), "delivered_in_s": left_s}


def _standing(birth: LearnerBirth | None) -> str:
    """Return "online", or how the learner went: "left" by its own word, "lost" by its will."""
    if birth is None:
        return "unknown"
    return birth.status if birth.status == "online" else "left" if birth.left else "lost"


def _age(heard_s: float | None, now_s: float) -> float | None:
    return None if heard_s is None else round(max(0.0, now_s - heard_s), 1)


def _lasted(state: DeviceState, now_unix_s: float) -> float:
    since = state.blocked_since_unix_s
    return max(0.0, now_unix_s - since) if state.blocked and since else 0.0


def _lag_row(lag: Lag) -> dict[str, Any]:
    return {"versions": lag.versions, "steps": lag.steps, "seconds": round(lag.age_s, 3)}
