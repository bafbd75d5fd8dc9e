"""What the way to the broker is like: tried here, judged in `link_checks`. Every wait has a deadline."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from quarl_device.actor.joining import Joining
from quarl_device.doctor.link_checks import FOLDER, CertificateReading, Fate, Large, LinkReading
from quarl_device.errors import CredentialsError, QuarlError
from quarl_device.files import read_capped
from quarl_device.link import BrokerURL, Link, Message, PahoLink
from quarl_device.link.credentials import CERTIFICATE_FILE
from quarl_device.wire.limits import MAX_BLOCK_BYTES
from quarl_device.wire.topics import Topics

CONNECT_S, ECHO_S, LARGE_S = 10.0, 3.0, 15.0
_SILENCE_S = 0.3
_MAX_CERTIFICATE_BYTES = 64 * 1024
OTHER_DEVICE = "doctor-probe"
"""A device that nobody should be; what is written to its topics is heard by nobody."""


def read_modes(folder: Path) -> dict[str, int]:
    """Return the permission bits of the files of credentials, and of their folder as ".".

    Raises:
        OSError: it may not be listed, or what is in it not looked at.
    """
    modes = {FOLDER: stat.S_IMODE(folder.stat().st_mode)}
    for path in sorted(folder.iterdir()):
        # Gone since it was listed, or a link to nothing.
        with contextlib.suppress(FileNotFoundError):
            modes[path.name] = stat.S_IMODE(path.stat().st_mode)
    return modes


def read_own_certificate(folder: Path) -> CertificateReading:
    """Return the dates of this device's certificate.

    Raises:
        CredentialsError: it cannot be read.
        ValueError: it is none.
    """
    data = read_capped(
        folder / CERTIFICATE_FILE, cap_bytes=_MAX_CERTIFICATE_BYTES, error=CredentialsError, what="certificate"
    )
    return _dates(x509.load_pem_x509_certificate(data))


def read_certificate(url: BrokerURL, *, timeout_s: float = CONNECT_S) -> CertificateReading | None:
    """Return the dates of the broker's certificate, whether it is trusted or not; `None` where none is seen."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent over this connection: the certificate is looked at, `PahoLink` judges whether it is trusted.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((url.host, url.port), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=url.host) as secure,
        ):
            shown = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return None
    return _dates(shown)


def _dates(certificate: x509.Certificate) -> CertificateReading:
    return CertificateReading(begins=certificate.not_valid_before_utc, ends=certificate.not_valid_after_utc)


def read_link(joining: Joining, *, make_link: Callable[[Joining], Link] | None = None) -> LinkReading:
    """Connect as the device, and see which messages come back.

    Args:
        joining: how.
        make_link: for tests.
    """
    link = (make_link or _link)(joining)
    began = time.monotonic()
    try:
        link.connect(timeout_s=CONNECT_S)
    except QuarlError as error:
        link.close()
        return LinkReading(address=joining.url.address, error=error)
    connect_ms = (time.monotonic() - began) * 1e3
    try:
        return _exchange(link, joining, connect_ms)
    finally:
        link.close()


class _Heard:
    """What has come, by topic; waits for some of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._payloads: set[tuple[str, bytes]] = set()
        self.topics: set[str] = set()

    def __call__(self, message: Message) -> None:
        with self._changed:
            self.topics.add(message.topic)
            self._payloads.add((message.topic, message.payload[:32]))
            self._changed.notify_all()

    def has(self, topic: str, mark: bytes, *, timeout_s: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait for a message that begins with `mark`."""
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while (topic, mark) not in self._payloads:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or given_up():
                    return False
                self._changed.wait(min(left_s, 0.05))
        return True


def _exchange(link: Link, joining: Joining, connect_ms: float) -> LinkReading:
    topics, heard = Topics(joining.fleet), _Heard()
    own = topics.doctor(joining.name)
    for topic in (own, topics.learner):
        link.subscribe(topic, heard)
    link.flush(timeout_s=ECHO_S)
    own_fate = _send(link, heard, own, after_s=ECHO_S)
    large: Large = "not tried"
    foreign_fate: Fate = "not tried"
    if own_fate == "came back":
        large = _send_large(link, heard, own)
    # Last, since some brokers end the connection of whoever writes or reads what it may not.
    if large in {"came back", "silent"}:
        foreign_fate = _send_foreign(link, heard, topics.doctor(OTHER_DEVICE))
    return LinkReading(
        address=joining.url.address,
        connect_ms=connect_ms,
        own=own_fate,
        foreign=foreign_fate,
        learner_seen=topics.learner in heard.topics,
        large=large,
        large_bytes=MAX_BLOCK_BYTES,
    )


def _send_foreign(link: Link, heard: _Heard, topic: str) -> Fate:
    if not link.connected:
        return "not tried"
    link.subscribe(topic, heard)
    fate = _send(link, heard, topic, after_s=_SILENCE_S)
    # The connection stood until now, and a device of that name is nobody's: this is how the broker denies it.
    return "denied" if fate == "lost" else fate


def _send(link: Link, heard: _Heard, topic: str, *, after_s: float) -> Fate:
    """Send a mark; it is denied if it has not come back so long after the broker acknowledged it."""
    mark, lost = secrets.token_bytes(32), _watch(link)
    if not link.publish(topic, mark):
        return "lost"
    acknowledged = link.flush(timeout_s=ECHO_S)
    if heard.has(topic, mark, timeout_s=after_s, given_up=lost):
        return "came back"
    if lost():
        return "lost"
    return "denied" if acknowledged else "silent"


def _send_large(link: Link, heard: _Heard, topic: str) -> Large:
    mark, lost = secrets.token_bytes(32), _watch(link)
    if not link.publish(topic, mark + bytes(MAX_BLOCK_BYTES - len(mark))):
        return "cut"
    if heard.has(topic, mark, timeout_s=LARGE_S, given_up=lost):
        return "came back"
    return "cut" if lost() else "silent"


def _watch(link: Link) -> Callable[[], bool]:
    """Return what tells whether the connection that stands now has gone, even if there is another one."""
    before = link.counters.connections
    return lambda: not link.connected or link.counters.connections > before


def _link(joining: Joining) -> Link:
    # With credentials the broker takes the name from the certificate; without, another id leaves an agent its session.
    client_id = joining.client_id if joining.tls is not None else f"{joining.client_id}.doctor"
    return PahoLink(joining.url, client_id=client_id, password=joining.password, tls=joining.tls)
