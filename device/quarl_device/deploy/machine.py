"""The state machine of deploy mode: events in, decisions out. No IO, no clock, no policy: all of it is plain data.

::

    empty ──▶ verifying ──▶ testing ──▶ waiting ──▶ probation ──▶ settling ──▶ settled
      ▲           └────────────┴───────────┴─────────────┴── refused: back to what acted before
      └── nothing good is left: the safe action                       parked: on the last good one

What acts stays in charge until a candidate begins its probation, which it does between two episodes, or when no episode
has ended in time. A failure ends on the best policy that is left and has passed its self-test.

Policies are named by the digest of their signed file. `_TABLE` has a row for every phase and a rule for every event,
and a test walks through all of them. Whoever drives the machine gives it one event at a time and carries out the
decisions in order; work that takes time is told in a later event, with the ticket of the decision, so that what comes
too late (a test that hung and ended after all) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """Where a deployment stands."""

    EMPTY = "empty"
    """Nothing good to act with: the safe action."""
    VERIFYING = "verifying"
    """A candidate's signature, digest, version and contract are looked at."""
    TESTING = "testing"
    """It runs its golden vectors."""
    WAITING = "waiting"
    """It is ready, and waits for an episode to end."""
    PROBATION = "probation"
    """It acts, watched."""
    SETTLING = "settling"
    """It has passed; its slot is being written."""
    SETTLED = "settled"
    """The current policy acts."""
    PARKED = "parked"
    """The last good policy acts, since the current one failed or crashed too often."""


class Kind(StrEnum):
    """What can happen."""

    OFFERED = "offered"
    """A file lies there to be taken."""
    HOLDS = "holds"
    """The candidate is what the learner signed, new enough, for these spaces."""
    READY = "ready"
    """It has passed its self-test, and can act."""
    REFUSED = "refused"
    """It did not hold, or failed its self-test."""
    BOUNDARY = "boundary"
    """An episode has ended."""
    TICK = "tick"
    """Time has passed."""
    PASSED = "passed"
    """What acts has done well for long enough."""
    FAILED = "failed"
    """What acts has failed: NaN, too slow, out of bounds."""
    STORED = "stored"
    """The slot is written."""
    NOT_STORED = "not stored"
    """The disk refused."""


class Do(StrEnum):
    """What is to be done."""

    VERIFY = "verify"
    """Take what was offered and look at it; answer HOLDS or REFUSED."""
    TEST = "test"
    """Load it and run its self-test; answer READY or REFUSED."""
    ABANDON = "abandon"
    """Work under way has hung: give it up."""
    REFUSE = "refuse"
    """Put the candidate out of the way."""
    BEGIN = "begin"
    """Mark the candidate on the disk as the one on probation; answer NOT_STORED if that fails, else nothing."""
    REJECT = "reject"
    """Put the policy on probation out of the way."""
    COMMIT = "commit"
    """It becomes current, and the current one previous; answer STORED or NOT_STORED."""
    COMMIT_OVER = "commit over"
    """It becomes current in the place of one that is not trusted; previous stays. Answer as COMMIT."""
    DROP = "drop"
    """Take the slot of a policy that failed away from it; the previous one becomes current."""
    ACT = "act"
    """Let this policy act, "" for the safe action."""
    CALM = "calm"
    """Starts so far are forgotten: this one did well."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What went wrong.

    Attributes:
        code: exit code of its kind, see `quarl_device.errors`.
        message: on one line.
        digest: of the policy that it is about, "" for none.
    """

    code: int
    message: str
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something has happened.

    Attributes:
        kind: what.
        now_s: monotonic time.
        ticket: of the decision that this answers; 0 where it answers none.
        digest: of the file that VERIFY found, with HOLDS.
        fault: with REFUSED, FAILED and NOT_STORED.
    """

    kind: Kind
    now_s: float
    ticket: int = 0
    digest: str = ""
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Something is to be done.

    Attributes:
        do: what.
        digest: with which policy; "" for the safe action, or where it is not known yet.
        ticket: for the answer.
    """

    do: Do
    digest: str = ""
    ticket: int = 0


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Deadlines and bounds.

    Attributes:
        work_s: how long verifying, testing or writing a slot may take.
        boundary_s: how long a policy that is ready waits for an episode to end.
        max_starts: so many starts that ended in a crash, none of which lived long, are a crash loop.
        has_safe_action: whether there is one.
    """

    work_s: float = 30.0
    boundary_s: float = 60.0
    max_starts: int = 5
    has_safe_action: bool = False


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The machine's whole memory.

    Attributes:
        phase: see `Phase`.
        since_s: monotonic time at which it began.
        acting: digest of what acts, "" for the safe action.
        good: digests of the policies in the slots that have passed their self-test in this process, best first; one
            on probation is none of them.
        candidate: digest of what is looked at, waits or is on probation, "" where it is not known.
        parked: whether the best of `good` is not what was current.
        distrusted: whether the slot `current` holds a policy that is not trusted, since it crashed too often.
        ticket: of the last decision.
        fault: the last one.
    """

    phase: Phase
    since_s: float
    acting: str = ""
    good: tuple[str, ...] = ()
    candidate: str = ""
    parked: bool = False
    distrusted: bool = False
    ticket: int = 0
    fault: Fault | None = None

    @property
    def rest(self) -> Phase:
        """The phase without a candidate."""
        if not self.good:
            return Phase.EMPTY
        return Phase.PARKED if self.parked else Phase.SETTLED


