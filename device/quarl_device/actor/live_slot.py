"""The newest live policy on the disk of a device in training: what is left when learner and broker are gone.

A whole push with the learner's signature, so `quarl-device activate` takes it as it is and the board goes on in deploy
mode with the best that it knew; `quarl-device status` shows it. An actor never begins with it: what it may act with is
for its learner to say, whose newest push is retained by the broker anyway.

Written at most every ten minutes and at the end, and only where there is a newer one, since a memory card wears out.
Policies that are too large for one message come without a signature of their own over the whole, and are not kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl_device.capped_log import CappedWarnings
from quarl_device.errors import KeyFileError, ModelFileError, QuarlError, StateUnwritable
from quarl_device.files import read_capped, write_atomic
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.limits import MAX_INLINE_PUSH_BYTES
from quarl_device.wire.push import PushHeader, decode_push

_LOG = logging.getLogger(__name__)
_FOLDER, _SUFFIX = "live", ".qpol"
_PERIOD_S = 600.0
_MOST_SHOWN = 64


def live_slot_path(state: Path, *, fleet: str, device: str) -> Path:
    """Return where the newest policy of a device lies, in its state directory."""
    return state / _FOLDER / f"{fleet}.{device}{_SUFFIX}"


@dataclass(frozen=True, kw_only=True)
class _Held:
    order: tuple[int, int]
    push: bytes
    key: PublicKey


class LiveSlot:
    """Keeps the newest push; thread-safe.

    Args:
        path: of the file.
        period_s: least time between two writes, and before the first one.
        clock: monotonic seconds.
    """

    def __init__(self, path: Path, *, period_s: float = _PERIOD_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._period_s = period_s
        self._newest: _Held | None = None
        self._written: tuple[int, int] | None = None
        self._due_s = clock() + period_s
        self._lock = threading.Lock()
        self._warnings = CappedWarnings(_LOG)

    def note(self, header: PushHeader, push: bytes, key: PublicKey) -> None:
        """Take a push that has passed its self-test, and the key that signed it; nothing is written yet."""
        self._newest = _Held(order=(header.epoch, header.version), push=push, key=key)

    def upkeep(self, now_s: float) -> None:
        """Write what is due at `now_s`, monotonic time; may take as long as a memory card does."""
        if now_s >= self._due_s:
            self._due_s = now_s + self._period_s
            self.flush()

    def flush(self) -> None:
        """Write the newest push, unless it is there already; a disk that refuses is told in the log."""
        with self._lock:
            newest = self._newest
            if newest is None or newest.order == self._written or newest.order == self._found():
                return
            try:
                # Without its key nobody could trust it when the learner is gone.
                newest.key.save(live_key_path(self._path))
                write_atomic(self._path, newest.push, error=StateUnwritable, what="newest policy")
            except (StateUnwritable, KeyFileError) as error:
                self._warnings.warning("%s", error)
            else:
                self._written = newest.order

    def _found(self) -> tuple[int, int] | None:
        """Return which push an earlier life has left, which every start is given again by the broker."""
        if self._written is None and (row := _shown(self._path)).get("digest"):
            self._written = row["epoch"], row["version"]
        return self._written


def live_key_path(path: Path) -> Path:
    """Return where the public key lies that a live policy was signed by."""
    return path.with_name(f"{path.name.removesuffix(_SUFFIX)}.pub")


def list_live(state: Path) -> list[dict[str, Any]]:
    """Return what lies there, JSON values alone: `device`, `path`, `written_unix_s`, and version and digest or `error`.

    The signature is for `quarl-device activate` to check, which is given a key; that a file is whole is looked at.
    """
    try:
        paths = sorted((state / _FOLDER).glob(f"*{_SUFFIX}"))[:_MOST_SHOWN]
    except OSError:
        return []
    return [_shown(path) for path in paths]


def _shown(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = {
        "device": path.name.removesuffix(_SUFFIX),
        "path": str(path),
        "learner_key": str(live_key_path(path)),
    }
    try:
        data = read_capped(path, cap_bytes=MAX_INLINE_PUSH_BYTES, error=ModelFileError, what="live policy")
        header = decode_push(data, lambda *_: None)[0]
        written_unix_s = path.stat().st_mtime
    except QuarlError as error:
        return {**row, "error": error.message, "code": error.code}
    except OSError as error:
        return {**row, "error": str(error.strerror), "code": ModelFileError.code}
    return {
        **row,
        "epoch": header.epoch,
        "version": header.version,
        "digest": header.sha256,
        "env_steps": header.env_steps,
        "written_unix_s": written_unix_s,
    }
