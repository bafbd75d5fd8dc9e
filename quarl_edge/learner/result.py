"""What a training run ends with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from quarl_edge.learner.edge_tpu_counters import EdgeTpuCounters
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
        pushes_held_back: policies whose int8 ranges did not fit the network yet.
        train_s: first push (before the first environment step) to the last update, everything included.
        actor_steps_per_s: environment steps of this session up to its last update, over `train_s`.
        prepare_ms_p50: variables read to signed bytes, median over this session's pushes; `None` without any.
        push_ms_p50: variables read to ready for an actor's next step, median over the actors of this machine, which
            share its clock; `None` when none told.
        actor_act_us_p50: median inference latency told by the same actors; `None` when none told.
        best: best judged policy of the run, `None` before the first judgement.
        judgements: policies judged in this session, all on the same start seeds.
        last_return_mean: of the last of them, `None` without any.
        resumable: whether the run has a checkpoint.
        devices: highest number of actors online at once.
        samples_per_insert: actual ratio over this session.
        audited: pushes compared with a real conversion.
        audit_failures: of these, how many differed.
        conversion_reason: why pushes were converted, a second or more each; "" where they were patched.
        ingest_refused: blocks that did not hold, by error code.
        edge_tpu: what became of pushes that were to be compiled for the Edge TPU, `None` where none were.
    """

    reason: StopReason
    env_steps: int
    session_env_steps: int
    updates: int
    session_updates: int
    pushes: int
    pushes_held_back: int = 0
    train_s: float
    actor_steps_per_s: float = 0.0
    prepare_ms_p50: float | None
    push_ms_p50: float | None
    actor_act_us_p50: float | None
    best: Judged | None
    judgements: int = 0
    last_return_mean: float | None = None
    resumable: bool = True
    devices: int
    samples_per_insert: float
    audited: int
    audit_failures: int = 0
    conversion_reason: str = ""
    ingest_refused: dict[str, int] = field(default_factory=dict)
    edge_tpu: EdgeTpuCounters | None = None


def nothing_happened(*, env_steps: int, updates: int, best: Judged | None, resumable: bool) -> TrainResult:
    """Return the result of a session that was asked to stop before it began.

    Args:
        env_steps: of the run so far.
        updates: of the run so far.
        best: of the run so far.
        resumable: whether the run has a checkpoint.
    """
    return TrainResult(
        reason=StopReason.INTERRUPTED,
        env_steps=env_steps,
        session_env_steps=0,
        updates=updates,
        session_updates=0,
        pushes=0,
        train_s=0.0,
        prepare_ms_p50=None,
        push_ms_p50=None,
        actor_act_us_p50=None,
        best=best,
        resumable=resumable,
        devices=0,
        samples_per_insert=0.0,
        audited=0,
    )