Step = tuple[Deployment, tuple[Decision, ...]]
_Rule = Callable[[Deployment, Event, Rules], Step]


def handle(state: Deployment, event: Event, rules: Rules) -> Step:
    """Return what the machine is after an event, and what is to be done.

    Args:
        state: before it.
        event: what happened. An answer to another ticket than the last one is ignored.
        rules: see `Rules`.
    """
    if event.ticket and event.ticket != state.ticket:
        return state, ()
    return _TABLE[state.phase][event.kind](state, event, rules)


def _stay(state: Deployment, event: Event, rules: Rules) -> Step:
    del event, rules
    return state, ()


def _verify(state: Deployment, event: Event, rules: Rules) -> Step:
    del rules
    return _work(state, Phase.VERIFYING, Do.VERIFY, event, candidate="")


def _replace(state: Deployment, event: Event, rules: Rules) -> Step:
    """A newer file takes the place of one that waits."""
    after, decisions = _verify(state, event, rules)
    return after, (Decision(do=Do.REFUSE, digest=state.candidate), *decisions)


def _test(state: Deployment, event: Event, rules: Rules) -> Step:
    del rules
    return _work(state, Phase.TESTING, Do.TEST, event, candidate=event.digest)


def _wait(state: Deployment, event: Event, rules: Rules) -> Step:
    if not state.acting:  # nobody's episode is interrupted
        return _begin(state, event, rules)
    return replace(state, phase=Phase.WAITING, since_s=event.now_s), ()


def _wait_no_longer(state: Deployment, event: Event, rules: Rules) -> Step:
    if event.now_s - state.since_s < rules.boundary_s:
        return state, ()
    return _begin(state, event, rules)


def _begin(state: Deployment, event: Event, rules: Rules) -> Step:
    del rules
    ticket, digest = state.ticket + 1, state.candidate
    after = replace(state, phase=Phase.PROBATION, since_s=event.now_s, acting=digest, ticket=ticket)
    return after, (Decision(do=Do.BEGIN, digest=digest, ticket=ticket), Decision(do=Do.ACT, digest=digest))


def _refuse(state: Deployment, event: Event, rules: Rules) -> Step:
    del rules
    # The ticket moves on, so that the answer of work that hung comes too late.
    after = _resting(state, event, fault=event.fault)
    return replace(after, ticket=state.ticket + 1), (Decision(do=Do.REFUSE, digest=state.candidate),)


def _expire(state: Deployment, event: Event, rules: Rules) -> Step:
    if event.now_s - state.since_s < rules.work_s:
        return state, ()
    hung = Fault(code=55, message=f"{state.phase} has not ended after {rules.work_s:g} s", digest=state.candidate)
    after, decisions = _refuse(state, replace(event, fault=hung), rules)
    return after, (Decision(do=Do.ABANDON), *decisions)


def _reject(state: Deployment, event: Event, rules: Rules) -> Step:
    """The policy on probation has failed: what acted before acts again."""
    del rules
    after = replace(_resting(state, event, fault=event.fault), acting=_first(state.good), ticket=state.ticket + 1)
    return after, (Decision(do=Do.ACT, digest=after.acting), Decision(do=Do.REJECT, digest=state.candidate))


def _settle(state: Deployment, event: Event, rules: Rules) -> Step:
    del rules
    do = Do.COMMIT_OVER if state.distrusted else Do.COMMIT
    return _work(state, Phase.SETTLING, do, event, candidate=state.candidate)


