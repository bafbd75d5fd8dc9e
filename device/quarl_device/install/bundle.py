"""What is installed: a directory of files, all of them listed with their digests, and nothing else in it.

A bundle comes from elsewhere and is installed as root. So a path is one of a few forms, every size has a cap, links are
refused, and what is small is read once: the bytes that were checked are those that are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl_device.errors import BundleRefused
from quarl_device.files import read_capped

SCHEMA = "quarl.bundle.v1"
LIST_FILE = "bundle.json"
_MIB = 2**20
_MAX_LIST_BYTES = _MIB
_MAX_FILES = 2_000
_MAX_WHEEL_BYTES = 2_048 * _MIB
_MAX_TOTAL_BYTES = 8_192 * _MIB
_MAX_POLICY_BYTES = 256 * _MIB
_MAX_SMALL_BYTES = 64 * 1024
_MAX_PASSWORD_BYTES = 4_096
_PIECE_BYTES = _MIB
_NAME = r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,199}"
_DEVICE_WHEEL = re.compile(r"quarl_edge_device-[A-Za-z0-9._+!]{1,60}-py3-none-any\.whl")
_CAPS = (
    (_DEVICE_WHEEL, _MAX_WHEEL_BYTES),
    (re.compile(rf"wheels/{_NAME}\.whl"), _MAX_WHEEL_BYTES),
    (re.compile(r"device\.toml|learner\.pub"), _MAX_SMALL_BYTES),
    (re.compile(rf"credentials/{_NAME}"), _MAX_SMALL_BYTES),
    (re.compile(r"password"), _MAX_PASSWORD_BYTES),
    (re.compile(r"policy\.qpol"), _MAX_POLICY_BYTES),
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOLDERS = ("wheels", "credentials")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle that holds. The wheels stay where they are; all else is here.

    Attributes:
        folder: where it lies.
        wheel: file of the device package.
        wheels: digests (sha256, hex) of all wheels by their path in the bundle.
        size_bytes: of all wheels together.
        device_toml: the agent's configuration.
        credentials: content by file name; none where the bundle has no credentials.
        password: of the broker, `None` for none.
        learner_key: the learner's public key, `None` for none.
        policy: a signed policy, `None` for none.
    """

    folder: Path
    wheel: Path
    wheels: Mapping[str, str]
    size_bytes: int
    device_toml: bytes
    credentials: Mapping[str, bytes]
    password: bytes | None
    learner_key: bytes | None
    policy: bytes | None

    @property
    def wheelhouse(self) -> Path | None:
        """The directory of all other wheels, `None` where they are to be fetched."""
        return self.folder / "wheels" if any(name.startswith("wheels/") for name in self.wheels) else None

    @property
    def pip_wheel(self) -> Path | None:
        """The wheel of pip itself, which can be run as it is; `None` where there is none."""
        names = sorted(name for name in self.wheels if name.startswith("wheels/pip-"))
        return self.folder / names[-1] if names else None


def read_bundle(folder: Path) -> Bundle:
    """Read and check a bundle.

    Raises:
        BundleRefused: it is none, a file is missing, damaged, over its cap, a link, or not listed.
    """
    folder = folder.absolute()
    if not folder.is_dir():
        raise BundleRefused(f"no directory of a bundle: {folder}", hint="quarl-edge deploy makes one and sends it")
    listed = _read_list(folder / LIST_FILE)
    _refuse_others(folder, listed)
    wheels: dict[str, str] = {}
    small: dict[str, bytes] = {}
    size_bytes = 0
    for name, digest in listed.items():
        if name.endswith(".whl"):
            size_bytes += _check_wheel(folder / name, name, digest)
            wheels[name] = digest
        else:
            small[name] = _read_small(folder / name, name, digest)
        if size_bytes > _MAX_TOTAL_BYTES:
            raise BundleRefused(f"the bundle's wheels are over {_MAX_TOTAL_BYTES:,} bytes together")
    return _bundle(folder, wheels, small, size_bytes)


def _bundle(folder: Path, wheels: Mapping[str, str], small: Mapping[str, bytes], size_bytes: int) -> Bundle:
    device_wheels = [name for name in wheels if _DEVICE_WHEEL.fullmatch(name)]
    if len(device_wheels) != 1:
        raise BundleRefused(
            f"the bundle has {len(device_wheels)} wheels quarl_edge_device-*-py3-none-any.whl; expected one"
        )
    if "device.toml" not in small:
        raise BundleRefused("the bundle has no device.toml")
    _check_toml(small["device.toml"])
    return Bundle(
        folder=folder,
        wheel=folder / device_wheels[0],
        wheels=wheels,
        size_bytes=size_bytes,
        device_toml=small["device.toml"],
        credentials={
            name.removeprefix("credentials/"): data for name, data in small.items() if name.startswith("credentials/")
        },
        password=small.get("password"),
        learner_key=small.get("learner.pub"),
        policy=small.get("policy.qpol"),
    )


