"""Where state, configuration and caches live (XDG base directories)."""

from __future__ import annotations

import os
from pathlib import Path

from quarl_device.errors import UsageError

_APP = "quarl-edge"


def _base(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification says to ignore a relative path.
    if value.startswith("/"):
        return Path(value)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise UsageError("this user has no home directory", hint=f"set HOME, or {variable}") from error
    if os.environ.get("HOME") == "":
        # Python takes an empty one for the root of the file system.
        raise UsageError("HOME is empty", hint=f"set HOME, or {variable}")
    return home / fallback


def config_dir() -> Path:
    """Return the configuration directory (the learner's key, device.toml of an unprivileged user)."""
    return _base("XDG_CONFIG_HOME", ".config") / _APP


def cache_dir() -> Path:
    """Return the cache directory."""
    return _base("XDG_CACHE_HOME", ".cache") / _APP


def state_dir() -> Path:
    """Return the device's state directory: /var/lib/quarl-edge where it is writable, else the user's own."""
    system = Path("/var/lib") / _APP
    if system.is_dir() and os.access(system, os.W_OK):
        return system
    return _base("XDG_STATE_HOME", ".local/state") / _APP
