"""A private directory on the board for what is sent. This file is sent as it is and run by the board's own python3.

It reads one JSON object and prints one. `open` makes the directory and fills it with what the board has kept from
earlier times; `keep` keeps wheels for later ones; `close` removes the directory.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Any

PREFIX = "bundle-"
STALE_S = 3600.0  # no installer takes that long: a connection was lost, or this computer
KEPT_S = 90 * 86400.0


def _base() -> str:
    base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "quarl-edge")  # noqa: PTH111, PTH118
    os.makedirs(os.path.join(base, "kept"), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH118
    os.chmod(base, 0o700)  # noqa: PTH101
    return base


def _remove_old(folder: str, age_s: float, prefix: str) -> None:
    for name in os.listdir(folder):  # noqa: PTH208
        path = os.path.join(folder, name)  # noqa: PTH118
        try:
            # A clock that was set meanwhile makes the age negative.
            if name.startswith(prefix) and not 0 <= time.time() - os.lstat(path).st_mtime < age_s:
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)  # noqa: PTH107, PTH112
        except OSError:
            pass


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:  # noqa: PTH123
        for piece in iter(lambda: file.read(1048576), b""):
            digest.update(piece)
    return digest.hexdigest()


def _copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def open_folder(files: Any) -> Any:
    """Return the directory, and which of `files` (digest by path) are to be sent."""
    base = _base()
    _remove_old(base, STALE_S, PREFIX)
    _remove_old(os.path.join(base, "kept"), KEPT_S, "")  # noqa: PTH118
    folder, lacks = tempfile.mkdtemp(prefix=PREFIX, dir=base), []
    for path, sha256 in files.items():
        target, kept = os.path.join(folder, path), os.path.join(base, "kept", sha256)  # noqa: PTH118
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        if os.path.isfile(kept) and _digest(kept) == sha256:  # noqa: PTH113
            os.utime(kept)
            _copy(kept, target)
        else:
            lacks.append(path)
    return {"folder": folder, "lacks": lacks}


def keep(folder: str, files: Any) -> Any:
    """Keep `files` (digest by path) of a directory for later."""
    kept = os.path.join(_base(), "kept")  # noqa: PTH118
    for path, sha256 in files.items():
        source, target = os.path.join(folder, path), os.path.join(kept, sha256)  # noqa: PTH118
        if _digest(source) == sha256:
            temporary = tempfile.mktemp(dir=kept)  # noqa: S306  in a directory of this user's alone
            _copy(source, temporary)
            os.replace(temporary, target)  # noqa: PTH105
    return {}


def close(folder: str) -> Any:
    """Remove a directory that `open_folder` made."""
    if os.path.dirname(folder) == _base() and os.path.basename(folder).startswith(PREFIX):  # noqa: PTH119, PTH120
        shutil.rmtree(folder, ignore_errors=True)
    return {}


if __name__ == "__main__":
    os.umask(0o077)
    asked = json.loads(sys.stdin.read())
    action: Any = {"open": open_folder, "keep": keep, "close": close}[asked.pop("action")]
    sys.stdout.write(json.dumps(action(**asked)) + "\n")
