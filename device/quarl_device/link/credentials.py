"""What an enrolled client connects with: a directory of its key, its certificate, and whom it trusts.

`quarl-edge enroll` makes it, `--credentials DIR` (or QUARL_CREDENTIALS) names it:

==================  ============================================================================================
`credentials.toml`  name, role, fleet and broker
`client.key`        private key, PEM, mode 0600
`client.crt`        certificate, PEM; its common name is the client's name
`ca.crt`            the authority that the broker's certificate must come from, PEM
`learner.pub`       the learner's public key, which devices trust; a learner's own, to be handed to them
`signing.key`       the learner's signing key, mode 0600, for learners
==================  ============================================================================================
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import ssl
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from quarl_device.errors import BrokerUnreachable, CredentialsError, UsageError
from quarl_device.files import is_there, read_capped
from quarl_device.link.url import BrokerURL
from quarl_device.names import check_name

_log = logging.getLogger(__name__)
CREDENTIALS_VARIABLE = "QUARL_CREDENTIALS"
SCHEMA = "quarl.credentials.v1"
ROLES = ("device", "learner", "controller", "viewer")
TOML_FILE, KEY_FILE, CERTIFICATE_FILE, CA_FILE = "credentials.toml", "client.key", "client.crt", "ca.crt"
LEARNER_PUBLIC_FILE, SIGNING_KEY_FILE = "learner.pub", "signing.key"
_MAX_FILE_BYTES = 64 * 1024
_WARN_BEFORE = timedelta(days=30)
_FIELDS = {"schema", "name", "role", "fleet", "broker"}


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """One enrolled client. Holds no secret itself: the key stays in its file.

    Attributes:
        folder: where the files are.
        name: client id, user name and common name.
        role: one of `ROLES`.
        fleet: that the client was enrolled in, "" for every fleet.
        broker: where to connect.
        expires: when the certificate ends.
    """

    folder: Path
    name: str
    role: str
    fleet: str
    broker: BrokerURL
    expires: datetime

    @classmethod
    def load(cls, folder: Path, *, now: datetime | None = None) -> Credentials:
        """Read and check a directory.

        Args:
            folder: that `quarl-edge enroll` made.
            now: this host's clock by default.

        Raises:
            CredentialsError: something is missing, damaged, expired, not yet valid, or the key is open to others.
        """
        if not is_there(folder):
            raise CredentialsError(f"no such directory of credentials: {folder}", hint="quarl-edge enroll makes one")
        said = _read_toml(folder / TOML_FILE)
        check_private(folder / KEY_FILE)
        certificate = _read_certificate(folder / CERTIFICATE_FILE)
        common_names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if [attribute.value for attribute in common_names] != [said["name"]]:
            raise CredentialsError(f"the certificate in {folder} is not that of {said['name']!r}")
        _check_time(certificate, folder, now or datetime.now(UTC))
        return cls(
            folder=folder,
            name=said["name"],
            role=said["role"],
            fleet=said["fleet"],
            broker=BrokerURL.parse(said["broker"]),
            expires=certificate.not_valid_after_utc,
        )

    @property
    def learner_key(self) -> Path | None:
        """The file with the learner's public key, if it came along."""
        path = self.folder / LEARNER_PUBLIC_FILE
        return path if is_there(path) else None

    @property
    def signing_key(self) -> Path | None:
        """The file with a learner's signing key, if it came along."""
        path = self.folder / SIGNING_KEY_FILE
        return path if is_there(path) else None

    def tls(self) -> ssl.SSLContext:
        """Return a context that shows this client's certificate and trusts its authority alone, from TLS 1.2 on.

        Raises:
            CredentialsError: key, certificate or authority do not hold together.
        """
        return tls_context(self.folder)

    def fleet_or(self, asked: str, *, default: str) -> str:
        """Return the fleet to serve: that of these credentials, or `asked` where they are for every fleet.

        Args:
            asked: by the user; "" for nothing.
            default: where neither says anything.

        Raises:
            UsageError: asked for another fleet than the enrolled one; the broker would deny every topic of it.
        """
        if asked and self.fleet and asked != self.fleet:
            raise UsageError(
                f"{self.name!r} is enrolled in fleet {self.fleet!r}, not {asked!r}",
                hint=f"quarl-edge enroll NAME --fleet {asked}",
            )
        return asked or self.fleet or default

    def broker_or(self, asked: str) -> BrokerURL:
        """Return the broker to meet: `asked`, or that of these credentials where it is "".

        Raises:
            UsageError: a bad URL, or one without TLS, or another user than these credentials'.
        """
        url = BrokerURL.parse(asked) if asked else self.broker
        if not url.tls:
            raise UsageError(f"credentials need TLS, {url} has none", hint=f"mqtts://{url.address}")
        if url.user not in ("", self.name):
            raise UsageError(f"the broker URL names user {url.user!r}, the credentials are those of {self.name!r}")
        return url


