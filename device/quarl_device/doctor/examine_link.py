"""The order of things on the way to the broker: credentials, certificate, login, rules, packets, learner."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from quarl_device.actor.joining import Joining, how_to_join
from quarl_device.deploy.occupied import is_occupied
from quarl_device.doctor.attempt import looked
from quarl_device.doctor.finding import Finding, of_error, ok, warning
from quarl_device.doctor.link_checks import (
    check_broker,
    check_certificate,
    check_learner,
    check_modes,
    check_own_certificate,
    check_packets,
    check_rules,
)
from quarl_device.doctor.link_readings import read_certificate, read_link, read_modes, read_own_certificate
from quarl_device.errors import CredentialsError
from quarl_device.files import is_there
from quarl_device.link.credentials import named_folder
from quarl_device.spool.directory import is_in_use, spool_of

if TYPE_CHECKING:
    from quarl_device.doctor.examine import Questions


def examine_link(questions: Questions, state: Path) -> Iterator[Finding]:
    """Yield what is found on the way to the broker.

    Raises:
        UsageError: a bad URL, name or password file, or a word against the credentials'.
    """
    folder = named_folder(questions.credentials)
    if folder is None and not questions.broker:
        yield ok("broker", "not asked: --broker URL or --credentials DIR names one")
        return
    if folder is not None:
        yield from looked("credentials", lambda: _modes(folder))
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
    if folder is not None:
        yield from looked(
            "credentials", lambda: [check_own_certificate(read_own_certificate(folder), datetime.now(UTC))]
        )
    yield from _link(joining, state)


def _modes(folder: Path) -> Iterator[Finding]:
    if is_there(folder):
        yield check_modes(str(folder), read_modes(folder))


def _link(joining: Joining, state: Path) -> Iterator[Finding]:
    spool = spool_of(state, fleet=joining.fleet, device=joining.name)
    if joining.tls is not None and (is_in_use(spool) or is_occupied(state)):
        yield warning(
            "broker",
            f"not asked: an agent runs here as {joining.name!r}, and a second login would end its session",
            "its own log tells; or stop it, and ask again: sudo systemctl stop quarl-device",
        )
        return
    if joining.url.tls:
        yield from looked("certificate", lambda: [check_certificate(read_certificate(joining.url), datetime.now(UTC))])
    link = read_link(joining)
    yield check_broker(link)
    if link.error is None:
        yield check_rules(link)
        if link.own == "came back":
            yield check_packets(link)
        yield check_learner(link, joining.fleet)
