"""The order of things: read, judge, next; what cannot be read is a finding too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from quarl_device.board.processor import read_processor
from quarl_device.delegate_spec import DelegateSpec
from quarl_device.doctor.attempt import attempt, looked
from quarl_device.doctor.finding import Finding
from quarl_device.doctor.host_checks import check_clock, check_disk, check_glibc, check_python, check_writable
from quarl_device.doctor.host_readings import read_built, read_disk, read_glibc, read_needed_glibc
from quarl_device.doctor.runtime_checks import check_delegate, check_environment, check_numpy, check_runtimes
from quarl_device.doctor.runtime_readings import (
    read_corals,
    read_environment,
    read_numpy,
    read_runtimes,
    try_delegate,
)
from quarl_device.inspect.probe import Probe
from quarl_device.paths import state_dir


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What to look at besides the board itself.

    Attributes:
        broker: its URL, "" for that of the credentials.
        fleet: "" for the default or that of the credentials.
        name: of the device, likewise.
        password_file: `None` for the environment's.
        credentials: their directory, `None` for QUARL_CREDENTIALS.
        env_id: an environment, "" for none.
        state: directory, `None` for the default.
        delegate: to try, `None` for any that is seen.
    """

    broker: str = ""
    fleet: str = ""
    name: str = ""
    password_file: Path | None = None
    credentials: Path | None = None
    env_id: str = ""
    state: Path | None = None
    delegate: DelegateSpec | None = None


def examine(questions: Questions) -> Iterator[Finding]:
    """Yield what is found, in the order in which things depend on each other.

    Raises:
        UsageError: a bad URL, name or password file, or a word against the credentials'.
    """
    state = questions.state or state_dir()
    yield from _host(state)
    yield from _runtimes(questions)
    yield from looked("broker", lambda: _link(questions, state))


def _host(state: Path) -> Iterator[Finding]:
    yield from looked("clock", lambda: [check_clock(datetime.now(UTC), read_built())])
    yield check_python(sys.version_info[:3], processor=read_processor())
    disk, unread = attempt("disk", lambda: read_disk(state), None)
    yield from unread if disk is None else (check_disk(disk), check_writable(disk))


def _runtimes(questions: Questions) -> Iterator[Finding]:
    probes, unread = attempt("runtime", read_runtimes, list[Probe]())
    installed = [probe.runtime for probe in probes if probe.version]
    yield from looked("glibc", lambda: [check_glibc(read_glibc(), read_needed_glibc(installed))])
    yield from looked("numpy", lambda: [check_numpy(read_numpy(), installed)])
    yield from unread or check_runtimes(probes)
    yield from looked("delegate", lambda: _delegate(questions, probes))
    if env_id := questions.env_id:
        yield from looked("environment", lambda: [check_environment(env_id, read_environment(env_id))])


def _delegate(questions: Questions, probes: list[Probe]) -> Iterator[Finding]:
    corals = read_corals()
    spec, fault = try_delegate(questions.delegate, corals, probes)
    yield check_delegate(spec, corals, fault, asked=questions.delegate is not None)


def _link(questions: Questions, state: Path) -> Iterator[Finding]:
    # Imported here: the way to the broker needs wheels with native code, which may be what is broken.
    from quarl_device.doctor.examine_link import examine_link

    yield from examine_link(questions, state)
