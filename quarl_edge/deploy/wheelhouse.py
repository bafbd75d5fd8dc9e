"""Wheels for a board that reaches no package index: fetched here by pip, kept by what was asked for."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from quarl_device.errors import BoardUnfit, DeployError, MissingTool
from quarl_device.wire.strict_json import one_line
from quarl_edge.deploy.requirements import BoardPython, missing_from

_DOWNLOAD_TIMEOUT_S = 900.0
_ROUNDS = 5
_NOT_FOUND = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)")
_EXTRAS = re.compile(r"\[[^]]*\]")
_NO_NETWORK = ("connection broken", "Temporary failure in name resolution", "Failed to establish a new connection")
Download = Callable[[Sequence[str], BoardPython, Path], None]


def wheelhouse(
    asked: Sequence[str],
    board: BoardPython,
    *,
    cache: Path,
    note: Callable[[str], None],
    download: Download | None = None,
) -> tuple[Path, ...]:
    """Return wheels that fulfil requirements on a board, pip among them.

    Args:
        asked: requirements without markers.
        board: that they are for.
        cache: wheelhouses by digest of what was asked.
        note: is told before something takes seconds.
        download: fetches into a directory; pip by default.

    Raises:
        BoardUnfit: a package has no wheel for this board; named.
        DeployError: pip reaches no index from here either.
        MissingTool: there is no pip here.
    """
    wanted = tuple(sorted({*asked, "pip"}))
    target = cache / asked_digest(wanted, board)
    if not target.is_dir():
        note(f"fetching wheels for {board.machine}, Python {board.version}; they are kept for the next time")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as folder:
            made = Path(folder) / "wheels"
            made.mkdir()
            _fill(made, wanted, board, download or pip_download)
            if not target.exists():
                made.rename(target)
    return tuple(sorted(target.glob("*.whl")))


def asked_digest(wanted: Sequence[str], board: BoardPython) -> str:
    """Return the digest of what a wheelhouse is for."""
    said = json.dumps([list(wanted), list(board.platforms), board.version])
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def _fill(folder: Path, wanted: Sequence[str], board: BoardPython, download: Download) -> None:
    """Fetch until nothing is missing on the board: pip judges markers of dependencies for this computer.

    What extras add is asked for by name too: where one of those has no wheel pip would try every older version of
    what has the extra, and then blame them all.
    """
    asked = list(wanted)
    for _ in range(_ROUNDS):
        download([_EXTRAS.sub("", text) for text in asked], board, folder)
        missing = missing_from(sorted(folder.glob("*.whl")), asked, board)
        if not missing:
            return
        asked += missing
    raise DeployError(f"the wheels for {board.machine} lack {', '.join(missing)}, whatever is fetched")


def pip_download(asked: Sequence[str], board: BoardPython, folder: Path) -> None:
    """Fetch wheels with this Python's pip, from the index that it is configured for.

    Raises:
        BoardUnfit: a package has no wheel for this board.
        DeployError: no index is reached, or it takes too long.
        MissingTool: there is no pip here.
    """
    tags = [word for tag in board.platforms for word in ("--platform", tag)]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--only-binary=:all:"]
    command += ["--python-version", board.version, "--implementation", "cp", *tags, "-d", str(folder), *asked]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeployError(f"fetching wheels took more than {_DOWNLOAD_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise MissingTool(f"pip cannot be run: {error.strerror}") from error
    if ran.returncode:
        raise _failed(ran.stderr, board)


def _failed(said: str, board: BoardPython) -> DeployError | BoardUnfit | MissingTool:
    if "No module named pip" in said:
        return MissingTool("fetching wheels needs pip, which is not here", hint=f"{sys.executable} -m ensurepip")
    if any(sign in said for sign in _NO_NETWORK):
        return DeployError(
            "pip reaches no package index from this computer either, so there are no wheels for the board",
            hint="once with a network: quarl-edge deploy ... --wheelhouse always; the wheels are kept",
        )
    found = _NOT_FOUND.search(said)
    if found is not None:
        return BoardUnfit(
            f"{found[1]} has no wheel for {board.machine}, Python {board.version}, glibc "
            f"{'.'.join(map(str, board.glibc))}",
            hint="leave out the --extras that need it; or --wheelhouse never, where the board has a network and an "
            "index with such wheels or a compiler",
        )
    lines = [line for line in said.splitlines() if line.strip()] or ["no reason given"]
    return DeployError(f"pip cannot fetch wheels: {one_line(lines[-1], max_length=300)}")
