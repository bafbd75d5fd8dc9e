"""What a start makes of what it finds: slots first, and notes only for what no slot can say. No IO.

The name of a file says how far it had come, so a start after a kill needs no notes to be safe: what lay in the
self-test or on probation when its process died is suspected of it. Notes, where they can be read, say whether the last
process ended cleanly, and how many starts in a row did not. Where they cannot, nothing ended cleanly.

Crashes are counted by starts in a row that did not live long, never by the time between them: a board without a
battery-backed clock starts in 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quarl_device.deploy.machine import Decision, Deployment, Do, Fault, Phase, Rules

SOUND, PREVIOUS_ONLY, NOTHING = range(3)
"""How far a crash loop has been fallen back: not at all, to the previous policy, to the safe action."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lies on the disk at a start.

    Attributes:
        current: digest of the policy in the slot, verified and self-tested; "" for none that holds.
        previous: likewise.
        trial: digest of the one on probation, likewise.
        trial_there: whether a file lies there, whatever is in it.
        testing_there: whether one lies where candidates are looked at.
        clean: whether the last process ended by itself.
        starts: starts in a row before this one that did not end cleanly and were short.
        level: how far earlier crash loops have been fallen back.
        fault: the last one that is noted.
    """

    current: str = ""
    previous: str = ""
    trial: str = ""
    trial_there: bool = False
    testing_there: bool = False
    clean: bool = False
    starts: int = 0
    level: int = SOUND
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class Booted:
    """Where a start begins.

    Attributes:
        state: of the machine.
        decisions: to carry out first.
        starts: to note for the next start, with this one.
        level: likewise.
    """

    state: Deployment
    decisions: tuple[Decision, ...]
    starts: int
    level: int


def boot(found: Found, rules: Rules, *, now_s: float) -> Booted:
    """Return where the machine begins.

    Args:
        found: see `Found`.
        rules: see `Rules`.
        now_s: monotonic time.
    """
    starts, decisions, fault = 0 if found.clean else found.starts, [], found.fault
    if found.testing_there and not found.clean:
        fault = Fault(code=55, message="the agent died while it looked at a new policy")
    if found.testing_there:
        decisions.append(Decision(do=Do.REFUSE))
    good, parked, level = _good(found, starts, rules)
    if level != found.level:
        starts = 0
        fault = Fault(code=55, message=f"crash loop: {found.starts} starts in a row died", digest=found.current)
    if found.trial and (found.clean or (not good and starts < rules.max_starts)):
        state = _begun(good, now_s, acting=found.trial, parked=parked, fault=fault)
        state = replace(state, phase=Phase.PROBATION, candidate=found.trial)
    else:
        if found.trial_there:
            # It explains the crashes before this start: what acts from here on is not suspected for them.
            starts = 0
            # What the process noted of its own death, a hang, says more.
            if fault is None or not found.trial or fault.digest != found.trial:
                message = "the agent died while this policy was on probation"
                fault = Fault(code=55, message=message, digest=found.trial)
            decisions.append(Decision(do=Do.REJECT, digest=found.trial))
        state = _begun(good, now_s, acting=good[0] if good else "", parked=parked, fault=fault)
    decisions.append(Decision(do=Do.ACT, digest=state.acting))
    return Booted(state=state, decisions=tuple(decisions), starts=starts + 1, level=level)


def _good(found: Found, starts: int, rules: Rules) -> tuple[tuple[str, ...], bool, int]:
    """Return the policies that may act, best first, whether current is not trusted, and the level."""
    slots = tuple(dict.fromkeys(digest for digest in (found.current, found.previous) if digest))
    level = found.level
    # While a policy is on probation the crashes are its own.
    if not found.trial_there and starts >= rules.max_starts:
        level = min(level + 1, NOTHING)
    if level == NOTHING and rules.has_safe_action:
        return (), False, level
    if level and len(slots) > 1:
        return slots[1:], True, level
    return slots, False, level


def _begun(good: tuple[str, ...], now_s: float, *, acting: str, parked: bool, fault: Fault | None) -> Deployment:
    state = Deployment(
        phase=Phase.EMPTY, since_s=now_s, acting=acting, good=good, parked=parked, distrusted=parked, fault=fault
    )
    return replace(state, phase=state.rest)
