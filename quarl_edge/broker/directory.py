"""A broker's directory: authority, broker's certificate, enrolled clients, and what Mosquitto reads.

::

    broker/
    ├── ca.key, ca.crt            the authority; the key may be kept elsewhere while nobody is enrolled or revoked
    ├── enrolled.json             every certificate ever issued
    ├── server.pem                the broker's own key and certificate, in one file so that they fit; owned by its user
    ├── replacing                 a new authority is being made; while it is there nothing else goes on
    ├── crl.pem, acl, acl.conf    revoked certificates and access rules (EMQX's too), made from enrolled.json
    ├── mosquitto.conf, data/     configuration, and what the broker keeps over a restart
    ├── up.lock                   held while `quarl-edge broker up` runs
    ├── signing/NAME.key          a learner's signing key: devices have pinned its public half
    └── clients/NAME/             credentials, to be moved to their client
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from quarl_device.errors import AuthorityError, CredentialsError, UsageError
from quarl_device.link import BrokerURL
from quarl_device.link import credentials as files
from quarl_device.names import check_name
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_edge.broker.access import emqx_acl, mosquitto_acl
from quarl_edge.broker.authority import Authority, check_host, check_served, read_server_certificate, utc_now
from quarl_edge.broker.disk import (
    broker_user,
    check_reachable,
    finish,
    give,
    interrupted,
    locked,
    read_file,
    told,
    write_file,
    write_folder,
    write_served,
)
from quarl_edge.broker.enrolment import Enrolled, Register

DEFAULT_DAYS = 825
TLS_PORT = 8883
OWN_CLIENTS = ("learner", "controller")
_REPLACING = "replacing"
_RENEW_BEFORE = timedelta(days=30)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Made:
    """What an enrolment left behind.

    Attributes:
        entry: in the register.
        folder: the client's credentials.
        broker: where they say to connect.
        before: its entry until now, `None` for a new client.
        again: it was enrolled before, so a client may still run with earlier credentials.
        distrusting: of a learner, the devices enrolled earlier that trust another learner's key.
    """

    entry: Enrolled
    folder: Path
    broker: BrokerURL
    before: Enrolled | None = None
    again: bool = False
    distrusting: tuple[str, ...] = ()


class BrokerDirectory:
    """One broker's files. Every change is made under a lock, each file whole.

    Args:
        path: an initialised directory.
        replacing: go on although a new authority is being made.

    Raises:
        AuthorityError: it is not one, or its authority was about to be replaced.
    """

    def __init__(self, path: Path, *, replacing: bool = False) -> None:
        self.path = path.absolute()
        if any(char in str(self.path) for char in "\r\n"):
            raise UsageError("the broker's directory has a line break in its name, which no configuration can hold")
        if not self.ca_certificate.exists() or not self._register_file.exists():
            raise AuthorityError(
                f"{path} is no broker's directory: it has no ca.crt with enrolled.json",
                hint=f"quarl-edge broker init {path}",
            )
        if not replacing and (self.path / _REPLACING).exists():
            raise AuthorityError(
                f"{path} was left in the middle of getting a new authority",
                hint=f"quarl-edge broker init {path} makes one; then every client must be enrolled again",
            )

    @classmethod
    def init(cls, path: Path, *, hosts: Sequence[str] = (), replace_ca: bool = False) -> BrokerDirectory:
        """Make a directory, or bring one up to date: what is there and good stays as it is.

        Args:
            path: of the directory.
            hosts: further names and addresses by which clients reach the broker; the first goes into credentials.
            replace_ca: make a new authority; every client must be enrolled again.

        Raises:
            UsageError: a bad host.
            AuthorityError: it cannot be written, or what is there is damaged.
        """
        for host in hosts:
            check_host(host)
        with told(path):
            path.mkdir(parents=True, exist_ok=True)
        with locked(path):
            begun = path / _REPLACING
            # One that was killed is begun again: its clients trust no authority that is left.
            anew = replace_ca or begun.exists()
            if anew:
                write_file(begun, b"")
            if anew or not (path / "ca.crt").exists():
                _write_authority(path)
            if anew or not (path / "enrolled.json").exists():
                Register().write(path / "enrolled.json")
            directory = cls(path, replacing=True)
            directory._bring_up_to_date(hosts, anew=anew)
            directory._finish_enrolments()
            with told(begun):
                begun.unlink(missing_ok=True)
        return directory

    # -- where things are --------------------------------------------------------------------------------------------

    @property
    def ca_certificate(self) -> Path:
        """What every client trusts."""
        return self.path / "ca.crt"

    @property
    def server(self) -> Path:
        """The broker's key and certificate."""
        return self.path / "server.pem"

    @property
    def revoked(self) -> Path:
        """Revoked certificates."""
        return self.path / "crl.pem"

    @property
    def acl(self) -> Path:
        """Access rules."""
        return self.path / "acl"

    @property
    def data(self) -> Path:
        """What the broker keeps."""
        return self.path / "data"

    @property
    def _register_file(self) -> Path:
        return self.path / "enrolled.json"

    def credentials_of(self, name: str) -> Path:
        """Return where a client's credentials are made."""
        return self.path / "clients" / check_name(name, kind="device")

    # -- what it says ------------------------------------------------------------------------------------------------

    def register(self) -> Register:
        """Return the list of clients."""
        return Register.read(self._register_file)

    def authority(self) -> Authority:
        """Return the authority.

        Raises:
            AuthorityError: its key is not here, damaged, or open to others.
        """
        key = self.path / "ca.key"
        try:
            files.check_private(key)
        except CredentialsError as error:
            raise AuthorityError(error.message, hint=error.hint or "put the authority's key back") from None
        return Authority.from_pem(read_file(self.ca_certificate), read_file(key))

    def hosts(self) -> tuple[str, ...]:
        """Return the names and addresses in the broker's certificate, the one for credentials first."""
        return read_server_certificate(read_file(self.server))[0]

    # -- what changes it ---------------------------------------------------------------------------------------------

    def enroll(
        self,
        name: str,
        *,
        role: str,
        fleet: str,
        days: int = DEFAULT_DAYS,
        renew: bool = False,
        learner_key: PublicKey | None = None,
        broker: BrokerURL | None = None,
    ) -> Made:
        """Issue a client's credentials and let it in.

        Args:
            name: of the client.
            role: one of `credentials.ROLES`.
            fleet: that it may take part in, "" for every fleet (not for devices).
            days: how long the certificate holds.
            renew: the client may be enrolled already; its earlier certificates hold until they expire.
            learner_key: the key that a device is to trust; by default that of its fleet's learner.
            broker: where the client connects; by default this directory's first host, port 8883.

        Raises:
            UsageError: a bad name, one that is taken, a renewal in another role, or a device without a fleet.
            AuthorityError: no authority here, or files that cannot be written.
            KeyFileError: a learner's signing key is damaged, or open to others.
        """
        check_name(name, kind="device")
        if fleet or role == "device":
            check_name(fleet, kind="fleet")
        with locked(self.path):
            return self._enroll(
                name, role=role, fleet=fleet, days=days, renew=renew, learner_key=learner_key, broker=broker
            )

    def _enroll(
        self,
        name: str,
        *,
        role: str,
        fleet: str,
        days: int = DEFAULT_DAYS,
        renew: bool = False,
        learner_key: PublicKey | None = None,
        broker: BrokerURL | None = None,
    ) -> Made:
        register = self.register()
        known = register.find(name)
        _check_renewal(name, known, role=role, renew=renew)
        issued = self.authority().issue_client(name, lifetime=timedelta(days=days), now=utc_now())
        url = broker or BrokerURL(host=self.hosts()[0], port=TLS_PORT, tls=True)
        public = ""
        extra: dict[str, bytes] = {}
        if role == "learner":
            public, extra = self._signing(name)
            extra |= _trust(public)
        elif role == "device":
            public = learner_key.hex if learner_key else register.learner_key_for(fleet)
            extra = _trust(public)
        entry = Enrolled(
            name=name,
            role=role,
            fleet=fleet,
            serial=f"{issued.serial:x}",
            expires=int(issued.expires.timestamp()),
            learner_key=public,
        )
        contents = {
            files.KEY_FILE: issued.key,
            files.CERTIFICATE_FILE: issued.certificate,
            files.CA_FILE: read_file(self.ca_certificate),
            files.TOML_FILE: files.credentials_toml(name=name, role=role, fleet=fleet, broker=url).encode(),
        }
        # Registered before the credentials are in place: a certificate that nobody knows of could never be revoked. The
        # one exception lives for minutes and leaves its process never (`running.end_session`).
        write_folder(
            self.credentials_of(name),
            {**contents, **extra},
            before=lambda: register.add(entry).write(self._register_file),
        )
        self._write_rules()
        return Made(
            entry=entry,
            folder=self.credentials_of(name),
            broker=url,
            before=known,
            again=register.knows(name),
            distrusting=register.distrusting(entry),
        )

    def revoke(self, name: str) -> None:
        """Put every certificate of a client on the list of revoked ones; done twice, it does the rest of once.

        The access rules keep the client until `write_rules`: its open session is to be ended first.

        Raises:
            UsageError: no such client was ever enrolled.
            AuthorityError: no authority here, or files that cannot be written.
        """
        with locked(self.path):
            authority, now = self.authority(), utc_now()
            register = self.register().revoke(name, now=now)
            register.write(self._register_file)
            self._write_revoked(register, authority)
            with contextlib.suppress(OSError):
                shutil.rmtree(self.credentials_of(name))

    def check_served(self) -> None:
        """Check that the broker's certificate, its key and the list of revoked ones fit the authority.

        Raises:
            AuthorityError: they do not, or are missing.
        """
        try:
            check_served(read_file(self.ca_certificate), read_file(self.server), read_file(self.revoked))
        except AuthorityError as error:
            hint = f"quarl-edge broker init {self.path} makes them anew, with the authority's key"
            raise AuthorityError(error.message, hint=error.hint or hint) from error

    def write_rules(self) -> None:
        """Write the access rules that follow from the register.

        Raises:
            AuthorityError: they cannot be written, or an enrolment holds the directory for 10 s.
        """
        # Not without the lock: rules of a register that an enrolment has just replaced would undo its own.
        with locked(self.path):
            self._write_rules()

    def _write_rules(self) -> None:
        clients = self.register().current()
        write_served(self.acl, mosquitto_acl(clients).encode())
        write_file(self.path / "acl.conf", emqx_acl(clients).encode())

    def hand_over(self) -> None:
        """Give the broker's user what it must read or write, whoever made it.

        Raises:
            AuthorityError: a file is missing, or the broker's user cannot come this far.
        """
        with told(self.path):
            self.data.mkdir(mode=0o700, exist_ok=True)
        served = (self.server, self.acl, self.revoked, self.data)
        user = broker_user()
        if user is not None:
            give(served, user)
            check_reachable(self.path, user)
        for path in served:
            if not os.access(path, os.R_OK):
                raise AuthorityError(
                    f"{path} is missing, or another user's",
                    hint=f"run it as the directory's user, or let `quarl-edge broker init {self.path}` mend it",
                )

    def _bring_up_to_date(self, hosts: Sequence[str], *, anew: bool) -> None:
        known: tuple[str, ...] = ()
        fresh = False
        if self.server.exists() and not anew:
            known, ends = read_server_certificate(read_file(self.server))
            fresh = ends - utc_now() > _RENEW_BEFORE and self._fits()
        wanted = tuple(dict.fromkeys((*hosts, *known, *_LOOPBACK)))
        if not fresh or wanted != known:
            issued = self.authority().issue_server(wanted, lifetime=timedelta(days=DEFAULT_DAYS), now=utc_now())
            write_served(self.server, issued.key + issued.certificate)
        if anew or not self.revoked.exists() or not self._fits():
            self._write_revoked(self.register(), self.authority())
        self._write_rules()
        self.check_served()

    def _fits(self) -> bool:
        with contextlib.suppress(AuthorityError):
            self.check_served()
            return True
        return False

    def _finish_enrolments(self) -> None:
        """Clear what killed enrolments left, and make the credentials of the directory's own clients."""
        clients = self.path / "clients"
        left = interrupted(clients)
        for name, paths in left.items():
            finish(clients / name, paths)
        register = self.register()
        for name in OWN_CLIENTS:
            known = register.find(name)
            # Who has no folder, and no enrolment that was killed, was moved to where it is used.
            lost = name in left and not self.credentials_of(name).exists()
            if known is None and not register.knows(name):
                self._enroll(name, role=name, fleet="")
            elif known is not None and lost:
                self._enroll(name, role=known.role, fleet=known.fleet, renew=True)

    def _write_revoked(self, register: Register, authority: Authority) -> None:
        entries = [entry.revocation for entry in register if entry.revoked]
        write_served(self.revoked, authority.revocation_list(entries, now=utc_now()))

    def _signing(self, name: str) -> tuple[str, dict[str, bytes]]:
        """Return the public half of a learner's signing key, which devices have pinned for good, and its file."""
        folder = self.path / "signing"
        with told(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{name}.key"
        public = LearnerKey.load_or_create(path).public.hex
        return public, {files.SIGNING_KEY_FILE: read_file(path)}


def _check_renewal(name: str, known: Enrolled | None, *, role: str, renew: bool) -> None:
    if known is None:
        return
    if not renew:
        raise UsageError(
            f"{name!r} is enrolled already, as {known.role} of {known.fleet or 'every fleet'}",
            hint=f"another certificate: --renew; to shut it out: quarl-edge revoke {name}",
        )
    if role != known.role:
        # Its earlier certificates would get the new role's rights, whoever holds them.
        raise UsageError(
            f"{name!r} is enrolled as a {known.role}, and a renewal keeps the role: no {role}",
            hint=f"another name, or quarl-edge revoke {name} first",
        )


def _trust(public_key: str) -> dict[str, bytes]:
    return {files.LEARNER_PUBLIC_FILE: f"{public_key}\n".encode()} if public_key else {}


def _write_authority(path: Path) -> None:
    authority = Authority.create(now=utc_now())
    write_file(path / "ca.key", authority.key_pem, mode=0o600)
    write_file(path / "ca.crt", authority.certificate_pem)
