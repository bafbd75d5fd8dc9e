"""The order of things: read, judge, next; what cannot be read is a finding too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from quarl_device.actor.joining import Joining, how_to_join
from quarl_device.delegate_spec import DelegateSpec
from quarl_device.doctor.finding import Finding, of_error, ok, warning
from quarl_device.doctor.host_checks import check_clock, check_disk, check_glibc, check_python, check_writable
from quarl_device.doctor.host_readings import read_built, read_disk, read_glibc, read_needed_glibc
from quarl_device.doctor.link_checks import (
    check_broker,
    check_certificate,
    check_learner,
    check_modes,
    check_packets,
    check_rules,
)
from quarl_device.doctor.link_readings import agent_runs, read_certificate, read_link, read_modes
from quarl_device.doctor.runtime_checks import check_delegate, check_environment, check_numpy, check_runtimes
from quarl_device.doctor.runtime_readings import (
    read_corals,
    read_environment,
    read_numpy,
    read_runtimes,
    try_delegate,
)
from quarl_device.errors import CredentialsError
from quarl_device.link.credentials import CREDENTIALS_VARIABLE
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

    @property
    def folder(self) -> Path | None:
        """The directory of credentials that will be used."""
        named = os.environ.get(CREDENTIALS_VARIABLE, "")
        return self.credentials or (Path(named) if named else None)


def examine(questions: Questions) -> Iterator[Finding]:
    """Yield what is found, in the order in which things depend on each other.

    Raises:
        UsageError: a bad URL, name or password file, or a word against the credentials'.
    """
    state = questions.state or state_dir()
    yield from _host(state)
    yield from _runtimes(questions)
    yield from _broker(questions, state)


def _host(state: Path) -> Iterator[Finding]:
    yield check_clock(datetime.now(UTC), read_built())
    yield check_python(sys.version_info[:3])
    disk = read_disk(state)
    yield check_disk(disk)
    yield check_writable(disk)


def _runtimes(questions: Questions) -> Iterator[Finding]:
    probes = read_runtimes()
    installed = [probe.runtime for probe in probes if probe.version]
    yield check_glibc(read_glibc(), read_needed_glibc(installed))
    yield check_numpy(read_numpy(), installed)
    yield from check_runtimes(probes)
    corals = read_corals()
    spec, fault = try_delegate(questions.delegate, corals, probes)
    yield check_delegate(spec, corals, fault, asked=questions.delegate is not None)
    if questions.env_id:
        yield check_environment(questions.env_id, read_environment(questions.env_id))


def _broker(questions: Questions, state: Path) -> Iterator[Finding]:
    folder = questions.folder
    if folder is None and not questions.broker:
        yield ok("broker", "not asked: --broker URL or --credentials DIR names one")
        return
    if folder is not None and folder.is_dir():
        yield check_modes(str(folder), read_modes(folder))
    try:
        joining = how_to_join(
            broker=questions.broker,
            fleet=questions.fleet,
            name=questions.name,
            password_file=questions.password_file,
            credentials=questions.credentials,
        )
    except CredentialsError as error:
        yield of_error("credentials", error)
        return
    yield from _link(joining, state)


def _link(joining: Joining, state: Path) -> Iterator[Finding]:
    if joining.tls is not None and agent_runs(state, joining):
        yield warning(
            "broker",
            f"not asked: an agent runs here as {joining.name!r}, and a second login would end its session",
            "its own log tells; or stop it, and ask again: sudo systemctl stop quarl-device",
        )
        return
    if joining.url.tls and (certificate := read_certificate(joining.url)) is not None:
        yield check_certificate(certificate, datetime.now(UTC))
    link = read_link(joining)
    yield check_broker(link)
    if link.error is None:
        yield check_rules(link)
        if link.own_came_back:
            yield check_packets(link)
        yield check_learner(link, joining.fleet)