def _read_list(path: Path) -> dict[str, str]:
    """Return path to digest, as `bundle.json` says."""
    if path.is_symlink():
        raise BundleRefused(f"{LIST_FILE} is a symbolic link")
    data = read_capped(path, cap_bytes=_MAX_LIST_BYTES, error=BundleRefused, what=LIST_FILE)
    try:
        said = json.loads(data, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as cause:
        raise BundleRefused(f"{LIST_FILE} is no JSON: {str(cause)[:80]}") from cause
    if not isinstance(said, dict) or said.get("schema") != SCHEMA:
        found = said.get("schema") if isinstance(said, dict) else type(said).__name__
        raise BundleRefused(f"{LIST_FILE} is of schema {str(found)[:40]!r}; this installer takes {SCHEMA!r}")
    files = said.get("files")
    if set(said) != {"schema", "files"} or not isinstance(files, dict):
        raise BundleRefused(f"{LIST_FILE} must have 'schema' and 'files', and nothing else")
    if len(files) > _MAX_FILES:
        raise BundleRefused(f"{LIST_FILE} lists {len(files):,} files; at most {_MAX_FILES:,} are taken")
    for name, digest in files.items():
        _cap_of(name)
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise BundleRefused(f"{LIST_FILE}: the digest of {name} is not 64 hex digits")
    return files


def _no_twins(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _cap_of(name: str) -> int:
    """Return how many bytes a file of this path may have; a path that no bundle has is refused."""
    for form, cap_bytes in _CAPS:
        if form.fullmatch(name):
            return cap_bytes
    raise BundleRefused(f"no bundle has a file {name[:80]!r}")


def _refuse_others(folder: Path, listed: Mapping[str, str]) -> None:
    """Refuse what is in the directory and not in the list; nothing is followed out of it."""
    for place, inside in ((folder, ""), *((folder / each, f"{each}/") for each in _FOLDERS)):
        if inside and not place.is_dir() and not place.is_symlink():
            continue
        for number, name in enumerate(_names(place)):
            if number > _MAX_FILES:
                raise BundleRefused(f"{place} has more than {_MAX_FILES:,} files")
            path = f"{inside}{name}"
            known = path in listed or path == LIST_FILE
            folder_of_ours = not inside and name in _FOLDERS and not (place / name).is_symlink()
            if not known and not (folder_of_ours and (place / name).is_dir()):
                raise BundleRefused(f"{path[:80]!r} is not listed in {LIST_FILE}")


def _names(folder: Path) -> list[str]:
    if folder.is_symlink():
        raise BundleRefused(f"{folder} is a symbolic link")
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  names, not paths
    except OSError as cause:
        raise BundleRefused(f"{folder} cannot be read: {cause.strerror}") from cause


def _check_wheel(path: Path, name: str, digest: str) -> int:
    """Return a wheel's size in bytes, once its digest is the listed one."""
    found, size_bytes = hashlib.sha256(), 0
    cap_bytes = _cap_of(name)
    with os.fdopen(_open(path, name), "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            size_bytes += len(piece)
            if size_bytes > cap_bytes:
                raise BundleRefused(f"{name} is over its cap of {cap_bytes:,} bytes")
            found.update(piece)
    _compare(found.hexdigest(), digest, name)
    return size_bytes


def _read_small(path: Path, name: str, digest: str) -> bytes:
    cap_bytes = _cap_of(name)
    with os.fdopen(_open(path, name), "rb") as file:
        data = file.read(cap_bytes + 1)
    if len(data) > cap_bytes:
        raise BundleRefused(f"{name} is over its cap of {cap_bytes:,} bytes")
    _compare(hashlib.sha256(data).hexdigest(), digest, name)
    return data


def _open(path: Path, name: str) -> int:
    """Return the handle of a regular file; a link is not followed, and a pipe not waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as cause:
        raise BundleRefused(f"{name} cannot be read: {cause.strerror}", hint="send the bundle again") from cause
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BundleRefused(f"{name} is no regular file")
    return handle


def _compare(found: str, listed: str, name: str) -> None:
    if found != listed:
        raise BundleRefused(
            f"{name} is not what {LIST_FILE} lists: sha256 {found[:12]}..., expected {listed[:12]}...",
            hint="it was damaged on its way, or changed: send the bundle again",
        )


def _check_toml(data: bytes) -> None:
    try:
        tomllib.loads(data.decode())
    except (ValueError, RecursionError) as cause:
        raise BundleRefused(f"device.toml is no TOML: {str(cause)[:200]}") from cause
