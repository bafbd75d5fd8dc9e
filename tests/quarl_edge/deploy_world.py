"""A board for tests: a home with programs of its own, and a wheel whose installer speaks as the real one does."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from local_host import LocalHost

from quarl_device.wire.messages import DeviceState
from quarl_edge.deploy.installer import Order
from quarl_edge.deploy.settings import DeviceSettings
from quarl_edge.deploy.target import Target
from quarl_edge.deploy.wish import Wish

WHEEL = "quarl_edge_device-0.1.0-py3-none-any.whl"
BEFORE, AFTER = "0" * 16, "1" * 16
METADATA = """Metadata-Version: 2.3
Name: quarl-edge-device
Version: 0.1.0
Provides-Extra: box2d
Requires-Dist: paho-mqtt<3,>=2.2
Requires-Dist: numpy>=1.24
Requires-Dist: ai-edge-litert>=1.2; platform_machine != 'armv7l'
Requires-Dist: tflite-runtime>=2.14; platform_machine == 'armv7l' and python_version < '3.12'
Requires-Dist: gymnasium[box2d]; extra == 'box2d'
"""
# Checks the bundle, keeps what it was given, and says what `script` in the home directory has it say.
INSTALLER = """
import hashlib, json, os, pathlib, shutil, sys
home, words = pathlib.Path(os.environ["HOME"]), sys.argv[1:]
(home / "words.json").write_text(json.dumps(words))
def say(**what): print(json.dumps(what), flush=True)
script = home / "script"
if "--remove" in words:
    say(step="unit", state="undone", said="quarl-device.service")
    say(result="removed", release=None, previous=None, step=None, code=0, error="", supervised_by="systemd", command="")
    sys.exit(0)
place = pathlib.Path(words[0])
listed = json.loads((place / "bundle.json").read_text())["files"]
found = {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()} - {"bundle.json"}
assert found == set(listed), found ^ set(listed)
for name, digest in listed.items():
    assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest, name
(home / "modes.json").write_text(json.dumps({n: oct((place / n).stat().st_mode & 0o777) for n in listed}))
shutil.copytree(place, home / "installed", dirs_exist_ok=True)
if script.exists():
    exec(script.read_text())
    sys.exit(0)
plan = "--dry-run" in words
for step in ("user", "venv", "files", "start"):
    say(step=step, state="planned" if plan else "done", said=step + " is there")
say(result="planned" if plan else "installed", release="abcdef012345", previous=None, step=None, code=0, error="",
    supervised_by="systemd", command="quarl-device run")
"""


def make_wheel(
    folder: Path, name: str = WHEEL, metadata: str = METADATA, modules: dict[str, str] | None = None
) -> Path:
    """Write a wheel; by default that of the device, with an installer for tests."""
    if modules is None:
        modules = {"quarl_device/__init__.py": "", "quarl_device/install/__main__.py": INSTALLER}
        modules["quarl_device/install/__init__.py"] = ""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    stem = "-".join(name.split("-")[:2])
    with zipfile.ZipFile(path, "w") as archive:
        for module, text in modules.items():
            archive.writestr(module, text)
        archive.writestr(f"{stem}.dist-info/METADATA", metadata)
    return path


def make_environment(folder: Path) -> dict[str, str]:
    """Make a board's home and programs."""
    home, programs = folder / "home", folder / "bin"
    home.mkdir(parents=True)
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    sudo = programs / "sudo"
    sudo.write_text('#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n')
    sudo.chmod(0o755)
    return {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8"}


def make_wish(host: LocalHost, folder: Path, **changed) -> Wish:
    """Return a deployment in mode train onto a host."""

    async def connect() -> LocalHost:
        return host

    chosen = {
        "target": Target.parse("tester@board"),
        "connect": connect,
        "order": Order(),
        "settings": DeviceSettings(mode="train", fleet="lab", name="pi-1", broker="mqtt://broker.local:1883"),
        "wheelhouse": "never",
        "cache": folder / "cache",
        "timeout_s": 20.0,
    }
    return Wish(**{**chosen, **changed})


def state(boot_id: str = AFTER, **changed) -> bytes:
    """Return a birth of the device."""
    chosen = {"status": "online", "device": "pi-1", "boot_id": boot_id}
    return DeviceState(**{**chosen, **changed}).encode()
