"""What a learner says of itself every second: shown, never decided upon."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quarl_device.errors import PayloadRefused, UsageError
from quarl_device.names import check_name
from quarl_device.wire.strict_json import MAX_INT, MAX_REASON, SCHEMA, Reader, dumps, loads, one_line

MAX_LAGS = 512
"""Devices whose lag is told: those that are furthest behind. 64 KiB hold them all."""


@dataclass(frozen=True, kw_only=True)
class Lag:
    """How old the policy was that made a device's last block.

    Attributes:
        versions: published since.
        steps: environment steps that the learner had learned from when it published the newest version, less those of
            the one that acted.
        age_s: seconds since the version that acted was replaced by the next one; 0 while it is the newest.
    """

    versions: int = 0
    steps: int = 0
    age_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LearnerTelemetry:
    """On `learner/telemetry`, QoS 0, every second.

    Attributes:
        epoch: of this learner's life.
        env_steps: environment steps in stored blocks, over all sessions of the run.
        env_steps_per_s: over the last second.
        updates: gradient steps, over all sessions of the run.
        updates_per_s: over the last second.
        policy_version: published last.
        pushes: that went out.
        pushes_held_back: because their ranges did not fit.
        samples_per_insert: of this session.
        replay_size: transitions in replay.
        replay_capacity: that it holds.
        blocks: stored.
        duplicates: blocks that came again and were not stored again.
        gaps: blocks that came before the one that was due.
        lost_steps: environment steps that their actors gave up or that were refused.
        refused: blocks that did not hold.
        actors: devices online.
        int8_return: last judged return of the exported file, `None` before the first.
        blocked: what the learner waits for, "" while it learns.
        blocked_since_unix_s: since when, 0 while it learns.
        handler_errors: exceptions that the link caught in handlers.
        lags: by device.
    """

    epoch: int
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    updates: int = 0
    updates_per_s: float = 0.0
    policy_version: int = 0
    pushes: int = 0
    pushes_held_back: int = 0
    samples_per_insert: float = 0.0
    replay_size: int = 0
    replay_capacity: int = 0
    blocks: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost_steps: int = 0
    refused: int = 0
    actors: int = 0
    int8_return: float | None = None
    blocked: str = ""
    blocked_since_unix_s: float = 0.0
    handler_errors: int = 0
    lags: Mapping[str, Lag] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the JSON payload, with the lags of the `MAX_LAGS` devices furthest behind; PayloadRefused on NaN."""
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        furthest = sorted(self.lags.items(), key=lambda item: -item[1].versions)[:MAX_LAGS]
        fields["lags"] = {device: [lag.versions, lag.steps, round(lag.age_s, 3)] for device, lag in furthest}
        fields["blocked"] = one_line(self.blocked, max_length=MAX_REASON)
        return dumps({"schema": SCHEMA, **fields}, what="learner telemetry")

    @classmethod
    def decode(cls, payload: bytes) -> LearnerTelemetry:
        """Read an untrusted payload; PayloadRefused if it does not hold."""
        data = loads(payload, what="learner telemetry")
        data.schema()
        fields: dict[str, Any] = {}
        for spec in dataclasses.fields(cls):
            if spec.type == "int":
                fields[spec.name] = data.integer(spec.name)
            elif spec.type == "float":
                fields[spec.name] = data.unix_s(spec.name) if spec.name.endswith("_unix_s") else data.number(spec.name)
        judged = data.raw("int8_return")
        return cls(
            **fields,
            int8_return=None if judged is None else data.number("int8_return"),
            blocked=data.line("blocked", max_length=MAX_REASON),
            lags=_lags(data),
        )


def _lags(data: Reader) -> dict[str, Lag]:
    raw = data.object("lags")
    if len(raw) > MAX_LAGS:
        raise PayloadRefused(f"{data.what}: {len(raw)} lags, at most {MAX_LAGS}")
    lags: dict[str, Lag] = {}
    for device, entry in raw.items():
        try:
            versions, steps, age_s = entry
            sound = type(versions) is int and type(steps) is int and type(age_s) in (int, float)
            if not sound or not (0 <= versions <= MAX_INT and 0 <= steps <= MAX_INT and 0 <= age_s <= 1e12):
                raise ValueError("expected [versions, steps, seconds]")
            lags[check_name(device, kind="device")] = Lag(versions=versions, steps=steps, age_s=float(age_s))
        except (TypeError, ValueError, UsageError) as error:
            raise PayloadRefused(f"{data.what}: the lag of {device[:63]!r} does not hold: {error}") from None
    return lags
