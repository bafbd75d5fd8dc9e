"""The account of one session: what is counted while it runs, and what people, TensorBoard and the result get of it."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import deque
from collections.abc import Mapping

import numpy as np

from quarl_device.actor.standstill import Standstill
from quarl_device.wire.learner_telemetry import LearnerTelemetry
from quarl_edge.learner.gate import PushGate
from quarl_edge.learner.parts import Parts, Progression
from quarl_edge.learner.publisher import Pushed
from quarl_edge.learner.receiver import FlowReport
from quarl_edge.learner.result import StopReason, TrainResult
from quarl_edge.local.evaluator import Judged
from quarl_edge.progress import Status

_TELL_PERIOD_S = 1.0
_PUSHES_KEPT = 10_000  # whose times the median is of


class SessionAccount:
    """Counts, and says what it counted.

    Args:
        parts: of the loop; only read.
        progression: of the loop; only read.
        gate: of the loop; only read.

    Attributes:
        judged: the last judgement, `None` before the first.
        judgements: how many there were.
        pushes: policies that went out.
    """

    def __init__(self, parts: Parts, progression: Progression, gate: PushGate) -> None:
        self._parts = parts
        self._gate = gate
        self._progression = progression
        self._first_env_steps = parts.env_steps()
        self._first_updates = progression.updates
        self._first_samples = parts.experience.samples
        self._started_s = self._last_update_s = time.monotonic()
        self._last_update_env_steps = self._first_env_steps
        self._prepare_ms: deque[float] = deque(maxlen=_PUSHES_KEPT)
        self._most_actors = 0
        self._losses: Mapping[str, float] = {}
        self._standstill = Standstill(time.monotonic())
        self._told = (time.monotonic(), self._first_env_steps, self._first_updates)
        self.judged: Judged | None = None
        self.judgements = 0
        self.pushes = 0

    def start(self) -> None:
        """Start the clock."""
        self._started_s = self._last_update_s = time.monotonic()

    def updated(self, losses: Mapping[str, float]) -> None:
        """Note one fused call."""
        self._losses = losses
        self._last_update_s = time.monotonic()
        self._last_update_env_steps = self._parts.env_steps()
        self._standstill.note("", self._last_update_s)

    def waits(self, reason: str = "") -> None:
        """Note that there is nothing to learn from now, and why: what somebody must mend first."""
        receiver = self._parts.receiver
        if receiver.blocked:
            reason = "journal cannot be written"
        elif not receiver.connected:
            reason = "link down"
        elif not receiver.actors:
            reason = "no actors"
        elif not reason:
            reason = self._parts.experience.waits_for()
        self._standstill.note(reason, time.monotonic())

    def prepared(self, pushed: Pushed) -> None:
        """Note a policy that is ready to go out."""
        self._prepare_ms.append(pushed.prepare_ms)

    def judge(self, judged: Judged) -> None:
        """Note a judgement."""
        self.judged = judged
        self.judgements += 1
        result = judged.result
        self._parts.metrics.write(
            judged.env_steps, {"return/int8_mean": result.return_mean, "return/int8_std": result.return_std}
        )

    def show(self) -> None:
        """Tell whoever watches, and TensorBoard, how it stands."""
        now = time.monotonic()
        actors = len(self._parts.receiver.actors)
        self._most_actors = max(self._most_actors, actors)
        self._parts.progress.show(self._status(now, actors))
        self._write_metrics(now, actors)
        if now - self._told[0] >= _TELL_PERIOD_S:
            self._parts.tell(self.report(now))

    def report(self, now: float) -> FlowReport:
        """Return how experience and policies flow, with rates since the last report."""
        parts, (told_s, told_env_steps, told_updates) = self._parts, self._told
        counters, env_steps, updates = parts.receiver.counters, parts.env_steps(), self._progression.updates
        spent_s = max(now - told_s, 1e-9)
        self._told = (now, env_steps, updates)
        actors = parts.receiver.actors
        telemetry = LearnerTelemetry(
            epoch=parts.epoch,
            env_steps=env_steps,
            env_steps_per_s=(env_steps - told_env_steps) / spent_s,
            updates=updates,
            updates_per_s=(updates - told_updates) / spent_s,
            policy_version=parts.receiver.lag.version,
            pushes=self.pushes,
            pushes_held_back=self._gate.held_back,
            samples_per_insert=self._samples_per_insert(),
            replay_size=len(parts.experience),
            replay_capacity=parts.experience.capacity,
            blocks=counters["blocks"],
            duplicates=counters["duplicates"],
            gaps=counters["gaps"],
            lost_steps=counters["lost_steps"],
            refused=sum(counters["refused"].values()),
            actors=len(actors),
            int8_return=None if self.judged is None else self.judged.result.return_mean,
            blocked=self._standstill.reason,
            blocked_since_unix_s=self._standstill.since_unix_s(now, time.time()),
            handler_errors=counters["handler_errors"],
            lags={device: lag for device, lag in parts.receiver.lag.by_device().items() if device in actors},
        )
        return FlowReport(learner=telemetry, actors=actors, blocked_s=self._standstill.by_reason())

    def _status(self, now: float, actors: int) -> Status:
        parts, config = self._parts, self._parts.config
        waits = parts.experience.why_blocked() if actors else "waiting for actors"
        return Status(
            env_steps=parts.env_steps(),
            budget_steps=config.steps,
            updates=self._progression.updates,
            pushes=self.pushes,
            int8_return=None if self.judged is None else self.judged.result.return_mean,
            goal_return=config.goal_return,
            actors=actors,
            elapsed_s=now - self._started_s,
            blocked=parts.receiver.blocked or waits,
        )

    def _write_metrics(self, now: float, actors: int) -> None:
        elapsed = max(now - self._started_s, 1e-9)
        env_steps = self._parts.env_steps()
        scalars = {f"learner/{name}": value for name, value in self._losses.items()}
        scalars["learner/updates"] = float(self._progression.updates)
        scalars["rate/env_steps_per_s"] = (env_steps - self._first_env_steps) / elapsed
        scalars["rate/updates_per_s"] = (self._progression.updates - self._first_updates) / elapsed
        scalars["rate/samples_per_insert"] = self._samples_per_insert()
        scalars["actors/online"] = float(actors)
        scalars["pushes/converted"] = float(bool(self._parts.conversion_reason))
        if self._parts.edge_tpu is not None:
            scalars["pushes/compiled"] = float(self._parts.edge_tpu.counters.published)
        scalars["ranges/pushes_held_back"] = float(self._gate.held_back)
        if self._gate.health is not None:
            scalars["ranges/bits_lost"] = self._gate.health.bits_lost
            scalars["ranges/clipped_share"] = self._gate.health.clipped_share
            scalars["ranges/healthy"] = float(self._gate.health.healthy)
        scalars |= {f"ranges/{name}": value for name, value in self._gate.bounds.items()}
        scalars |= self._lag_metrics()
        exploration = self._parts.algorithm.exploration(env_steps)
        if exploration.values:
            scalars[f"actors/{exploration.kind}"] = float(np.mean(exploration.values))
        self._parts.metrics.write(env_steps, scalars)

    def _lag_metrics(self) -> dict[str, float]:
        """Return the largest policy lag of the devices that are online, each measure by itself."""
        online = self._parts.receiver.actors
        lags = [lag for device, lag in self._parts.receiver.lag.by_device().items() if device in online]
        if not lags:
            return {}
        return {
            "lag/versions_max": float(max(lag.versions for lag in lags)),
            "lag/env_steps_max": float(max(lag.steps for lag in lags)),
            "lag/seconds_max": max(lag.age_s for lag in lags),
        }

    def _samples_per_insert(self) -> float:
        inserted = self._parts.env_steps() - self._first_env_steps
        return (self._parts.experience.samples - self._first_samples) / inserted if inserted else 0.0

    def result(self, reason: StopReason) -> TrainResult:
        """Return what the session ends with; how it stood then is the last that is written of it."""
        parts = self._parts
        self._write_metrics(time.monotonic(), len(parts.receiver.actors))
        env_steps = parts.env_steps()
        # The age of a policy on another machine is told by another clock.
        local = () if parts.actors is None else parts.actors.names
        told = [view.telemetry for name, view in parts.receiver.actors.items() if view.telemetry and name in local]
        swaps = [t.push_ms_p50 for t in told if t.push_ms_p50 > 0]
        acts = [t.act_us_p50 for t in told if t.act_us_p50 > 0]
        train_s = self._last_update_s - self._started_s
        return TrainResult(
            reason=reason,
            env_steps=env_steps,
            session_env_steps=env_steps - self._first_env_steps,
            updates=self._progression.updates,
            session_updates=self._progression.updates - self._first_updates,
            pushes=self.pushes,
            pushes_held_back=self._gate.held_back,
            train_s=train_s,
            actor_steps_per_s=(self._last_update_env_steps - self._first_env_steps) / max(train_s, 1e-9),
            prepare_ms_p50=float(np.median(self._prepare_ms)) if self._prepare_ms else None,
            push_ms_p50=statistics.median(swaps) if swaps else None,
            actor_act_us_p50=statistics.median(acts) if acts else None,
            best=parts.keeper.best,
            judgements=self.judgements,
            last_return_mean=None if self.judged is None else self.judged.result.return_mean,
            resumable=parts.keeper.resumable,
            devices=self._most_actors,
            samples_per_insert=self._samples_per_insert(),
            audited=parts.auditor.audited,
            audit_failures=parts.auditor.failures,
            conversion_reason=parts.conversion_reason,
            ingest_refused=parts.receiver.refused,
            edge_tpu=None if parts.edge_tpu is None else dataclasses.replace(parts.edge_tpu.counters),
        )
