"""Zip archives of strangers: what a Stable-Baselines3 `.zip` and torch's own archive inside it are read through.

Nothing is extracted to disk. Sizes that the directory claims are capped before anything is decompressed, and a member
never gives more than it claims.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from quarl_device.errors import ModelFileError, UnsafeSource
from quarl_export.importers.zips import ZIP_ERRORS

MAX_FILE_BYTES = 1 << 30
MAX_MEMBERS = 4_096
MAX_JSON_BYTES = 64 << 20
MAX_POLICY_BYTES = 512 << 20
MAX_RATIO = 200
"""Decompressed to compressed size. DEFLATE reaches 1,032 on zeros; trained weights and JSON stay under 10."""

_DATA, _POLICY, _VERSION = "data", "policy.pth", "_stable_baselines3_version"


@dataclass(frozen=True, kw_only=True)
class AgentArchive:
    """The parts of a Stable-Baselines3 `.zip` that say how its agent acts.

    Attributes:
        settings: the decoded `data` JSON. Its ":serialized:" fields are base64 pickles and still encoded.
        policy: bytes of `policy.pth`, a torch archive.
        version: of Stable-Baselines3, "" where it is not told.
    """

    settings: Mapping[str, Any]
    policy: bytes = field(repr=False)
    version: str


def is_sb3(path: Path) -> bool:
    """Tell whether a file is a Stable-Baselines3 `.zip`, whole or cut off, by its content."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if not head.startswith(b"PK\x03\x04"):
                return False
            # Its first member is "data": enough to know a file whose directory, at its end, is lost.
            if head[26:28] == b"\x04\x00" and head[30:34] == b"data":
                return True
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                return {_DATA, _POLICY} <= set(archive.namelist()[:MAX_MEMBERS])
    except ZIP_ERRORS:
        return False


def read_archive(path: Path) -> AgentArchive:
    """Read a Stable-Baselines3 `.zip`.

    Raises:
        ModelFileError: missing, unreadable, truncated, over a cap, without a part that is needed, or no such archive.
        UnsafeSource: built to harm whoever extracts it.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            if size > MAX_FILE_BYTES:
                raise ModelFileError(f"{path}: {size:,} bytes are over the cap of {MAX_FILE_BYTES:,}")
            members = Members(file, what=str(path))
            missing = [name for name in (_DATA, _POLICY) if name not in members.sizes]
            if missing:
                raise ModelFileError(
                    f"{path}: a Stable-Baselines3 archive has the members 'data' and 'policy.pth'; "
                    f"missing: {', '.join(missing)}",
                    hint="save the agent again with model.save() and without exclude=",
                )
            version = members.read(_VERSION, cap_bytes=256) if _VERSION in members.sizes else b""
            return AgentArchive(
                settings=_settings(members.read(_DATA, cap_bytes=MAX_JSON_BYTES), what=f"{path}: data"),
                policy=members.read(_POLICY, cap_bytes=MAX_POLICY_BYTES),
                version=version.decode("ascii", "replace").strip()[:32],
            )
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error


def _settings(data: bytes, *, what: str) -> Mapping[str, Any]:
    try:
        settings = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what} is not JSON: {str(error)[:120]}") from None
    if not isinstance(settings, dict):
        raise ModelFileError(f"{what}: expected a JSON object, found {type(settings).__name__}")
    return settings


class Members:
    """A zip archive's members, each read whole under a cap.

    Attributes:
        sizes: decompressed bytes by name.

    Raises:
        ModelFileError: no zip archive, cut off, too many members, names that come twice, encryption, or another
            compression than DEFLATE.
        UnsafeSource: a name that climbs out, or a size that only a bomb has.
    """

    def __init__(self, file: IO[bytes], *, what: str) -> None:
        self._what = what
        try:
            self._archive = zipfile.ZipFile(file)
        except ZIP_ERRORS as error:
            raise ModelFileError(f"{what} is not a zip archive, or one that was cut off: {error}") from error
        infos = self._archive.infolist()
        if len(infos) > MAX_MEMBERS:
            raise ModelFileError(f"{what}: {len(infos):,} members are over the cap of {MAX_MEMBERS:,}")
        if min((info.header_offset for info in infos), default=0):
            # A directory that was found behind other bytes: of the torch archive inside one that was cut off.
            raise ModelFileError(f"{what} was cut off, or does not begin as a zip archive does")
        self.sizes: dict[str, int] = {}
        for info in infos:
            self._check(info)
            self.sizes[info.filename] = info.file_size

    def _check(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        shown = f"{self._what}: member {name[:80]!r}"
        parts = PurePosixPath(name).parts
        if not name or name.startswith("/") or ".." in parts or "\\" in name or ":" in name:
            raise UnsafeSource(f"{shown} has a name that leads out of the archive; nothing was extracted")
        if name in self.sizes:
            raise ModelFileError(f"{shown} is there twice, so which one counts cannot be known")
        if info.flag_bits & 0x1:
            raise ModelFileError(f"{shown} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ModelFileError(f"{shown} is compressed by method {info.compress_type}; expected none or DEFLATE")
        if info.file_size > MAX_RATIO * max(info.compress_size, 4_096):
            raise UnsafeSource(
                f"{shown} claims {info.file_size:,} bytes from {info.compress_size:,}: a zip bomb, not read"
            )

    def read(self, name: str, *, cap_bytes: int) -> bytes:
        """Return a member.

        Raises:
            ModelFileError: not there, over the cap, or damaged.
        """
        if name not in self.sizes:
            raise ModelFileError(f"{self._what}: member {name[:80]!r} is missing")
        if self.sizes[name] > cap_bytes:
            raise ModelFileError(
                f"{self._what}: member {name[:80]!r} has {self.sizes[name]:,} bytes, over the cap of {cap_bytes:,}"
            )
        try:
            data = self._archive.read(name)
        except ZIP_ERRORS as error:
            raise ModelFileError(f"{self._what}: member {name[:80]!r} is damaged: {error}") from error
        if len(data) != self.sizes[name]:
            raise ModelFileError(f"{self._what}: member {name[:80]!r} was cut off")
        return data
