"""The state machine as a table: every event in every phase, and what must hold whatever happens."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.deploy.boot import NOTHING, PREVIOUS_ONLY, SOUND, Found, boot
from quarl_device.deploy.machine import _TABLE, Deployment, Do, Event, Fault, Kind, Phase, Rules, handle

A, B, C = "a" * 64, "b" * 64, "c" * 64
RULES = Rules(work_s=30.0, boundary_s=60.0, max_starts=3, has_safe_action=True)
FAULT = Fault(code=12, message="it is sick", digest=C)


def state(phase, **changes):
    """A board on A with B behind it, and C as the candidate where there is one."""
    fields = {
        Phase.EMPTY: {"acting": "", "good": ()},
        Phase.PROBATION: {"acting": C},
        Phase.SETTLING: {"acting": C},
        Phase.PARKED: {"acting": B, "good": (B,), "parked": True},
    }.get(phase, {})
    candidate = "" if phase in (Phase.EMPTY, Phase.SETTLED, Phase.PARKED, Phase.VERIFYING) else C
    base = {"acting": A, "good": (A, B), "candidate": candidate, "ticket": 7, **fields, **changes}
    return Deployment(phase=phase, since_s=100.0, **base)


def event(kind, now_s=101.0, **more):
    fault = FAULT if kind in (Kind.REFUSED, Kind.FAILED, Kind.NOT_STORED) else None
    return Event(kind=kind, now_s=now_s, digest=C if kind is Kind.HOLDS else "", fault=fault, **more)


# (phase, event) -> (phase after, who acts after, what is done). What is not named here changes nothing at all.
WANTED = {
    (Phase.EMPTY, Kind.OFFERED): (Phase.VERIFYING, "", [Do.VERIFY]),
    (Phase.VERIFYING, Kind.HOLDS): (Phase.TESTING, A, [Do.TEST]),
    (Phase.VERIFYING, Kind.REFUSED): (Phase.SETTLED, A, [Do.REFUSE]),
    (Phase.VERIFYING, Kind.FAILED): (Phase.VERIFYING, B, [Do.ACT, Do.DROP]),
    (Phase.VERIFYING, Kind.PASSED): (Phase.VERIFYING, A, [Do.CALM]),
    (Phase.TESTING, Kind.READY): (Phase.WAITING, A, []),
    (Phase.TESTING, Kind.REFUSED): (Phase.SETTLED, A, [Do.REFUSE]),
    (Phase.TESTING, Kind.FAILED): (Phase.TESTING, B, [Do.ACT, Do.DROP]),
    (Phase.TESTING, Kind.PASSED): (Phase.TESTING, A, [Do.CALM]),
    (Phase.WAITING, Kind.OFFERED): (Phase.VERIFYING, A, [Do.REFUSE, Do.VERIFY]),
    (Phase.WAITING, Kind.BOUNDARY): (Phase.PROBATION, C, [Do.BEGIN, Do.ACT]),
    (Phase.WAITING, Kind.FAILED): (Phase.WAITING, B, [Do.ACT, Do.DROP]),
    (Phase.WAITING, Kind.PASSED): (Phase.WAITING, A, [Do.CALM]),
    (Phase.PROBATION, Kind.PASSED): (Phase.SETTLING, C, [Do.COMMIT]),
    (Phase.PROBATION, Kind.FAILED): (Phase.SETTLED, A, [Do.ACT, Do.REJECT]),
    (Phase.PROBATION, Kind.NOT_STORED): (Phase.SETTLED, A, [Do.ACT, Do.REJECT]),
    (Phase.SETTLING, Kind.STORED): (Phase.SETTLED, C, [Do.ACT, Do.CALM]),
    (Phase.SETTLING, Kind.NOT_STORED): (Phase.PROBATION, C, [Do.ACT]),
    (Phase.SETTLING, Kind.FAILED): (Phase.SETTLED, A, [Do.ACT, Do.REJECT]),
    (Phase.SETTLED, Kind.OFFERED): (Phase.VERIFYING, A, [Do.VERIFY]),
    (Phase.SETTLED, Kind.FAILED): (Phase.PARKED, B, [Do.ACT, Do.DROP]),
    (Phase.SETTLED, Kind.PASSED): (Phase.SETTLED, A, [Do.CALM]),
    (Phase.PARKED, Kind.OFFERED): (Phase.VERIFYING, B, [Do.VERIFY]),
    (Phase.PARKED, Kind.FAILED): (Phase.EMPTY, "", [Do.ACT, Do.DROP]),
    (Phase.PARKED, Kind.PASSED): (Phase.PARKED, B, [Do.CALM]),
}


def test_every_phase_has_a_rule_for_every_event():
    assert set(_TABLE) == set(Phase)
    assert all(set(row) == set(Kind) for row in _TABLE.values())


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", Kind)
def test_every_pair(phase, kind):
    before = state(phase)
    after, decisions = handle(before, event(kind), RULES)
    wanted = WANTED.get((phase, kind), (phase, before.acting, []))
    assert (after.phase, after.acting, [decision.do for decision in decisions]) == wanted
    if (phase, kind) not in WANTED:
        assert after == before


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", Kind)
def test_an_answer_that_comes_too_late_changes_nothing(phase, kind):
    assert handle(state(phase), event(kind, ticket=6), RULES) == (state(phase), ())


@pytest.mark.parametrize(
    ("phase", "limit_s", "after", "does"),
    [
        (Phase.VERIFYING, 30.0, Phase.SETTLED, [Do.ABANDON, Do.REFUSE]),
        (Phase.TESTING, 30.0, Phase.SETTLED, [Do.ABANDON, Do.REFUSE]),
        (Phase.WAITING, 60.0, Phase.PROBATION, [Do.BEGIN, Do.ACT]),
        (Phase.SETTLING, 30.0, Phase.PROBATION, [Do.ABANDON, Do.ACT]),
    ],
)
def test_nothing_lasts_for_ever(phase, limit_s, after, does):
    early, decisions = handle(state(phase), event(Kind.TICK, 100.0 + limit_s - 0.1), RULES)
    assert (early.phase, decisions) == (phase, ())
    late, decisions = handle(state(phase), event(Kind.TICK, 100.0 + limit_s), RULES)
    assert (late.phase, [decision.do for decision in decisions]) == (after, does)
    if phase is not Phase.WAITING:
        assert late.fault.code in (50, 55)
        # The answer of what hung bears an old ticket by now.
        answer = Kind.STORED if phase is Phase.SETTLING else Kind.READY
        assert handle(late, event(answer, ticket=7), RULES) == (late, ())


def test_what_was_current_becomes_previous():
    after, _ = handle(state(Phase.SETTLING), event(Kind.STORED), RULES)
    assert after.good == (C, A)


def test_a_policy_that_is_not_trusted_is_not_kept_as_the_previous_one():
    before = state(Phase.PROBATION, good=(B,), parked=True, distrusted=True)
    after, decisions = handle(before, event(Kind.PASSED), RULES)
    assert [decision.do for decision in decisions] == [Do.COMMIT_OVER]
    after, _ = handle(after, event(Kind.STORED), RULES)
    assert (after.good, after.phase, after.distrusted) == ((C, B), Phase.SETTLED, False)


def test_where_nothing_acts_nobody_is_waited_for():
    before = state(Phase.TESTING, acting="", good=())
    after, _ = handle(before, event(Kind.READY), RULES)
    assert (after.phase, after.acting) == (Phase.PROBATION, C)


def test_a_candidate_that_waits_begins_at_once_where_nothing_good_is_left():
    after, decisions = handle(state(Phase.WAITING, good=(A,)), event(Kind.FAILED), RULES)
    assert (after.phase, after.acting, after.good, after.parked) == (Phase.PROBATION, C, (), False)
    assert [(each.do, each.digest) for each in decisions] == [(Do.BEGIN, C), (Do.ACT, C), (Do.DROP, A)]
    assert decisions[0].ticket == after.ticket == 8
    assert after.fault == FAULT


def test_the_last_fault_stays_until_there_is_another():
    after, _ = handle(state(Phase.PROBATION), event(Kind.FAILED), RULES)
    assert after.fault == FAULT
    for kind in (Kind.OFFERED, Kind.TICK, Kind.PASSED):
        after, _ = handle(after, event(kind), RULES)
    assert after.fault == FAULT


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(Kind), st.floats(0, 90), st.booleans()), max_size=60))
def test_whatever_happens_a_tested_policy_acts_or_the_safe_action(happenings):
    """Walk at random: only a policy that was READY, or was good before, ever acts, and rest is what it says."""
    now_s, current, tested = 100.0, state(Phase.SETTLED), {A, B}
    for kind, later_s, answers in happenings:
        now_s += later_s
        before = current
        ticket = current.ticket if answers else 0
        current, decisions = handle(current, event(kind, now_s, ticket=ticket), RULES)
        if before.phase is Phase.TESTING and kind is Kind.READY:
            tested.add(C)
        assert current.acting == "" or current.acting in tested
        assert (current.acting == "") == (not current.good) or current.phase in (Phase.PROBATION, Phase.SETTLING)
        if current.phase in (Phase.PROBATION, Phase.SETTLING):
            assert current.acting == current.candidate
        elif current.good:
            assert current.acting == current.good[0]
        acts = [decision.digest for decision in decisions if decision.do is Do.ACT]
        assert acts == ([current.acting] if current.acting != before.acting or acts else [])
        assert len(current.good) <= 2
        assert current.ticket >= before.ticket


FOUND = Found(current=A, previous=B, clean=True)


@pytest.mark.parametrize(
    ("changes", "phase", "acting", "does", "starts", "level"),
    [
        ({}, Phase.SETTLED, A, [Do.ACT], 1, SOUND),
        ({"current": "", "previous": ""}, Phase.EMPTY, "", [Do.ACT], 1, SOUND),
        ({"current": ""}, Phase.SETTLED, B, [Do.ACT], 1, SOUND),
        ({"clean": False, "starts": 2}, Phase.SETTLED, A, [Do.ACT], 3, SOUND),
        ({"clean": True, "starts": 9}, Phase.SETTLED, A, [Do.ACT], 1, SOUND),
        ({"clean": False, "starts": 3}, Phase.PARKED, B, [Do.ACT], 1, PREVIOUS_ONLY),
        ({"clean": False, "starts": 3, "previous": ""}, Phase.SETTLED, A, [Do.ACT], 1, PREVIOUS_ONLY),
        ({"clean": False, "starts": 3, "level": 1}, Phase.EMPTY, "", [Do.ACT], 1, NOTHING),
        ({"level": 1}, Phase.PARKED, B, [Do.ACT], 1, PREVIOUS_ONLY),
        ({"testing_there": True}, Phase.SETTLED, A, [Do.REFUSE, Do.ACT], 1, SOUND),
        ({"testing_there": True, "clean": False}, Phase.SETTLED, A, [Do.REFUSE, Do.ACT], 1, SOUND),
        ({"trial": C, "trial_there": True}, Phase.PROBATION, C, [Do.ACT], 1, SOUND),
        ({"trial": C, "trial_there": True, "clean": False}, Phase.SETTLED, A, [Do.REJECT, Do.ACT], 1, SOUND),
        ({"trial": "", "trial_there": True}, Phase.SETTLED, A, [Do.REJECT, Do.ACT], 1, SOUND),
        # Its own crashes are not laid to what acts after it.
        ({"trial": C, "trial_there": True, "clean": False, "starts": 9}, Phase.SETTLED, A, [Do.REJECT, Do.ACT], 1, 0),
        (
            {"trial": C, "trial_there": True, "clean": False, "starts": 2, "current": "", "previous": ""},
            Phase.PROBATION, C, [Do.ACT], 3, SOUND,
        ),
        (
            {"trial": C, "trial_there": True, "clean": False, "starts": 3, "current": "", "previous": ""},
            Phase.EMPTY, "", [Do.REJECT, Do.ACT], 1, SOUND,
        ),
    ],
)  # fmt: skip
def test_what_a_start_makes_of_what_it_finds(changes, phase, acting, does, starts, level):
    booted = boot(dataclasses.replace(FOUND, **changes), RULES, now_s=5.0)
    assert (booted.state.phase, booted.state.acting) == (phase, acting)
    assert [decision.do for decision in booted.decisions] == does
    assert (booted.starts, booted.level) == (starts, level)


def test_what_a_process_noted_of_its_own_death_is_not_written_over():
    hang = Fault(code=55, message="an action has not ended after 5 s", digest=C)
    died = dataclasses.replace(FOUND, trial=C, trial_there=True, clean=False, fault=hang)
    assert boot(died, RULES, now_s=0.0).state.fault == hang
    other = dataclasses.replace(died, fault=dataclasses.replace(hang, digest=A))
    assert "on probation" in boot(other, RULES, now_s=0.0).state.fault.message


def test_without_a_safe_action_a_crash_loop_never_ends_in_nothing():
    rules = dataclasses.replace(RULES, has_safe_action=False)
    found = dataclasses.replace(FOUND, clean=False, starts=3, level=1)
    assert boot(found, rules, now_s=0.0).state.acting == B
    assert boot(dataclasses.replace(found, previous=""), rules, now_s=0.0).state.acting == A


@settings(deadline=None)
@given(
    st.builds(
        Found,
        current=st.sampled_from(["", A]), previous=st.sampled_from(["", B]), trial=st.sampled_from(["", C]),
        trial_there=st.booleans(), testing_there=st.booleans(), clean=st.booleans(), starts=st.integers(0, 9),
        level=st.integers(0, 2),
    ),
    st.booleans(),
)  # fmt: skip
def test_a_start_acts_with_what_holds_or_not_at_all(found, safe):
    rules = dataclasses.replace(RULES, has_safe_action=safe)
    found = dataclasses.replace(found, trial_there=found.trial_there or bool(found.trial))
    booted = boot(found, rules, now_s=0.0)
    assert booted.state.acting in {"", found.current, found.previous, found.trial}
    assert booted.decisions[-1].do is Do.ACT
    assert booted.decisions[-1].digest == booted.state.acting
    if not safe and (found.current or found.previous):
        assert booted.state.acting
