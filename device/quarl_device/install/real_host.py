"""The board itself, or a directory that stands for its root."""

from __future__ import annotations

import contextlib
import os
import pwd
import selectors
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from quarl_device.errors import InstallFailed
from quarl_device.files import read_capped, sync_directory, write_atomic
from quarl_device.install.host import Done, Entry
from quarl_device.parent import end_with_parent_or_now

_SAID_CHARS = 2_000
_MAX_LINE_BYTES = 64 * 1024
_MAX_READ_BYTES = 256 * 1024 * 1024
_TIMED_OUT, _NOT_FOUND = 124, 127
_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "NOTIFY_SOCKET")


class RealHost:
    """See `Host`.

    Args:
        root: directory that stands for the board's root; "/" is the board that this runs on.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.own_system = self._root == Path("/")

    def place(self, path: str) -> str:
        """Return where a path lies here."""
        return str(self._at(path))

    def entry(self, path: str) -> Entry | None:
        """Return what lies at a path."""
        with _told("cannot be looked at", path):
            try:
                found = self._at(path).lstat()
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                return None  # what root alone may see is seen by root; a dry run does without
        if stat.S_ISLNK(found.st_mode):
            return Entry(kind="link", mode=0o777, owner=_owner(found.st_uid))
        kind: Any = "directory" if stat.S_ISDIR(found.st_mode) else "file"
        return Entry(kind=kind, mode=stat.S_IMODE(found.st_mode), owner=_owner(found.st_uid))

    def read(self, path: str) -> bytes | None:
        """Return a file's content."""
        try:
            # Some of it belongs to the agent's user: no pipe, and no file without end, may hold up root.
            return read_capped(self._at(path), cap_bytes=_MAX_READ_BYTES, error=InstallFailed, what=path)
        except InstallFailed:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory."""
        try:
            return tuple(sorted(os.listdir(self._at(path))))  # noqa: PTH208  names, not paths
        except OSError:
            return ()

    def write(self, path: str, data: bytes, *, mode: int, owner: str = "") -> None:
        """Write a file whole."""
        target = self._at(path)
        write_atomic(
            target,
            data,
            error=InstallFailed,
            what=target.name,
            mode=mode,
            # Before it takes its place, so that it is never there with another owner.
            check=lambda temporary: self._own(temporary, owner),
        )

    def make_directory(self, path: str, *, mode: int = 0o755, owner: str = "") -> None:
        """Make a directory."""
        with _told("cannot be made", path):
            self._at(path).mkdir(parents=True, exist_ok=True)
            self._at(path).chmod(mode)
            self._own(self._at(path), owner)

    def link_target(self, path: str) -> str | None:
        """Return what a link says."""
        try:
            return os.readlink(self._at(path))  # noqa: PTH115  as it is written
        except OSError:
            return None

    def link(self, path: str, target: str) -> None:
        """Point a link at a target."""
        place = self._at(path)
        new = place.with_name(f".{place.name}.new")
        with _told("cannot be linked", path):
            place.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(place)
            sync_directory(place.parent)

    def move(self, path: str, to: str) -> None:
        """Rename."""
        with _told("cannot be renamed", path):
            self._at(path).rename(self._at(to))
            sync_directory(self._at(to).parent)

    def remove(self, path: str) -> None:
        """Remove what lies at a path."""
        place = self._at(path)
        with _told("cannot be removed", path):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    place.unlink()

    def sync(self) -> None:
        """Write everything back."""
        os.sync()

    def now_s(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def pause(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s)

    def has_user(self, name: str) -> bool:
        """Return whether there is such a user."""
        try:
            pwd.getpwnam(name)
        except KeyError:
            return False
        return True

    def run(
        self,
        words: Sequence[str],
        *,
        timeout_s: float,
        user: str = "",
        hear: Callable[[str], None] | None = None,
    ) -> Done:
        """Run a command."""
        here = os.getpid()
        try:
            child = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(user),
                cwd="/",
                preexec_fn=lambda: end_with_parent_or_now(here),  # noqa: PLW1509  no thread runs here
                **_as_user(user),
            )
        except FileNotFoundError:
            return Done(code=_NOT_FOUND, said=f"{words[0]}: not found")
        except OSError as cause:
            raise InstallFailed(f"{words[0]} cannot be started: {cause.strerror}") from cause
        with child:
            try:
                said, ended = _listen(child, time.monotonic() + timeout_s, hear)
            finally:
                if child.poll() is None:
                    child.kill()
        code = child.returncode if child.returncode >= 0 else 128 - child.returncode
        return Done(
            code=code if ended else _TIMED_OUT, said=said if ended else f"{said}\nnot done after {timeout_s:g} s"
        )

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _own(self, place: Path, owner: str) -> None:
        if owner and self.own_system:
            account = _account(owner)
            os.chown(place, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _listen(child: subprocess.Popen[bytes], until_s: float, hear: Callable[[str], None] | None) -> tuple[str, bool]:
    """Return the end of what a child wrote, and whether it ended in time."""
    assert child.stdout is not None  # noqa: S101  it was asked for
    said, rest = "", b""
    handle = child.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while selector.select(max(0.0, until_s - time.monotonic())):
            data = os.read(handle, 65_536)
            *lines, rest = (rest + data).split(b"\n")
            lines += [rest] if rest and (not data or len(rest) > _MAX_LINE_BYTES) else []
            rest = b"" if len(rest) > _MAX_LINE_BYTES else rest
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                said = f"{said}{text}\n"[-_SAID_CHARS:]
                if hear is not None:
                    hear(text)
            if not data:
                break
        else:
            return said.strip(), False
    try:
        child.wait(max(0.1, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return said.strip(), False
    return said.strip(), True


def _environment(user: str) -> dict[str, str]:
    """Return the environment of a command: a proxy that is set for this process is meant for pip too."""
    passed = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    if user:
        passed = {"PATH": passed.get("PATH", os.defpath), "HOME": _account(user).pw_dir}
    return {**passed, "LC_ALL": "C.UTF-8", "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _as_user(user: str) -> dict[str, Any]:
    if not user:
        return {}
    account = _account(user)
    groups = os.getgrouplist(user, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}


def _account(name: str) -> pwd.struct_passwd:
    try:
        # What an owner without a name has been read as.
        return pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        raise InstallFailed(f"this system has no user {name}") from None


def _owner(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@contextlib.contextmanager
def _told(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise InstallFailed(f"{path} {what}: {cause.strerror or cause}") from cause
