"""How a broker is named: `mqtt[s]://[user@]host[:port]`, the password elsewhere."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from quarl_device.errors import UsageError
from quarl_device.files import read_capped
from quarl_device.names import PASSWORD_VARIABLE

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_FORM = "mqtt[s]://[user@]host[:port]"
_MAX_PASSWORD_BYTES = 4096
# Anything before the last "@" may hold a password, whatever is wrong with the rest; a message must never repeat it.
_USERINFO = re.compile(r"\A(mqtts?://)?.*@", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class BrokerURL:
    """A broker's address.

    Attributes:
        host: name or address, without brackets.
        port: TCP port.
        user: user name, "" for none.
        tls: whether to speak TLS.
    """

    host: str
    port: int = 1883
    user: str = ""
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> BrokerURL:
        """Read a URL.

        Raises:
            UsageError: another scheme, no host, a bad port, a path, or a password, which belongs elsewhere.
        """
        shown = _USERINFO.sub(r"\1...@", text)[:200]
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"bad broker URL {shown!r}: expected {_FORM}") from (None if "@" in text else error)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise UsageError(f"bad broker URL {shown!r}: expected {_FORM}")
        if parts.password is not None:
            raise UsageError(
                f"broker URL {shown!r} holds a password", hint=f"put it into {PASSWORD_VARIABLE} or use --password-file"
            )
        if parts.path not in ("", "/") or parts.query or parts.fragment or port == 0:
            raise UsageError(f"bad broker URL {shown!r}: expected {_FORM} and no more")
        return cls(
            host=parts.hostname,
            port=port or _PORTS[parts.scheme],
            user=unquote(parts.username or ""),
            tls=parts.scheme == "mqtts",
        )

    @property
    def address(self) -> str:
        """`host:port`, for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        return f"mqtt{'s' if self.tls else ''}://{user}{self.address}"


def read_password(file: Path | None = None) -> str | None:
    """Return the broker password: from `file` if given, else from the environment, else `None`.

    Args:
        file: its content without a trailing newline is the password.

    Raises:
        UsageError: the file is missing, unreadable, empty or not UTF-8.
    """
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE) or None
    data = read_capped(file, cap_bytes=_MAX_PASSWORD_BYTES, error=UsageError, what="password file")
    try:
        password = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"password file is not UTF-8: {file}") from None
    if not password:
        raise UsageError(f"password file is empty: {file}")
    return password
