"""How a device joins a fleet: what its command line says, what its credentials say, and where the two must agree."""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass, replace
from pathlib import Path

from quarl_device.errors import UsageError
from quarl_device.link import BrokerURL, read_password
from quarl_device.link.credentials import Credentials, find_credentials
from quarl_device.names import DEFAULT_FLEET, check_name, default_device_name


@dataclass(frozen=True, kw_only=True)
class Joining:
    """Where a device connects, as whom. The password never shows in `repr`.

    Attributes:
        url: of the broker.
        fleet: to join.
        name: of the device.
        client_id: towards the broker.
        password: of the URL's user, `None` for none.
        tls: `None` where the URL has none, or the system's certificates are trusted.
        learner_key: the only key to trust, `None` to pin the first that is met.
    """

    url: BrokerURL
    fleet: str
    name: str
    client_id: str
    password: str | None
    tls: ssl.SSLContext | None
    learner_key: Path | None

    def __repr__(self) -> str:
        return f"Joining({self.url}, fleet={self.fleet!r}, name={self.name!r})"


def joining_of(options: argparse.Namespace) -> Joining:
    """Return how the command line of `quarl-device run` joins; raises what `how_to_join` does."""
    return how_to_join(
        broker=options.broker,
        fleet=options.fleet,
        name=options.id,
        password_file=options.password_file,
        credentials=options.credentials,
        learner_key=options.learner_key,
    )


def how_to_join(
    *,
    broker: str = "",
    fleet: str = "",
    name: str = "",
    password_file: Path | None = None,
    credentials: Path | None = None,
    learner_key: Path | None = None,
) -> Joining:
    """Put together what was given; "" and `None` where nothing was.

    Raises:
        UsageError: no broker, a bad URL or name, or a word against the credentials'.
        CredentialsError: see `Credentials.load`.
    """
    held = find_credentials(credentials)
    if held is not None:
        return _with(held, broker=broker, fleet=fleet, name=name, learner_key=learner_key)
    if not broker:
        raise UsageError("which broker?", hint="--broker mqtt[s]://[user@]host[:port], or --credentials DIR")
    url = BrokerURL.parse(broker)
    name = check_name(name or url.user or default_device_name(), kind="device")
    fleet = check_name(fleet or DEFAULT_FLEET, kind="fleet")
    password = read_password(password_file)
    if password is not None and not url.user:
        url = replace(url, user=name)
    return Joining(
        url=url,
        fleet=fleet,
        name=name,
        # With the fleet, or two devices of one name in two fleets would throw each other off one broker.
        client_id=f"{fleet}.{name}",
        password=password,
        tls=None,
        learner_key=learner_key,
    )


def _with(held: Credentials, *, broker: str, fleet: str, name: str, learner_key: Path | None) -> Joining:
    if held.role != "device":
        raise UsageError(f"{held.name!r} is enrolled as a {held.role}, not as a device", hint="quarl-edge enroll NAME")
    if name not in ("", held.name):
        raise UsageError(f"--id {name[:80]!r}: the credentials are those of {held.name!r}", hint="leave --id out")
    return Joining(
        url=held.broker_or(broker),
        fleet=held.fleet_or(fleet, default=DEFAULT_FLEET),
        name=held.name,
        # A broker that takes it from the certificate would say the same.
        client_id=held.name,
        password=None,
        tls=held.tls(),
        learner_key=learner_key or held.learner_key,
    )
