"""The service, asked and told through systemctl."""

from __future__ import annotations

from collections.abc import Callable

from quarl_device.errors import InstallFailed
from quarl_device.install import layout
from quarl_device.install.host import Host
from quarl_device.supervise import rules

_CALL_S = 90.0
_LOOK_S = 0.5
_TOLD_EVERY_S = 10.0
_STATES = ("ActiveState", "SubState", "Result", "ExecMainStatus", "StatusText", "NRestarts")
_ENDED = ("inactive", "failed", "unknown", "")


def is_active(host: Host) -> bool:
    """Return whether the service runs, comes up, or is about to be started again."""
    return _show(host)["ActiveState"] not in _ENDED


def is_enabled(host: Host) -> bool:
    """Return whether it starts with the board."""
    return host.run(["systemctl", "is-enabled", "--quiet", layout.SERVICE], timeout_s=_CALL_S).code == 0


def reload(host: Host) -> None:
    """Have systemd read its units again."""
    _systemctl(host, "daemon-reload")


def stop(host: Host) -> None:
    """Stop the service, and wait for its end."""
    _systemctl(host, "stop", layout.SERVICE, timeout_s=_CALL_S + rules.STOP_S)


def enable(host: Host) -> None:
    """Have it start with the board."""
    _systemctl(host, "enable", layout.SERVICE)


def disable(host: Host) -> None:
    """Have it start with the board no more; one that is not there is none."""
    host.run(["systemctl", "disable", layout.SERVICE], timeout_s=_CALL_S)


def start(host: Host, *, timeout_s: float, tell: Callable[[str], None]) -> str:
    """Start the service, which is stopped, and wait until it says that it is ready.

    Args:
        host: the board.
        timeout_s: that it has, in seconds.
        tell: is told now and then what it is waiting for.

    Returns:
        What the agent says of itself.

    Raises:
        InstallFailed: it ended, or was not ready in time.
    """
    # Starts before this one are not counted against it.
    host.run(["systemctl", "reset-failed", layout.SERVICE], timeout_s=_CALL_S)
    _systemctl(host, "start", "--no-block", layout.SERVICE)
    began_s = told_s = host.now_s()
    while True:
        said = _show(host)
        if said["ActiveState"] == "active":
            return said["StatusText"]
        if _has_failed(said):
            raise InstallFailed(
                f"the agent did not start: {_ending(said)}{_last_words(host)}", hint=f"journalctl -u {layout.SERVICE}"
            )
        now_s = host.now_s()
        if now_s - began_s >= timeout_s:
            raise InstallFailed(
                f"the agent was not ready within {timeout_s:g} s (it is {said['ActiveState'] or 'unknown'}"
                f"{': ' if said['StatusText'] else ''}{said['StatusText']}){_last_words(host)}",
                hint=f"journalctl -u {layout.SERVICE}; --start-timeout gives it longer",
            )
        if now_s - told_s >= _TOLD_EVERY_S:
            tell(f"{now_s - began_s:.0f} s: {said['StatusText'] or 'it is not ready yet'}")
            told_s = now_s
        host.pause(_LOOK_S)


def _has_failed(said: dict[str, str]) -> bool:
    if said["ActiveState"] == "failed" or said["SubState"] == "auto-restart":
        return True
    # Of an earlier life until this start has begun.
    return said["ActiveState"] == "activating" and said["NRestarts"] not in ("", "0")


def _ending(said: dict[str, str]) -> str:
    if said["Result"] == "exit-code":
        return f"it ended with code {said['ExecMainStatus']}"
    return f"systemd says {said['Result'] or 'nothing'!r} (status {said['ExecMainStatus']})"


def _last_words(host: Host) -> str:
    done = host.run(
        ["journalctl", "-u", layout.SERVICE, "-t", "quarl-device", "-n", "3", "-o", "cat", "--no-pager"],
        timeout_s=_CALL_S,
    )
    lines = [line.strip() for line in done.said.splitlines() if line.strip() and not line.startswith("-- ")]
    return f"; it said: {' | '.join(lines)[-400:]}" if done.code == 0 and lines else ""


def _show(host: Host) -> dict[str, str]:
    names = [word for name in _STATES for word in ("-p", name)]
    done = host.run(["systemctl", "show", *names, layout.SERVICE], timeout_s=_CALL_S)
    said = dict.fromkeys(_STATES, "")
    for line in done.said.splitlines():
        name, _, value = line.partition("=")
        if name in said:
            said[name] = value.strip()
    return said


def _systemctl(host: Host, *words: str, timeout_s: float = _CALL_S) -> None:
    done = host.run(["systemctl", *words], timeout_s=timeout_s)
    if done.code != 0:
        raise InstallFailed(f"systemctl {' '.join(words)} ended with code {done.code}: {done.said[-300:]}")
