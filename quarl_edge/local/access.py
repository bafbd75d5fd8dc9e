"""Brokers as a run on this machine meets them: the embedded one, or the user's own with a password or credentials."""

from __future__ import annotations

import contextlib
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quarl_device.errors import CredentialsError, UsageError
from quarl_device.link import BrokerURL
from quarl_device.link.credentials import Credentials
from quarl_edge.broker import EmbeddedBroker

LEARNER_NAME = "learner"


@dataclass(frozen=True, kw_only=True)
class BrokerAccess:
    """A broker, and how the learner and the actors of this machine log in.

    Attributes:
        url: as the learner uses it, its user included.
        passwords: by user; a user that is missing connects without one.
        actors: device names of the local actors.
        embedded: whether the broker is ours and ends with the run. Ours knows every actor by name; on the user's own
            they log in as the learner does.
        client_id: of the learner, "" for a random one per connection.
        tls: of the learner, `None` without credentials.
        actor_credentials: of the local actors, by name; empty without.
        check: raises where ours has ended.
    """

    url: BrokerURL
    passwords: Mapping[str, str]
    actors: tuple[str, ...]
    embedded: bool
    client_id: str = ""
    tls: ssl.SSLContext | None = None
    actor_credentials: Mapping[str, Path] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None

    @property
    def password(self) -> str | None:
        """The learner's."""
        return self.passwords.get(self.url.user)

    def actor_url(self, name: str) -> BrokerURL:
        """Return the URL for local actor `name`."""
        return replace(self.url, user=name) if self.embedded else self.url

    def join_hint(self, fleet: str) -> str:
        """Return the command by which a device elsewhere joins, under a user of its own."""
        if self.tls is not None:
            return f"quarl-edge enroll NAME --fleet {fleet}, then on the board: quarl-device run --credentials NAME"
        user = "NAME" if self.url.user else ""
        return f"quarl-device run --broker {replace(self.url, user=user)} --fleet {fleet} --id NAME"


def actor_names(count: int) -> tuple[str, ...]:
    """Return the device names of local actors."""
    return tuple(f"actor-{index}" for index in range(count))


@dataclass(frozen=True, kw_only=True)
class Login:
    """How the learner and its local actors log in at a broker of the user's.

    Attributes:
        password: of the URL's user; never shown.
        credentials: of the learner.
        actor_credentials: directory with a directory of credentials per local actor.
    """

    password: str | None = field(default=None, repr=False)
    credentials: Credentials | None = None
    actor_credentials: Path | None = None


@contextlib.contextmanager
def open_broker(broker: str, *, actors: int, login: Login, fleet: str, log_dir: Path) -> Iterator[BrokerAccess]:
    """Start the embedded broker, or point at the user's own.

    Args:
        broker: "embedded" or a URL.
        actors: how many local actors there will be.
        login: for a broker of the user's.
        fleet: that the actors join.
        log_dir: where the embedded broker logs.

    Raises:
        UsageError: a bad URL, or too few credentials for the local actors.
        CredentialsError: see `Credentials.load`.
        BrokerStartFailed: the embedded broker did not come up.
    """
    if broker == "embedded":
        names = actor_names(actors)
        words = {name: secrets.token_urlsafe(24) for name in (LEARNER_NAME, *names)}
        with EmbeddedBroker(words, log_dir=log_dir) as started:
            url = replace(BrokerURL.parse(started.url), user=LEARNER_NAME)
            yield BrokerAccess(url=url, passwords=words, actors=names, embedded=True, check=started.check)
        return
    if login.credentials is not None:
        held = local_credentials(login.actor_credentials, actors, fleet=fleet)
        yield BrokerAccess(
            url=login.credentials.broker_or(broker),
            passwords={},
            actors=tuple(held),
            embedded=False,
            client_id=login.credentials.name,
            tls=login.credentials.tls(),
            actor_credentials=held,
        )
        return
    url = BrokerURL.parse(broker)
    if login.password and not url.user:
        url = replace(url, user=LEARNER_NAME)
    yield BrokerAccess(
        url=url,
        passwords={url.user: login.password} if login.password else {},
        actors=actor_names(actors),
        embedded=False,
    )


def local_credentials(folder: Path | None, count: int, *, fleet: str) -> dict[str, Path]:
    """Return the credentials of `count` local actors, by name: the first devices of a fleet in `folder`.

    Args:
        folder: with a directory of credentials each, or `None`.
        count: of actors.
        fleet: that they join.

    Raises:
        UsageError: there are fewer.
        CredentialsError: `folder` cannot be read.
    """
    found: dict[str, Path] = {}
    hint = f"--actors 0, or: quarl-edge enroll actor-0 --fleet {fleet}, ... and --actor-credentials broker/clients"
    if count and folder is None:
        raise UsageError("local actors need credentials of their own at this broker", hint=hint)
    if not count or folder is None:
        return found
    try:
        places = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise CredentialsError(f"credentials of the local actors: {folder}: {error.strerror}") from error
    for place in places:
        held = Credentials.load(place) if len(found) < count else None
        if held is not None and held.role == "device" and held.fleet == fleet:
            found[held.name] = place
    if len(found) < count:
        raise UsageError(f"{folder} has credentials of {len(found)} devices of fleet {fleet!r}, not {count}", hint=hint)
    return found
