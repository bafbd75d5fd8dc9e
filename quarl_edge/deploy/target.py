"""How a board is named: `[user@]host`, and where its SSH server listens."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from quarl_device.errors import UsageError

# No leading dash: a name must never be an option of a command that is shown to be typed.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f:]+(?:%[A-Za-z0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A board.

    Attributes:
        host: name, address, or an alias of the user's SSH configuration.
        user: "" leaves it to the SSH configuration.
        port: of its SSH server; 0 leaves it to the SSH configuration.
    """

    host: str
    user: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str, *, port: int = 0) -> Target:
        """Read `[user@]host`.

        Args:
            text: as typed; an IPv6 address may stand in brackets.
            port: 1..65535, or 0.

        Raises:
            UsageError: no such form; a port belongs into its own option.
        """
        user, at, host = text.rpartition("@")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if (at and not _USER.fullmatch(user)) or not _HOST.fullmatch(host):
            raise UsageError(f"bad board {text[:80]!r}: expected user@host", hint="a port is given by --port N")
        return cls(host=host, user=user, port=port)

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def ssh(self) -> str:
        """The `ssh` command that reaches it, for messages."""
        return f"ssh {f'-p {self.port} ' if self.port else ''}{shlex.quote(str(self))}"

    @property
    def known_as(self) -> str:
        """Its name in a file of known hosts."""
        return f"[{self.host}]:{self.port}" if self.port not in (0, 22) else self.host