@contextlib.contextmanager
def told_apart(held: Credentials | None, url: BrokerURL | None) -> Iterator[None]:
    """Have an error of a broker that is not the one of the credentials say so, where that is likely the cause."""
    try:
        yield
    except BrokerUnreachable as error:
        if held is not None and url is not None and held.broker.address != url.address:
            error.hint = f"the credentials name {held.broker.address}; --broker names {url.address}"
        raise


def tls_context(folder: Path) -> ssl.SSLContext:
    """Return a context of a folder's key, certificate and authority; see `Credentials.tls`."""
    authority = read_capped(
        folder / CA_FILE, cap_bytes=_MAX_FILE_BYTES, error=CredentialsError, what="certificate authority"
    )
    try:
        # Never `create_default_context`: given an empty text it trusts the system's authorities instead.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=x509.load_pem_x509_certificate(authority).public_bytes(Encoding.DER))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsError(
            f"the credentials in {folder} are damaged: key, certificate and authority do not hold together",
            hint="enroll the client again: quarl-edge enroll NAME --renew",
        ) from error
    return context


def named_folder(folder: Path | None) -> Path | None:
    """Return `folder`, else the one that QUARL_CREDENTIALS names, whether what is in there holds or not."""
    named = os.environ.get(CREDENTIALS_VARIABLE, "")
    return folder or (Path(named) if named else None)


def find_credentials(folder: Path | None) -> Credentials | None:
    """Return the credentials in `folder`, else those that QUARL_CREDENTIALS names, else `None`.

    The last 30 days of a certificate are said in the log: a board that is far away should not end with it.

    Raises:
        CredentialsError: see `Credentials.load`.
    """
    folder = named_folder(folder)
    if folder is None:
        return None
    held = Credentials.load(folder)
    if held.expires - datetime.now(UTC) < _WARN_BEFORE:
        _log.warning(
            "the certificate of %r expires on %s; quarl-edge enroll %s --renew makes another",
            held.name,
            f"{held.expires:%Y-%m-%d}",
            held.name,
        )
    return held


def credentials_toml(*, name: str, role: str, fleet: str, broker: BrokerURL) -> str:
    """Return the text of `credentials.toml`."""
    said = {"schema": SCHEMA, "name": name, "role": role, "fleet": fleet, "broker": str(broker)}
    # JSON's strings of these characters are TOML's.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in said.items())


def check_private(path: Path) -> None:
    """Refuse a key that is missing, or that others may read.

    Raises:
        CredentialsError: see above.
    """
    read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=CredentialsError, what="private key")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise CredentialsError(f"private key {path} is open to others (mode {mode:04o})", hint=f"chmod 600 {path}")


def _read_toml(path: Path) -> dict[str, str]:
    data = read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=CredentialsError, what="credentials")
    try:
        said: dict[str, Any] = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise CredentialsError(f"{path} is not TOML: {error}") from None
    if said.keys() != _FIELDS or not all(isinstance(value, str) for value in said.values()):
        raise CredentialsError(f"{path}: expected exactly the texts {', '.join(sorted(_FIELDS))}")
    if said["schema"] != SCHEMA or said["role"] not in ROLES:
        raise CredentialsError(
            f"{path}: schema {said['schema'][:80]!r}, role {said['role'][:80]!r}: expected {SCHEMA!r} and one of"
            f" {', '.join(ROLES)}",
            hint="written by another version?",
        )
    try:
        check_name(said["name"], kind="device")
        if said["fleet"]:
            check_name(said["fleet"], kind="fleet")
        BrokerURL.parse(said["broker"])
    except UsageError as error:
        raise CredentialsError(f"{path}: {error.message}") from None
    return said


def _read_certificate(path: Path) -> x509.Certificate:
    data = read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=CredentialsError, what="certificate")
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise CredentialsError(f"{path} is no certificate in PEM form") from None


def _check_time(certificate: x509.Certificate, folder: Path, now: datetime) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > ends:
        raise CredentialsError(
            f"the certificate in {folder} expired on {ends:%Y-%m-%d}", hint="quarl-edge enroll NAME --renew"
        )
    # A board without a battery for its clock may think that it is 1970; certificates begin a day early.
    if now < begins - timedelta(minutes=1):
        raise CredentialsError(
            f"the certificate in {folder} begins on {begins:%Y-%m-%d}, and this host's clock says {now:%Y-%m-%d}",
            hint="set the clock: timedatectl set-ntp true",
        )


def _no_password() -> str:
    # Without this an encrypted key would make OpenSSL ask at the terminal.
    raise ValueError("the key is encrypted")
