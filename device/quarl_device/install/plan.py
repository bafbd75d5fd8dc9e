"""What is to be done, and why: a pure function of what is wanted and what was found."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_device.install import layout
from quarl_device.install.facts import Facts
from quarl_device.install.found import Found
from quarl_device.install.wanted import Wanted

_SYSTEM_FILES = (layout.UDEV_RULE, layout.UNIT)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        name: user, release, stop, config, coral, unit, switch, policy, start or tidy.
        needed: whether there is anything to do.
        why: what is to be done, or why nothing is.
    """

    name: str
    needed: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps, in their order."""

    steps: tuple[Step, ...]

    def needs(self, *names: str) -> bool:
        """Return whether one of these steps is needed."""
        return any(step.needed for step in self.steps if step.name in names)

    def why(self, name: str) -> str:
        """Return what a step is for; "" for one that is not in this plan."""
        return next((step.why for step in self.steps if step.name == name), "")


def make_plan(facts: Facts, wanted: Wanted, found: Found) -> Plan:
    """Return the plan."""
    config = tuple(path for path in (*found.changed, *found.surplus) if path not in _SYSTEM_FILES)
    coral = layout.UDEV_RULE in (*found.changed, *found.surplus)
    unit = layout.UNIT in found.changed
    switch = found.current != wanted.release
    restart = bool(config) or unit or switch
    steps = [
        _user(wanted, found),
        _step(
            "release", not found.complete, f"make {layout.release_path(wanted.release)}", f"{wanted.release} is there"
        ),
        _step("config", bool(config), f"write {_listed(config)}", f"{layout.CONFIG} is as it should be"),
        _step("coral", coral, _coral_why(found), _coral_as_it_is(wanted)),
    ]
    if facts.systemd:
        steps.append(_step("unit", unit, f"write {layout.UNIT}", f"{layout.SERVICE} is as it should be"))
        steps.insert(2, _step("stop", restart and found.active, "the agent is started anew", "nothing to stop"))
    steps.append(_step("switch", switch, _switch_why(wanted, found), f"{wanted.release} is current"))
    if wanted.policy_digest:
        steps.append(_step("policy", not found.policy, "hand over policy.qpol", "the agent has this policy"))
    if facts.systemd:
        starts = restart or not found.active or not found.enabled
        steps.append(_step("start", starts, f"start {layout.SERVICE}, wait until it is ready", "the agent runs"))
    # After any change there is at least the copy of what was before.
    tidy = bool(found.stale) or any(step.needed for step in steps)
    steps.append(_step("tidy", tidy, "remove what is neither current nor previous", "nothing to remove"))
    return Plan(steps=tuple(steps))


def _step(name: str, needed: bool, why: str, why_not: str) -> Step:
    return Step(name=name, needed=needed, why=why if needed else why_not)


def _user(wanted: Wanted, found: Found) -> Step:
    missing = [f"user {wanted.owner}"] * (not found.user) + [layout.STATE] * (not found.state)
    there = f"user {wanted.owner} and {layout.STATE} are there" if wanted.owner else f"{layout.STATE} is there"
    return _step("user", bool(missing), f"make {' and '.join(missing)}", there)


def _switch_why(wanted: Wanted, found: Found) -> str:
    before = f" (it is {found.current})" if found.current else ""
    return f"point {layout.CURRENT} at {wanted.release}{before}"


def _coral_why(found: Found) -> str:
    return f"{'remove' if layout.UDEV_RULE in found.surplus else 'write'} {layout.UDEV_RULE}"


def _coral_as_it_is(wanted: Wanted) -> str:
    return "no Edge TPU is asked for" if layout.UDEV_RULE in wanted.absent else "the rule for an Edge TPU is there"


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(
        sorted({path if not path.startswith(f"{layout.CREDENTIALS}/") else layout.CREDENTIALS for path in paths})
    )
