"""The broker that runs on a directory: finding it, having it read its rules again, and ending a client's session."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from quarl_device.errors import AuthorityError, BrokerStartFailed, LinkError, QuarlError
from quarl_device.files import read_capped
from quarl_device.link import BrokerURL, PahoLink
from quarl_device.link.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE, tls_context
from quarl_edge.broker.address import Address
from quarl_edge.broker.authority import utc_now
from quarl_edge.broker.directory import BrokerDirectory

_LOCK_FILE = "up.lock"
_MAX_LOCK_BYTES = 1024
_BORROWED = timedelta(minutes=10)
# A client comes back within a quarter of a second (`link.Backoff`), where it still may.
_HELD_S = 1.0
_TRIES = 5
_CONNECT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A broker that `quarl-edge broker up` runs.

    Attributes:
        pid: of that command.
        listen: where the broker listens.
        engine: "mosquitto" or "amqtt".
    """

    pid: int
    listen: Address
    engine: str

    def reload(self) -> None:
        """Have it read access rules and revoked certificates again.

        Raises:
            QuarlError: it is another user's process.
        """
        try:
            os.kill(self.pid, signal.SIGHUP)
        except ProcessLookupError:
            return
        except PermissionError:
            raise QuarlError(
                f"the broker (process {self.pid}) is another user's: it has not read the change yet",
                hint=f"sudo kill -HUP {self.pid}",
            ) from None


@contextlib.contextmanager
def declared(directory: BrokerDirectory, running: Running) -> Iterator[None]:
    """Say that a broker runs on a directory, for as long as the context lasts or this process lives.

    Raises:
        BrokerStartFailed: one runs already.
        AuthorityError: the directory cannot be written.
    """
    path = directory.path / _LOCK_FILE
    try:
        file = path.open("a+b")
    except OSError as error:
        raise AuthorityError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BrokerStartFailed(f"a broker runs on {directory.path} already") from None
        said = {
            "pid": running.pid,
            "host": running.listen.host,
            "port": running.listen.port,
            "engine": running.engine,
        }
        file.truncate(0)
        file.write(json.dumps(said).encode())
        file.flush()
        yield


def find_running(directory: BrokerDirectory) -> Running | None:
    """Return the broker that runs on a directory, if one does."""
    path = directory.path / _LOCK_FILE
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuthorityError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(path)
    return None


def _read(path: Path) -> Running:
    data = read_capped(path, cap_bytes=_MAX_LOCK_BYTES, error=AuthorityError, what="the running broker's lock")
    try:
        said = json.loads(data)
        listen = Address(host=str(said["host"]), port=int(said["port"]))
        return Running(pid=int(said["pid"]), listen=listen, engine=str(said["engine"]))
    except (ValueError, KeyError, TypeError) as error:
        raise AuthorityError(f"{path} is damaged", hint="restart the broker") from error


def end_session(directory: BrokerDirectory, running: Running, name: str) -> None:
    """End the open session of a client whose certificate was revoked.

    A broker looks at its list of revoked certificates when a client connects, never later. It does end a session when
    another client connects under the same name: so the authority lends itself that name, with a certificate that lives
    for minutes and a key that is forgotten, and takes the session over. It then holds the name for a second: who comes
    back in that time, and ends ours, is still let in.

    That certificate is the one that the register does not know, so it is never on the list of revoked ones: until we
    are done its key is in a directory of our user alone, who could as well read the authority's.

    Raises:
        LinkError: the broker cannot be reached, or still lets the client in.
    """
    issued = directory.authority().issue_client(name, lifetime=_BORROWED, now=utc_now())
    with tempfile.TemporaryDirectory(prefix="quarl-revoke-") as folder:
        files = {KEY_FILE: issued.key, CERTIFICATE_FILE: issued.certificate}
        files[CA_FILE] = directory.ca_certificate.read_bytes()
        for file, data in files.items():
            (Path(folder) / file).write_bytes(data)
        context = tls_context(Path(folder))
    host, port = running.listen.nearby
    # The address that it listens at need not be in its certificate.
    context.check_hostname = False
    link = PahoLink(BrokerURL(host=host, port=port, tls=True), client_id=name, tls=context)
    try:
        link.connect(timeout_s=_CONNECT_S)
        for _ in range(_TRIES):
            before = link.counters.connections
            time.sleep(_HELD_S)
            if link.connected and link.counters.connections == before:
                return
    finally:
        link.close()
    raise LinkError(
        f"the broker still lets {name!r} in with a revoked certificate", hint="restart it: quarl-edge broker up"
    )
