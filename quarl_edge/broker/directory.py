"""A broker's directory: authority, broker's certificate, enrolled clients, and what Mosquitto reads.

::

    broker/
    ├── ca.key, ca.crt            the authority; the key may be kept elsewhere while nobody is enrolled or revoked
    ├── enrolled.json             every certificate ever issued
    ├── server.key, server.crt    the broker's own; owned by its user
    ├── crl.pem, acl, acl.conf    revoked certificates and access rules (EMQX's too), made from enrolled.json
    ├── mosquitto.conf, data/     configuration, and what the broker keeps over a restart
    ├── up.lock                   held while `quarl-edge broker up` runs
    ├── signing/NAME.key          a learner's signing key: devices have pinned its public half
    └── clients/NAME/             credentials, to be moved to their client
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from quarl_device.errors import AuthorityError, CredentialsError, UsageError
from quarl_device.files import read_capped, sync_directory, write_atomic
from quarl_device.link import BrokerURL
from quarl_device.link import credentials as files
from quarl_device.names import check_name
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_edge.broker.access import emqx_acl, mosquitto_acl
from quarl_edge.broker.authority import Authority, check_host, read_server_certificate, utc_now
from quarl_edge.broker.enrolment import Enrolled, Register

DEFAULT_DAYS = 825
TLS_PORT = 8883
_RENEW_BEFORE = timedelta(days=30)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_PEM_BYTES = 64 * 1024 * 1024
_LOCK_WAIT_S = 10.0
_BROKER_USER = "mosquitto"


@dataclass(frozen=True, kw_only=True)
class Made:
    """What an enrolment left behind.

    Attributes:
        entry: in the register.
        folder: the client's credentials.
        broker: where they say to connect.
    """

    entry: Enrolled
    folder: Path
    broker: BrokerURL


class BrokerDirectory:
    """One broker's files. Every change is made under a lock, each file whole.

    Args:
        path: an initialised directory.

    Raises:
        AuthorityError: it is not one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if any(char in str(self.path) for char in "\r\n"):
            raise UsageError("the broker's directory has a line break in its name, which no configuration can hold")
        if not self.ca_certificate.exists() or not self._register_file.exists():
            raise AuthorityError(
                f"{path} is no broker's directory: it has no ca.crt with enrolled.json",
                hint=f"quarl-edge broker init {path}",
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
        with _refused(path):
            path.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if replace_ca or not (path / "ca.crt").exists():
                _write_authority(path)
            if replace_ca or not (path / "enrolled.json").exists():
                Register().write(path / "enrolled.json")
            directory = cls(path)
            directory._bring_up_to_date(hosts, anew=replace_ca)
        for name in ("learner", "controller"):
            if directory.register().find(name) is None:
                directory.enroll(name, role=name, fleet="")
        return directory

    # -- where things are --------------------------------------------------------------------------------------------

    @property
    def ca_certificate(self) -> Path:
        """What every client trusts."""
        return self.path / "ca.crt"

    @property
    def server_certificate(self) -> Path:
        """The broker's certificate."""
        return self.path / "server.crt"

    @property
    def server_key(self) -> Path:
        """The broker's key."""
        return self.path / "server.key"

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
        return Authority.from_pem(_read(self.ca_certificate), _read(key))

    def hosts(self) -> tuple[str, ...]:
        """Return the names and addresses in the broker's certificate, the one for credentials first."""
        return read_server_certificate(_read(self.server_certificate))[0]

    def broker_user(self) -> pwd.struct_passwd | None:
        """Return the user that the broker runs as: Mosquitto's own where we are root, else `None` for ours."""
        if os.geteuid() != 0:
            return None
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(_BROKER_USER)
        raise AuthorityError(
            f"there is no user {_BROKER_USER!r} for the broker to run as", hint="sudo apt-get install -y mosquitto"
        )

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
            UsageError: a bad name, one that is taken, or a device without a fleet.
            AuthorityError: no authority here, or files that cannot be written.
            KeyFileError: a learner's signing key is damaged, or open to others.
        """
        check_name(name, kind="device")
        if fleet or role == "device":
            check_name(fleet, kind="fleet")
        with _locked(self.path):
            register = self.register()
            known = register.find(name)
            if known is not None and not renew:
                raise UsageError(
                    f"{name!r} is enrolled already, as {known.role} of {known.fleet or 'every fleet'}",
                    hint=f"another certificate: --renew; to shut it out: quarl-edge revoke {name}",
                )
            now = utc_now()
            issued = self.authority().issue_client(name, lifetime=timedelta(days=days), now=now)
            url = broker or BrokerURL(host=self.hosts()[0], port=TLS_PORT, tls=True)
            contents = {
                files.KEY_FILE: issued.key,
                files.CERTIFICATE_FILE: issued.certificate,
                files.CA_FILE: _read(self.ca_certificate),
                files.TOML_FILE: files.credentials_toml(name=name, role=role, fleet=fleet, broker=url).encode(),
            }
            folder = self.credentials_of(name)
            public = learner_key.hex if learner_key else register.learner_key_for(fleet)
            if role == "learner":
                # Devices have its public half pinned: it outlives the certificate.
                signing = LearnerKey.load_or_create(self._signing_key(folder))
                public = signing.public.hex
                contents[files.SIGNING_KEY_FILE] = _read(self._signing_key(folder))
            elif role == "device" and public:
                contents[files.LEARNER_PUBLIC_FILE] = f"{public}\n".encode()
            entry = Enrolled(
                name=name,
                role=role,
                fleet=fleet,
                serial=f"{issued.serial:x}",
                expires=int(issued.expires.timestamp()),
                learner_key=public if role == "learner" else "",
            )
            # Before the credentials: a certificate that nobody knows of could never be revoked.
            register.add(entry).write(self._register_file)
            _write_folder(folder, contents)
            self.write_rules()
        return Made(entry=entry, folder=folder, broker=url)

    def revoke(self, name: str) -> None:
        """Put every certificate of a client on the list of revoked ones; done twice, it does the rest of once.

        The access rules keep the client until `write_rules`: its open session is to be ended first.

        Raises:
            UsageError: no such client was ever enrolled.
            AuthorityError: no authority here, or files that cannot be written.
        """
        with _locked(self.path):
            authority, now = self.authority(), utc_now()
            register = self.register().revoke(name, now=now)
            register.write(self._register_file)
            self._write_revoked(register, authority)
            with contextlib.suppress(OSError):
                shutil.rmtree(self.credentials_of(name))

    def write_rules(self) -> None:
        """Write the access rules that follow from the register."""
        clients = self.register().current()
        self._write(self.acl, mosquitto_acl(clients).encode(), mode=0o600, served=True)
        self._write(self.path / "acl.conf", emqx_acl(clients).encode())

    def hand_over(self) -> None:
        """Give the broker's user what it must read or write, whoever made it.

        Raises:
            AuthorityError: a file is missing, or the broker's user cannot come this far.
        """
        with _refused(self.path):
            self.data.mkdir(mode=0o700, exist_ok=True)
            user = self.broker_user()
            for path in (self.server_key, self.acl, self.revoked, self.data, *self.data.iterdir()):
                if user is not None:
                    os.chown(path, user.pw_uid, user.pw_gid)
        if user is not None:
            self._check_reachable(user)

    def _bring_up_to_date(self, hosts: Sequence[str], *, anew: bool) -> None:
        known: tuple[str, ...] = ()
        fresh = False
        if self.server_certificate.exists() and self.server_key.exists() and not anew:
            known, ends = read_server_certificate(_read(self.server_certificate))
            fresh = ends - utc_now() > _RENEW_BEFORE
        wanted = tuple(dict.fromkeys((*hosts, *known, *_LOOPBACK)))
        if not fresh or wanted != known:
            issued = self.authority().issue_server(wanted, lifetime=timedelta(days=DEFAULT_DAYS), now=utc_now())
            self._write(self.server_key, issued.key, mode=0o600, served=True)
            self._write(self.server_certificate, issued.certificate)
        if anew or not self.revoked.exists():
            self._write_revoked(self.register(), self.authority())
        self.write_rules()

    def _write_revoked(self, register: Register, authority: Authority) -> None:
        entries = [entry.revocation for entry in register if entry.revoked]
        self._write(self.revoked, authority.revocation_list(entries, now=utc_now()), served=True)

    def _signing_key(self, folder: Path) -> Path:
        kept = self.path / "signing"
        with _refused(kept):
            kept.mkdir(mode=0o700, exist_ok=True)
        return kept / f"{folder.name}.key"

    def _write(self, path: Path, data: bytes, *, mode: int = 0o644, served: bool = False) -> None:
        write_atomic(path, data, error=AuthorityError, what="broker's file", mode=mode)
        user = self.broker_user() if served and os.geteuid() == 0 and _user_exists() else None
        if user is not None:
            with _refused(path):
                os.chown(path, user.pw_uid, user.pw_gid)

    def _check_reachable(self, user: pwd.struct_passwd) -> None:
        for folder in (self.path, *self.path.parents):
            status = folder.stat()
            bit = 0o100 if status.st_uid == user.pw_uid else 0o010 if status.st_gid == user.pw_gid else 0o001
            if not status.st_mode & bit:
                raise AuthorityError(
                    f"the broker's user {user.pw_name!r} cannot reach {self.path}: {folder} lets nobody through",
                    hint="keep it elsewhere, such as /etc/quarl-edge/broker",
                )


def _write_authority(path: Path) -> None:
    authority = Authority.create(now=utc_now())
    write_atomic(path / "ca.key", authority.key_pem, error=AuthorityError, what="authority's key", mode=0o600)
    write_atomic(path / "ca.crt", authority.certificate_pem, error=AuthorityError, what="authority's certificate")


def _write_folder(folder: Path, contents: dict[str, bytes]) -> None:
    """Put a folder of these files in place, instead of one that may be there."""
    with _refused(folder):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, data in contents.items():
                mode = 0o600 if name.endswith(".key") else 0o644
                write_atomic(made / name, data, error=AuthorityError, what="credentials", mode=mode)
            if folder.exists():
                shutil.rmtree(folder)
            made.rename(folder)
            sync_directory(folder.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _read(path: Path) -> bytes:
    return read_capped(path, cap_bytes=_MAX_PEM_BYTES, error=AuthorityError, what="broker's file")


def _user_exists() -> bool:
    try:
        pwd.getpwnam(_BROKER_USER)
    except KeyError:
        return False
    return True


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AuthorityError(f"{error.filename or path}: {error.strerror}") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other enrolments out; two at once would each write a register without the other's client."""
    with _refused(path), (path / ".lock").open("ab") as file:
        deadline_s = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise AuthorityError(f"{path} has been locked for {_LOCK_WAIT_S:.0f} s") from None
                time.sleep(0.05)
        yield
