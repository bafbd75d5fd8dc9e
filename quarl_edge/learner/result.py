"""What a training run ends with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from quarl_edge.local.evaluator import Judged


class StopReason(StrEnum):
    """Why training ended."""

    SOLVED = "solved"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """A finished run.

    Attributes:
        reason: why it ended.
        env_steps: environment steps stored in replay, over all sessions of the run.
        session_env_steps: of these, in this session.
        updates: gradient steps, over all sessions.
        session_updates: of these, in this session.
        pushes: policies published in this session.
        train_s: first push (before the first environment step) to the last update, everything included.
        prepare_ms_p50: variables read to signed bytes, median over this session's pushes.
        push_ms_p50: variables read to ready for an actor's next step, median over actors; `None` when none told.
        actor_act_us_p50: median inference latency told by actors; `None` when none told.
        best: best judged policy, `None` before the first judgement.
        devices: highest number of actors online at once.
        samples_per_insert: actual ratio over this session.
        audited: pushes compared with a real conversion.
        audit_failures: of these, how many differed.
    """

    reason: StopReason
    env_steps: int
    session_env_steps: int
    updates: int
    session_updates: int
    pushes: int
    train_s: float
    prepare_ms_p50: float
    push_ms_p50: float | None
    actor_act_us_p50: float | None
    best: Judged | None
    devices: int
    samples_per_insert: float
    audited: int
    audit_failures: int = 0
    refused: dict[int, int] = field(default_factory=dict)
