"""Bundles, boards and installations that the installer's tests share."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime

from quarl_device.errors import InstallFailed
from quarl_device.install import layout
from quarl_device.install.facts import Facts
from quarl_device.install.found import linked_release
from quarl_device.install.installing import install
from quarl_device.install.wanted import Order
from quarl_device.testing.install_host import FakeHost, Killed

WHEEL = "quarl_edge_device-0.1.0-py3-none-any.whl"
BOARD = Facts(
    machine="aarch64",
    system="Debian GNU/Linux 12 (bookworm)",
    python=(3, 11, 2),
    interpreter="/usr/bin/python3",
    has_venv=True,
    has_ensurepip=False,
    free_bytes=2**33,
    now=datetime(2026, 12, 1, tzinfo=UTC),
    systemd=True,
    root=True,
    own_system=True,
)
FILES = {
    WHEEL: b"wheel 1",
    "wheels/pip-26.0-py3-none-any.whl": b"pip",
    "wheels/numpy-2.0.0-cp311-cp311-manylinux_2_27_aarch64.whl": b"numpy",
    "device.toml": b'mode = "train"\n',
    "credentials/client.key": b"secret key",
    "credentials/ca.crt": b"authority",
    "password": b"secret password",
    "learner.pub": b"public",
}
NEWER = {**FILES, WHEEL: b"wheel 2", "device.toml": b'mode = "deploy"\n', "policy.qpol": b"a policy"}


def make_bundle(folder, files=FILES, **listed):
    """Return a bundle's directory; `listed` is put into bundle.json in place of what belongs there."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    said = {"schema": "quarl.bundle.v1", "files": digests, **listed}
    (folder / "bundle.json").write_text(json.dumps(said))
    return folder


def run(bundle, host, *, facts=BOARD, order=None, dry_run=False, events=None):
    heard = [] if events is None else events
    return install(
        bundle,
        host,
        facts,
        order or Order(),
        dry_run=dry_run,
        tell=lambda step, state, said: heard.append((step, state, said)),
    )


class At:
    """Lets so many changes happen, then does something else in place of the next one."""

    def __init__(self, number, act, *, forever=False):
        self.left, self.act, self.forever, self.met = number, act, forever, ""

    def __call__(self, what):
        self.left -= 1
        if self.left == -1 or (self.forever and self.left < 0):
            self.met = self.met or what
            self.act(what)


def fail(what):
    raise InstallFailed(f"{what}: no space left on device")


def kill(_):
    raise Killed


def count(host, act):
    """Return how many changes an action makes."""
    seen = []
    host.before = seen.append
    act()
    host.before = lambda _: None
    return len(seen)


def installed(host):
    """Return what a board acts with, whatever else lies there: release, configuration, unit, the agent that runs."""
    return {
        "current": linked_release(host, layout.CURRENT),
        "files": {
            path: (node.data, node.mode, node.owner)
            for path, node in host.nodes.items()
            if path.startswith(("/etc/",)) and node.kind == "file"
        },
        "life": host.life,
        "enabled": host.enabled,
    }


def board(**changes):
    return replace(BOARD, **changes)


def fresh():
    return FakeHost()