def _settled(state: Deployment, event: Event, rules: Rules) -> Step:
    del rules
    good = (state.candidate, *state.good[:1])
    after = replace(state, good=good, parked=False, distrusted=False)
    # Acting once more, it is no longer watched as one on probation.
    return _resting(after, event), (Decision(do=Do.ACT, digest=state.candidate), Decision(do=Do.CALM))


def _not_settled(state: Deployment, event: Event, rules: Rules) -> Step:
    """The disk refused: the policy goes on, as one on probation, and another probation ends in another try."""
    del rules
    after = replace(state, phase=Phase.PROBATION, since_s=event.now_s, ticket=state.ticket + 1)
    # Acting once more begins a probation that counts anew.
    return replace(after, fault=event.fault or state.fault), (Decision(do=Do.ACT, digest=state.acting),)


def _not_settled_in_time(state: Deployment, event: Event, rules: Rules) -> Step:
    if event.now_s - state.since_s < rules.work_s:
        return state, ()
    hung = Fault(code=50, message=f"the disk has not written a slot within {rules.work_s:g} s", digest=state.candidate)
    after, decisions = _not_settled(state, replace(event, fault=hung), rules)
    return after, (Decision(do=Do.ABANDON), *decisions)


def _fail_settling(state: Deployment, event: Event, rules: Rules) -> Step:
    """It fails while it becomes current. What is on the disk then is known when both are done: REJECT sees to both."""
    return _reject(state, event, rules)


def _fall(state: Deployment, event: Event, rules: Rules) -> Step:
    """What acts for good has failed: the next one acts, or nobody. A candidate's way goes on.

    One that waits for an episode to end waits no longer where nothing good is left that could act until then.
    """
    good = state.good[1:]
    resting = state.phase == state.rest
    after = replace(state, good=good, acting=_first(good), parked=bool(good), fault=event.fault or state.fault)
    if resting:
        after = replace(after, phase=after.rest, since_s=event.now_s)
    if not state.good:
        return after, ()
    drop = Decision(do=Do.DROP, digest=state.good[0])
    if state.phase is Phase.WAITING and not good:
        begun, decisions = _begin(after, event, rules)
        return begun, (*decisions, drop)
    return after, (Decision(do=Do.ACT, digest=after.acting), drop)


def _calm(state: Deployment, event: Event, rules: Rules) -> Step:
    del event, rules
    return state, (Decision(do=Do.CALM),)


def _work(state: Deployment, phase: Phase, do: Do, event: Event, *, candidate: str) -> Step:
    ticket = state.ticket + 1
    after = replace(state, phase=phase, since_s=event.now_s, candidate=candidate, ticket=ticket)
    return after, (Decision(do=do, digest=candidate, ticket=ticket),)


def _resting(state: Deployment, event: Event, *, fault: Fault | None = None) -> Deployment:
    return replace(state, phase=state.rest, since_s=event.now_s, candidate="", fault=fault or state.fault)


def _first(good: tuple[str, ...]) -> str:
    return good[0] if good else ""


def _row(**rules: _Rule) -> dict[Kind, _Rule]:
    """Return a whole row: an event that no rule is given for changes nothing."""
    return {kind: rules.get(kind.name, _stay) for kind in Kind}


_TABLE: dict[Phase, dict[Kind, _Rule]] = {
    # A file that is offered while another one is looked at or on probation stays where it lies until that is over.
    Phase.EMPTY: _row(OFFERED=_verify),
    Phase.VERIFYING: _row(HOLDS=_test, REFUSED=_refuse, TICK=_expire, FAILED=_fall, PASSED=_calm),
    Phase.TESTING: _row(READY=_wait, REFUSED=_refuse, TICK=_expire, FAILED=_fall, PASSED=_calm),
    Phase.WAITING: _row(OFFERED=_replace, BOUNDARY=_begin, TICK=_wait_no_longer, FAILED=_fall, PASSED=_calm),
    Phase.PROBATION: _row(PASSED=_settle, FAILED=_reject, NOT_STORED=_reject),
    Phase.SETTLING: _row(STORED=_settled, NOT_STORED=_not_settled, FAILED=_fail_settling, TICK=_not_settled_in_time),
    Phase.SETTLED: _row(OFFERED=_verify, FAILED=_fall, PASSED=_calm),
    Phase.PARKED: _row(OFFERED=_verify, FAILED=_fall, PASSED=_calm),
}
