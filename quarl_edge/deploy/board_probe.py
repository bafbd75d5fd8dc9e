"""What a board says of itself. This file is sent as it is and run by the board's own python3, of any version since 3.6.

It prints one JSON object. What cannot be told is null. Nothing is changed; it needs the standard library alone.
"""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from typing import Any


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            return file.read(4096).strip("\0\n ")
    except OSError:
        return ""


def _free(path: str) -> int:
    while not os.path.isdir(path):  # noqa: PTH112
        path = os.path.dirname(path)  # noqa: PTH120
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _os_name() -> str:
    for line in _text("/etc/os-release").split("\n"):
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip('"')
    return platform.system()


def _glibc() -> Any:
    try:
        version = ctypes.CDLL(None).gnu_get_libc_version
        version.restype = ctypes.c_char_p
        return version().decode()
    except (OSError, AttributeError):
        return None


def _temperature_c() -> Any:
    zones = "/sys/class/thermal"
    found = []
    for zone in os.listdir(zones) if os.path.isdir(zones) else []:  # noqa: PTH112, PTH208
        said = _text(zones + "/" + zone + "/temp")
        if said.lstrip("-").isdigit():
            found.append(int(said) / 1000.0)
    return max(found) if found else None


def _throttled() -> Any:
    try:
        said = subprocess.check_output(["vcgencmd", "get_throttled"], stderr=subprocess.DEVNULL, timeout=5).decode()
        return int(said.strip().partition("=")[2], 16)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _pip() -> Any:
    try:
        import pip

        return pip.__version__
    except Exception:  # a broken pip can raise anything
        return None


def _ensurepip() -> bool:
    try:
        import ensurepip
        import venv

        return bool(ensurepip and venv)
    except Exception:
        return False


def probe() -> Any:
    """Return all of it, JSON values alone."""
    home = os.path.expanduser("~")  # noqa: PTH111
    return {
        "schema": 1,
        "machine": platform.machine(),
        "bits": 64 if sys.maxsize > 2**32 else 32,
        "system": platform.system(),
        "os_name": _os_name(),
        "model": _text("/proc/device-tree/model"),
        "glibc": _glibc(),
        "python": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "pip": _pip(),
        "ensurepip": _ensurepip(),
        "free_bytes": _free("/opt/quarl-edge"),
        "home_free_bytes": _free(home),
        "home": home,
        "uid": os.getuid(),
        "sudo": shutil.which("sudo") is not None,
        "systemd": os.path.isdir("/run/systemd/system"),  # noqa: PTH112
        "unix_s": time.time(),
        "temperature_c": _temperature_c(),
        "throttled": _throttled(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe()) + "\n")
