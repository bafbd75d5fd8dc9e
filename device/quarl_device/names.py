"""Names of fleets and devices, which are also MQTT client ids, user names and certificate CNs."""

from __future__ import annotations

import re
import socket

from quarl_device.errors import UsageError

DEFAULT_FLEET = "default"
PASSWORD_VARIABLE = "QUARL_MQTT_PASSWORD"  # noqa: S105  the name of a variable
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def check_name(name: str, *, kind: str) -> str:
    """Return `name` if it may name a fleet or device.

    Args:
        name: what the user gave.
        kind: "fleet" or "device", for the message.

    Raises:
        UsageError: the name does not match ``[a-z0-9][a-z0-9-]{0,62}``.
    """
    if _NAME.fullmatch(name):
        return name
    raise UsageError(
        f"bad {kind} name {name[:80]!r}: expected 1-63 characters of a-z, 0-9 and '-', starting with a letter or digit",
        hint=f"try {sanitize(name)!r}",
    )


def sanitize(text: str) -> str:
    """Return the nearest allowed name to `text`, or "device" when nothing is left of it."""
    cleaned = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:63].rstrip("-")
    return cleaned or "device"


def default_device_name() -> str:
    """Return this host's name, made into an allowed device name."""
    return sanitize(socket.gethostname())
