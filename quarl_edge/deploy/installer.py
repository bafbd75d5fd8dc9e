"""The installer on the board (`quarl_device.install`): how it is called, and its lines read without trust."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from quarl_device.errors import BoardUnreachable, DeployError, PayloadRefused
from quarl_device.wire.strict_json import Reader, loads, one_line
from quarl_edge.deploy.events import Event, State, Tell
from quarl_edge.deploy.host import MAX_LINE_BYTES, Host
from quarl_edge.deploy.scripts import said_of

INSTALL_TIMEOUT_S = 1800.0
_MAX_LINES = 5_000
_MAX_SAID = 500
_RESULTS = ("installed", "unchanged", "removed", "planned", "failed")
_STATES = get_args(State)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the installer is to do.

    Attributes:
        dry_run: only say what would be done.
        remove: take the agent away.
        purge: and its state.
        coral: reach an Edge TPU.
        extras: of the device package.
        memory_mib: limit of the agent's memory, 0 for none.
    """

    dry_run: bool = False
    remove: bool = False
    purge: bool = False
    coral: bool = False
    extras: Sequence[str] = ()
    memory_mib: int = 0

    def words(self) -> list[str]:
        """Return its options."""
        words = ["--format", "json"]
        flags = {"--dry-run": self.dry_run, "--remove": self.remove, "--purge": self.purge, "--coral": self.coral}
        words += [name for name, given in flags.items() if given]
        if self.extras:
            words += ["--extras", ",".join(self.extras)]
        if self.memory_mib:
            words += ["--memory-mib", str(self.memory_mib)]
        return words


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the installer says in the end.

    Attributes:
        result: "installed", "unchanged", "removed", "planned" or "failed".
        release: that is installed, "" for none.
        previous: that was before, "" for none.
        step: that failed, "".
        code: exit code of that failure.
        error: what failed, one line.
        supervised_by: "systemd" or "none".
        command: runs the agent in the foreground, "" where something supervises it.
    """

    result: str
    release: str = ""
    previous: str = ""
    step: str = ""
    code: int = 1
    error: str = ""
    supervised_by: str = ""
    command: str = ""


@dataclass(kw_only=True)
class Listener:
    """Hears the installer's lines.

    Attributes:
        tell: is told of its steps.
        outcome: what it said in the end.
        lines: so many were heard.
        other: the last one that was none of the installer's own, such as the end of a traceback.
    """

    tell: Tell
    outcome: Outcome | None = None
    lines: int = field(default=0)
    other: str = field(default="")

    def hear(self, line: str) -> None:
        """Take one line; what is not one of the installer's is shown as it is, made printable."""
        self.lines += 1
        if self.lines > _MAX_LINES or not line.strip():
            return
        try:
            read = loads(line.encode(), what="line of the installer", cap_bytes=2 * MAX_LINE_BYTES)
            if "result" in read.fields:
                self.outcome = _outcome(read)
            else:
                self.tell(_event(read))
        except PayloadRefused:
            self.other = one_line(line.strip(), max_length=_MAX_SAID)
            self.tell(Event(step="install", state="goes on", said=self.other, on_board=True))


def install_command(folder: str, wheel: str, order: Order, *, root: str) -> str:
    """Return the shell command.

    It runs in the bundle's own directory and without the current one on Python's path (-P), so that no file of the
    user's is imported as root.

    Args:
        folder: of the bundle, on the board.
        wheel: name of the device's wheel in it.
        order: what is to be done.
        root: what a command that needs root begins with.
    """
    place = [] if order.remove else [folder]
    words = [
        "env",
        f"PYTHONPATH={folder}/{wheel}",
        "python3",
        "-P",
        "-m",
        "quarl_device.install",
        *place,
        *order.words(),
    ]
    # In the shell's place: it would end at Ctrl-C at once, and the connection with it.
    return f"cd {shlex.quote(folder)} && exec {root}{shlex.join(words)}"


async def run_installer(host: Host, command: str, tell: Tell) -> Outcome:
    """Run the installer and tell of each step as it happens; a call that is cancelled has it put back what it began.

    For that it gets a terminal: nobody but root may send it a signal otherwise.

    Raises:
        DeployError: it failed, with its own exit code; it says which step and that the agent before it goes on.
        BoardUnreachable: the connection was lost.
    """
    listener = Listener(tell=tell)
    try:
        ran = await host.watch(command, listener.hear, timeout_s=INSTALL_TIMEOUT_S, terminal=True)
    except BoardUnreachable as error:
        error.message += (
            "; what the board had begun it ends or leaves undone, the agent before it is untouched until then"
        )
        error.hint = "running the same command again is safe"
        raise
    outcome = listener.outcome
    if outcome is None:
        raise DeployError(
            f"the installer on {host.name} ended with status {ran.status}: {listener.other or said_of(ran)}"
        )
    if outcome.result == "failed" or ran.status != 0:
        raise _failed(host, outcome, ran.status)
    return outcome


def _failed(host: Host, outcome: Outcome, status: int) -> DeployError:
    at = f" at step {outcome.step!r}" if outcome.step else ""
    kept = f"; release {outcome.previous} is in place as before" if outcome.previous else ""
    error = DeployError(f"{host.name}{at}: {outcome.error or f'the installer ended with status {status}'}{kept}")
    error.code = outcome.code
    return error


def _event(read: Reader) -> Event:
    state = _line(read, "state", 20)
    if state not in _STATES:
        raise PayloadRefused(f"no such state: {state!r}")
    return Event(step=_line(read, "step", 40), state=state, said=_line(read, "said", _MAX_SAID), on_board=True)  # type: ignore[arg-type]


def _outcome(read: Reader) -> Outcome:
    return Outcome(
        result=read.choice("result", _RESULTS),
        release=_line(read, "release", 64),
        previous=_line(read, "previous", 64),
        step=_line(read, "step", 40),
        code=read.integer("code", low=1, high=255) if read.fields.get("code") else 1,
        error=_line(read, "error", _MAX_SAID),
        supervised_by=_line(read, "supervised_by", 20),
        command=_line(read, "command", 2_000),
    )


def _line(read: Reader, name: str, max_length: int) -> str:
    """Return a text that may be missing or null, made fit to be shown."""
    value = read.fields.get(name)
    if value is None:
        return ""
    if type(value) is not str:
        raise PayloadRefused(f"{name!r} is no text")
    return one_line(value, max_length=max_length)
