"""Taking the agent away again; done twice, or after a kill, it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quarl_device.deploy.occupied import is_occupied
from quarl_device.errors import InstallFailed, QuarlError
from quarl_device.install import layout, service
from quarl_device.install.checks import check_rights
from quarl_device.install.facts import Facts
from quarl_device.install.host import Host
from quarl_device.install.installing import StepFailed, running_release
from quarl_device.install.report import Result, Tell

_CALL_S = 60.0


def remove(host: Host, facts: Facts, *, purge: bool, dry_run: bool, tell: Tell) -> Result:
    """Take everything away that `install` made; state and user only where `purge` says so.

    Raises:
        StepFailed: with the error, and the step that it comes from.
    """
    if not dry_run:
        _do("board", lambda: check_rights(facts))
        if not facts.systemd:
            _do("stop", lambda: _check_idle(host))
    previous = running_release(host)
    steps = _steps(host, facts, purge=purge)
    for name, there, why, act in steps:
        if not there:
            tell(name, "unchanged", f"{why}: nothing there")
        elif dry_run:
            tell(name, "planned", why)
        else:
            tell(name, "begins", why)
            _do(name, act)
            tell(name, "done", why)
    changed = any(there for _, there, _, _ in steps)
    return Result(
        result="planned" if dry_run else "removed" if changed else "unchanged",
        release=previous or "",
        previous=previous,
        supervised_by=facts.supervised_by,
    )


def _check_idle(host: Host) -> None:
    """Refuse to take the ground from under an agent that nobody here can stop."""
    if is_occupied(Path(host.place(layout.STATE))):
        raise InstallFailed("an agent acts here still", hint="end quarl-device supervise first, with Ctrl-C or SIGTERM")


def _steps(host: Host, facts: Facts, *, purge: bool) -> list[tuple[str, bool, str, Callable[[], None]]]:
    def there(path: str) -> bool:
        return host.entry(path) is not None

    def gone(*paths: str) -> Callable[[], None]:
        def act() -> None:
            for path in paths:
                host.remove(path)

        return act

    def stop() -> None:
        service.stop(host)
        service.disable(host)

    def unit() -> None:
        host.remove(layout.UNIT)
        service.reload(host)

    serviced = facts.systemd and there(layout.UNIT)
    purged = [layout.STATE, layout.DROP_INS]
    return [
        ("stop", serviced, f"stop and disable {layout.SERVICE}", stop),
        ("unit", serviced, f"remove {layout.UNIT}", unit),
        ("coral", there(layout.UDEV_RULE), f"remove {layout.UDEV_RULE}", gone(layout.UDEV_RULE)),
        ("config", there(layout.CONFIG), f"remove {layout.CONFIG}", gone(layout.CONFIG)),
        ("release", there(layout.HOME), f"remove {layout.HOME}", gone(layout.HOME)),
        ("state", purge and any(map(there, purged)), f"remove {' and '.join(purged)}", gone(*purged)),
        ("user", purge and _has_user(host, facts), f"remove user {layout.USER}", lambda: _remove_user(host)),
    ]


def _has_user(host: Host, facts: Facts) -> bool:
    return facts.own_system and host.has_user(layout.USER)


def _remove_user(host: Host) -> None:
    done = host.run(["userdel", layout.USER], timeout_s=_CALL_S)
    if done.code != 0:
        raise InstallFailed(f"userdel ended with code {done.code}: {done.said[-300:]}")


def _do(step: str, act: Callable[[], None]) -> None:
    try:
        act()
    except QuarlError as error:
        raise StepFailed(step, error) from error
