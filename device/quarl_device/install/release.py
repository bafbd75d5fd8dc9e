"""Making a release: a virtual environment of its own, tried before anything points at it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from quarl_device.errors import InstallFailed
from quarl_device.install import layout
from quarl_device.install.bundle import Bundle
from quarl_device.install.facts import Facts
from quarl_device.install.found import RECEIPT_SCHEMA
from quarl_device.install.host import Done, Host
from quarl_device.install.wanted import Order, Wanted

_VENV_S = 600.0
_PIP_S = 3_600.0
_TRY_S = 300.0
_SHOWN = ("Processing ", "Collecting ", "Downloading ", "Installing ", "Building ", "Preparing ")


def make_release(
    host: Host, bundle: Bundle, facts: Facts, order: Order, wanted: Wanted, *, tell: Callable[[str], None]
) -> None:
    """Make the wanted release; one that was begun is begun anew.

    It is made at its own place, since a virtual environment's scripts hold its path; its receipt, written last, is what
    makes it one.

    Raises:
        InstallFailed: it could not be made, or does not work.
    """
    path = layout.release_path(wanted.release)
    place = host.place(path)
    python = f"{place}/bin/python"
    host.remove(path)
    host.make_directory(layout.RELEASES)
    _must(host.run(venv_words(facts.interpreter, place, bundle), timeout_s=_VENV_S), "the virtual environment")

    def hear(line: str) -> None:
        if line.strip().startswith(_SHOWN):
            # "Processing ./long/path/of.whl (from what needs it)": the file says it all.
            tell(re.sub(r"(\S*/)(\S+\.whl).*", r"\2", line.strip()))

    _must(host.run(pip_words(python, bundle, order.extras), timeout_s=_PIP_S, hear=hear), "pip")
    tell("tries it: a tiny model in its runtime")
    tried = host.run([python, "-I", "-m", "quarl_device.install.self_test"], timeout_s=_TRY_S, user=wanted.owner)
    _must(tried, "the new release's self-test")
    # A receipt that survives a power cut vouches for files that must have done so before.
    host.sync()
    receipt = {
        "schema": RECEIPT_SCHEMA,
        "release": wanted.release,
        "python": ".".join(map(str, facts.python)),
        "extras": list(order.extras),
        "wheels": dict(bundle.wheels),
    }
    host.write(f"{path}/{layout.RECEIPT}", json.dumps(receipt, indent=1).encode(), mode=0o644)


def venv_words(interpreter: str, place: str, bundle: Bundle) -> list[str]:
    """Return the command that makes the virtual environment; a wheel of pip in the bundle runs as it is."""
    return [interpreter, "-I", "-m", "venv", *(["--without-pip"] if bundle.pip_wheel else []), place]


def pip_words(python: str, bundle: Bundle, extras: tuple[str, ...]) -> list[str]:
    """Return the command that installs; nothing is fetched where the bundle has all that is needed."""
    pip = [f"{bundle.pip_wheel}/pip"] if bundle.pip_wheel else ["-m", "pip"]
    source = ["--no-index", "--find-links", str(bundle.wheelhouse)] if bundle.wheelhouse else ["--prefer-binary"]
    wheel = f"{bundle.wheel}[{','.join(extras)}]" if extras else str(bundle.wheel)
    return [python, "-I", *pip, "install", "--no-input", "--no-cache-dir", *source, wheel]


def _must(done: Done, what: str) -> None:
    if done.code != 0:
        lines = [line.strip() for line in done.said.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise InstallFailed(f"{what} ended with code {done.code}: {' | '.join(errors)[-400:]}")
