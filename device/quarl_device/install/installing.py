"""The order of things: look, plan, do; and undo."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from quarl_device.errors import InstallFailed, QuarlError
from quarl_device.install import doing, layout, service, switch
from quarl_device.install.bundle import Bundle, read_bundle
from quarl_device.install.checks import check_board, check_rights
from quarl_device.install.doing import Work
from quarl_device.install.facts import Facts
from quarl_device.install.found import linked_release, look
from quarl_device.install.host import Host
from quarl_device.install.interruption import undisturbed
from quarl_device.install.plan import Plan, make_plan
from quarl_device.install.report import Result, Tell
from quarl_device.install.unit import MIN_START_S
from quarl_device.install.wanted import Order, make_wanted

_BEFORE = ("user", "release")
_SWITCHED = ("stop", "config", "coral", "unit", "switch", "policy", "start")
_AFTER = ("tidy",)
_START_AGAIN_S = float(MIN_START_S)
T = TypeVar("T")


class StepFailed(Exception):
    """Which step an error comes from.

    Args:
        step: its name.
        cause: the error.
    """

    def __init__(self, step: str, cause: QuarlError) -> None:
        super().__init__(step)
        self.step = step
        self.cause = cause


def install(folder: Path, host: Host, facts: Facts, order: Order, *, dry_run: bool, tell: Tell) -> Result:
    """Put the agent of a bundle onto a board, or say what would be done.

    Whatever fails, or interrupts, after something was switched: what was there before is put back.

    Args:
        folder: of the bundle.
        host: the board.
        facts: of the board.
        order: what was asked for.
        dry_run: change nothing.
        tell: is told of each step.

    Raises:
        StepFailed: with the error, and the step that it comes from.
    """
    bundle = _at("bundle", lambda: _checked_bundle(folder, facts, dry_run=dry_run))
    tell("bundle", "done", f"{len(bundle.wheels)} wheels, {bundle.size_bytes / 2**20:.1f} MiB: all as listed")
    if not dry_run:
        _at("recover", lambda: recover(host, facts, tell))
    wanted = make_wanted(bundle, facts, order)
    found = look(host, wanted, systemd=facts.systemd)
    plan = make_plan(facts, wanted, found)
    _at("board", lambda: check_board(facts, bundle, new_release=not found.complete))
    tell("board", "done", _board(facts))
    previous = found.current or None
    changes = [step for step in plan.steps if step.needed]
    kind: Literal["planned", "installed", "unchanged"] = "installed" if changes else "unchanged"
    if dry_run:
        kind = "planned"
        for step in plan.steps:
            tell(step.name, "planned" if step.needed else "unchanged", step.why)
    else:
        _do(Work(host=host, bundle=bundle, facts=facts, order=order, wanted=wanted, found=found), plan, tell)
    return Result(
        result=kind,
        release=wanted.release,
        previous=previous,
        supervised_by=facts.supervised_by,
        command=foreground_command(host, facts),
    )


def recover(host: Host, facts: Facts, tell: Tell) -> bool:
    """Undo an installation that was cut off; returns whether there was one."""
    cut_off = switch.opened(host)
    if cut_off is None:
        return False
    tell("recover", "begins", "an installation was cut off: what was there before it is put back")
    problems = put_back(host, facts, cut_off)
    if problems:
        raise InstallFailed("; ".join(problems))
    tell("recover", "done", f"release {cut_off.before} is current" if cut_off.before else "nothing was installed")
    return True


def put_back(host: Host, facts: Facts, before: switch.Opened) -> list[str]:
    """Put back what was there, and start its agent again; returns what went wrong, having tried everything."""
    with undisturbed():
        return _put_back(host, facts, before)


def _put_back(host: Host, facts: Facts, before: switch.Opened) -> list[str]:
    problems: list[str] = []

    def attempt(act: Callable[[], object]) -> bool:
        try:
            act()
        except QuarlError as error:
            problems.append(error.message)
            return False
        return True

    if facts.systemd:
        attempt(lambda: service.stop(host)) if host.entry(layout.UNIT) is not None else None
        if not before.enabled:
            attempt(lambda: service.disable(host))
    if not attempt(lambda: switch.put_back(host, before)):
        return problems
    if facts.systemd:
        attempt(lambda: service.reload(host))
        if before.enabled:
            attempt(lambda: service.enable(host))
        if before.active:
            attempt(lambda: service.start(host, timeout_s=_START_AGAIN_S, tell=lambda _: None))
    return problems


def foreground_command(host: Host, facts: Facts) -> str:
    """Return what runs the agent in the foreground, "" where systemd runs it."""
    if facts.systemd:
        return ""
    as_user = f"runuser -u {layout.USER} -- " if facts.own_system else ""
    program, config = host.place(f"{layout.CURRENT}/bin/quarl-device"), host.place(layout.DEVICE_TOML)
    return f"{as_user}{program} supervise --config {config}"


def _checked_bundle(folder: Path, facts: Facts, *, dry_run: bool) -> Bundle:
    if not dry_run:
        check_rights(facts)
    return read_bundle(folder)


def _do(work: Work, plan: Plan, tell: Tell) -> None:
    for name in _BEFORE:
        _step(work, plan, name, tell)
    if plan.needs(*_SWITCHED):
        _switch(work, plan, tell)
    else:
        for name in _SWITCHED:
            _step(work, plan, name, tell)
    for name in _AFTER:
        # What is installed runs by now; what is left over goes with the next installation.
        with contextlib.suppress(StepFailed):
            _step(work, plan, name, tell)


def _switch(work: Work, plan: Plan, tell: Tell) -> None:
    """Do all that is undone together."""
    found, policy = work.found, work.wanted.policy_digest if plan.needs("policy") else ""
    # The agent keeps the first key that it is given; one of a policy that is taken back must not stay.
    keys = (layout.TRUSTED_KEY,) if policy and work.host.entry(layout.TRUSTED_KEY) is None else ()
    paths = (*found.changed, *found.surplus, *keys)
    before = _at(
        "keep",
        lambda: switch.begin(work.host, paths, active=found.active, enabled=found.enabled, policy=policy),
    )
    try:
        for name in _SWITCHED:
            _step(work, plan, name, tell)
        _at("commit", lambda: switch.commit(work.host))
    except BaseException as error:
        # An interruption too: nobody is left who would put it back. What is closed already has succeeded.
        if work.host.entry(layout.SWITCH) is not None:
            _undo(work, before, error, tell)
        raise


def _undo(work: Work, before: switch.Opened, error: BaseException, tell: Tell) -> None:
    problems = put_back(work.host, work.facts, before)
    for problem in problems:
        tell("undo", "failed", problem)
    if not problems:
        tell("undo", "undone", _undone(before))
    elif isinstance(error, StepFailed):
        error.cause.message += f"; and what was there before could not be put back whole: {'; '.join(problems)}"


def _undone(before: switch.Opened) -> str:
    if not before.before:
        return "nothing is installed, as before"
    return f"release {before.before} is current again" + (", its agent runs" if before.active else "")


def _step(work: Work, plan: Plan, name: str, tell: Tell) -> None:
    why = plan.why(name)
    if not plan.needs(name):
        if why:
            tell(name, "unchanged", why)
        return
    tell(name, "begins", why)
    act: Callable[[Work, doing.Say], str] = getattr(doing, name)
    try:
        said = act(work, lambda text: tell(name, "goes on", text))
    except QuarlError as error:
        tell(name, "failed", error.message)
        raise StepFailed(name, error) from error
    tell(name, "done", said)


def _at(step: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except QuarlError as error:
        raise StepFailed(step, error) from error


def _board(facts: Facts) -> str:
    system = facts.system or "an unknown system"
    return (
        f"{facts.machine}, {system}, Python {'.'.join(map(str, facts.python))}, "
        f"{facts.free_bytes / 2**20:,.0f} MiB free, supervised by {facts.supervised_by}"
    )


def running_release(host: Host) -> str | None:
    """Return the release that is current, `None` for none."""
    return linked_release(host, layout.CURRENT) or None
