"""Writing in a broker's directory: each file whole, under a lock, and owned by the user who must read it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from quarl_device.errors import AuthorityError
from quarl_device.files import read_capped, sync_directory, write_atomic

_MAX_FILE_BYTES = 64 * 1024 * 1024
_LOCK_WAIT_S = 10.0
_ASIDE = ".old"
_BROKER_USER = "mosquitto"


def read_file(path: Path) -> bytes:
    """Return a file's content; AuthorityError if it is missing, unreadable or huge."""
    return read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=AuthorityError, what="broker's file")


def write_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file whole; AuthorityError if that fails, and the old one is untouched."""
    write_atomic(path, data, error=AuthorityError, what="broker's file", mode=mode)


def write_served(path: Path, data: bytes) -> None:
    """Write a file that the broker alone reads, and reads again while it runs: it belongs to the broker's user."""
    write_file(path, data, mode=0o600)
    user = _own_user()
    if user is not None:
        give([path], user)


def write_folder(folder: Path, contents: Mapping[str, bytes], *, before: Callable[[], None] = lambda: None) -> None:
    """Put a folder of these files in place, instead of one that may be there; keys for their owner alone.

    The one that was there is moved aside, not removed, until the new one is in its place. A kill in the middle leaves
    hidden ones behind, which `interrupted` finds.

    Args:
        folder: to make.
        contents: name to content.
        before: called once all is written, before it takes its place.

    Raises:
        AuthorityError: it cannot be written.
    """
    with told(folder):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        aside = made.with_name(made.name + _ASIDE)
        try:
            for name, data in contents.items():
                write_file(made / name, data, mode=0o600 if name.endswith(".key") else 0o644)
            sync_directory(folder.parent)
            before()
            _exchange(folder, made, aside=aside)
            sync_directory(folder.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            if folder.exists():
                shutil.rmtree(aside, ignore_errors=True)


def finish(folder: Path, left: Iterable[Path]) -> None:
    """Put back what a kill left moved aside, and remove the rest of what `interrupted` found of a folder.

    Raises:
        AuthorityError: it cannot be done.
    """
    for path in left:
        with told(path):
            if path.suffix == _ASIDE and not folder.exists():
                path.rename(folder)
            else:
                shutil.rmtree(path)


def _exchange(folder: Path, made: Path, *, aside: Path) -> None:
    if folder.exists():
        folder.rename(aside)
    try:
        made.rename(folder)
    except OSError:
        if aside.exists():
            aside.rename(folder)
        raise


def interrupted(folders: Path) -> dict[str, list[Path]]:
    """Return what kills in the middle of `write_folder` left behind in a folder of folders, by the folder's name."""
    found: dict[str, list[Path]] = {}
    for path in folders.glob(".*.*") if folders.is_dir() else ():
        found.setdefault(path.name[1:].partition(".")[0], []).append(path)
    return found


def broker_user() -> pwd.struct_passwd | None:
    """Return the user that the broker runs as: Mosquitto's own where we are root, else `None` for ours.

    Raises:
        AuthorityError: we are root, and there is no such user.
    """
    user = _own_user()
    if user is None and os.geteuid() == 0:
        raise AuthorityError(
            f"there is no user {_BROKER_USER!r} for the broker to run as", hint="sudo apt-get install -y mosquitto"
        )
    return user


def give(paths: Iterable[Path], user: pwd.struct_passwd) -> None:
    """Make files belong to a user; never what a link points at, which somebody else may have laid.

    Raises:
        AuthorityError: one is missing.
    """
    for path in paths:
        with told(path):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def check_reachable(path: Path, user: pwd.struct_passwd) -> None:
    """Refuse a directory that a user cannot come to.

    Raises:
        AuthorityError: it, or one above it, lets nobody through.
    """
    for folder in (path, *path.parents):
        status = folder.stat()
        bit = 0o100 if status.st_uid == user.pw_uid else 0o010 if status.st_gid == user.pw_gid else 0o001
        if not status.st_mode & bit:
            raise AuthorityError(
                f"the broker's user {user.pw_name!r} cannot reach {path}: {folder} lets nobody through",
                hint="keep it elsewhere, such as /etc/quarl-edge/broker",
            )


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn the system's errors into AuthorityError, with the file's name."""
    try:
        yield
    except OSError as error:
        raise AuthorityError(f"{error.filename or path}: {error.strerror}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other enrolments out; two at once would each write a register without the other's client.

    Raises:
        AuthorityError: the directory cannot be written, or somebody holds it for 10 s.
    """
    with told(path), (path / ".lock").open("ab") as file:
        deadline_s = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise AuthorityError(f"{path} has been locked for {_LOCK_WAIT_S:.0f} s") from None
                time.sleep(0.05)
        yield


def _own_user() -> pwd.struct_passwd | None:
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(_BROKER_USER)
    return None
