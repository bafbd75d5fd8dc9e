"""Whether a board's host key is the one that the user knows, and what is said where it is not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncssh

from quarl_device.errors import BoardRefused, UsageError
from quarl_edge.deploy.target import Target

Entries = tuple[Sequence[Any], ...]
_DEFAULT = (Path(".ssh") / "known_hosts", Path(".ssh") / "known_hosts2")


class KnownHosts:
    """The user's files of known hosts, and whether they know the board under any key.

    asyncssh asks a file by itself too, but tells an unknown host from a changed key by no word, and takes
    "UserKnownHostsFile none" for "trust everybody".

    Args:
        files: in OpenSSH's format; those that are missing count as empty.

    Attributes:
        knows: whether any key is known for the board; `None` before it was asked.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self.knows: bool | None = None

    def __call__(self, host: str, addr: str, port: int | None) -> Entries:
        """Return what is known of a host, in asyncssh's form."""
        texts = []
        for file in self.files:
            try:
                texts.append(file.read_text())
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"known hosts cannot be read: {file}: {error}") from error
        try:
            entries: Entries = asyncssh.import_known_hosts("\n".join(texts)).match(host, addr, port)
        except ValueError as error:
            raise UsageError(f"known hosts do not hold: {', '.join(map(str, self.files))}: {error}") from error
        self.knows = any(entries[:3])
        return entries


class KeyWitness(asyncssh.SSHClient):
    """Trusts no key by itself, and keeps what was shown for the message."""

    def __init__(self) -> None:
        self.shown: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Refuse a key that no file knows."""
        self.shown = key
        return False


def known_hosts_files(chosen: Path | None, configured: object) -> tuple[Path, ...]:
    """Return the files to read.

    Args:
        chosen: by the user's `--known-hosts`.
        configured: what asyncssh made of UserKnownHostsFile and GlobalKnownHostsFile: names, or nothing.
    """
    if chosen is not None:
        return (chosen,)
    if isinstance(configured, (list, tuple)) and configured:
        return tuple(Path(str(name)).expanduser() for name in configured)
    system = Path("/etc/ssh/ssh_known_hosts")
    return (*(Path.home() / name for name in _DEFAULT), system)


def refused_key(target: Target, known: KnownHosts, shown: asyncssh.SSHKey | None, why: str) -> BoardRefused:
    """Return the error of a key that was not accepted: of an unknown host, or another than the known one."""
    finger = f"{shown.get_algorithm()} {shown.get_fingerprint()}" if shown is not None else "no key of a known kind"
    file = known.files[0]
    if re.search("revoked", why):
        return BoardRefused(f"the host key of {target.host} is revoked in {file}", hint="ask who revoked it")
    if known.knows:
        return BoardRefused(
            f"the host key of {target.host} is not the one in {file}: it shows {finger}. Either the board was set up "
            "anew, or somebody else answers in its place",
            hint=f"only if you know why: ssh-keygen -R {shlex.quote(target.known_as)} -f {shlex.quote(str(file))}, "
            "then deploy says how to know the new one",
        )
    port = f"-p {target.port} " if target.port not in (0, 22) else ""
    return BoardRefused(
        f"the host key of {target.host} is not known: it shows {finger}",
        hint="compare it with the board's own (there: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then: "
        f"{target.ssh} once, or: ssh-keyscan {port}{shlex.quote(target.host)} >> {shlex.quote(str(file))}",
    )
