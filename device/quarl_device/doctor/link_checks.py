"""Checks of the way to the broker: credentials, certificate, login, access rules, size of packets.

MQTT 3.1.1 has no answer for a publish that is denied: brokers acknowledge it, or end the connection, and many take a
subscription that their rules deny alike. So the rules are seen by what comes back: a message to a topic of the
device's own must, one to another device's must not. What came back neither way because the network failed says
nothing about rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from quarl_device.doctor.finding import Finding, of_error, ok, problem, warning
from quarl_device.errors import QuarlError

Fate = Literal["came back", "denied", "lost", "silent", "not tried"]
Large = Literal["came back", "cut", "silent", "not tried"]
_WARN_DAYS = 30
FOLDER = "."
"""The directory of credentials itself, among its files."""


_AGAIN = "ask again; if it stays so, look at the network and at the broker's log"
_FATES: Mapping[Fate, str] = {
    "lost": "was lost with the connection, by the network or a broker that ends it over what its rules deny",
    "silent": "was neither acknowledged nor came back in time: the link is slow, or the broker drops messages",
    "not tried": "was not tried, since the connection was lost before",
}


@dataclass(frozen=True, kw_only=True)
class CertificateReading:
    """The dates of a certificate, in UTC."""

    begins: datetime
    ends: datetime


@dataclass(frozen=True, kw_only=True)
class LinkReading:
    """What came of a connection.

    Attributes:
        address: of the broker.
        error: why there was none.
        connect_ms: how long it took.
        own: what became of a message to this device's own `up/`: it was acknowledged and did not come back ("denied"),
            the connection went ("lost"), or nothing was heard of it ("silent").
        foreign: of one to another device's `up/`; a connection that ends over it is "denied" too.
        learner_seen: a learner's birth was on its topic.
        large: what became of a message as large as a block may be.
        large_bytes: its size.
    """

    address: str
    error: QuarlError | None = None
    connect_ms: float = 0.0
    own: Fate = "not tried"
    foreign: Fate = "not tried"
    learner_seen: bool = False
    large: Large = "not tried"
    large_bytes: int = 0


def check_modes(folder: str, modes: Mapping[str, int]) -> Finding:
    """Who may read the files of credentials.

    Args:
        folder: where they are.
        modes: file name to permission bits, with `FOLDER`: who may write there may put other files in their place.
    """
    open_to_others = [name for name, mode in modes.items() if mode & 0o077 and name.endswith(".key")]
    if open_to_others:
        files = " ".join(f"{folder}/{name}" for name in open_to_others)
        return problem("credentials", f"open to other users: {', '.join(open_to_others)}", f"chmod 600 {files}")
    changeable = [name for name, mode in modes.items() if mode & 0o022]
    if changeable:
        files = " ".join(folder if name == FOLDER else f"{folder}/{name}" for name in changeable)
        shown = ", ".join(f"the files of {folder}" if name == FOLDER else name for name in changeable)
        return warning("credentials", f"other users may change {shown}", f"chmod go-w {files}")
    return ok("credentials", f"those in {folder} are this user's alone")


def check_own_certificate(certificate: CertificateReading, now: datetime) -> Finding:
    """This device's certificate, which has been found to hold: does it soon end?"""
    if (certificate.ends - now).days < _WARN_DAYS:
        return warning(
            "credentials", f"this device's certificate ends on {certificate.ends:%Y-%m-%d}",
            "on the broker: quarl-edge enroll NAME --renew, and copy the directory to this device",
        )  # fmt: skip
    return ok("credentials", f"this device's certificate holds to {certificate.ends:%Y-%m-%d}")


def check_certificate(certificate: CertificateReading | None, now: datetime) -> Finding:
    """The broker's certificate against this board's clock, `now`; `None` where it could not be seen."""
    if certificate is None:
        return warning(
            "certificate", "the broker's could not be seen: nothing answers there, or not by TLS",
            "see what is said of the broker",
        )  # fmt: skip
    begins, ends = certificate.begins, certificate.ends
    if now < begins:
        return problem(
            "certificate", f"the broker's certificate begins on {begins:%Y-%m-%d}, this clock says {now:%Y-%m-%d}",
            "sudo timedatectl set-ntp true",
        )  # fmt: skip
    renew = "on the broker: quarl-edge broker init DIR; or is this board's clock wrong? timedatectl status"
    if now > ends:
        return problem("certificate", f"the broker's certificate ended on {ends:%Y-%m-%d}", renew)
    if (ends - now).days < _WARN_DAYS:
        return warning("certificate", f"the broker's certificate ends on {ends:%Y-%m-%d}", renew)
    return ok("certificate", f"the broker's holds from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}")


def check_broker(link: LinkReading) -> Finding:
    """Whether the broker lets this device in."""
    if link.error is not None:
        return of_error("broker", link.error)
    return ok("broker", f"{link.address} lets this device in, in {link.connect_ms:,.0f} ms")


def check_rules(link: LinkReading) -> Finding:
    """Whether the device may write its own topics, and no others."""
    if link.own == "denied":
        return problem(
            "access", "a message to this device's own up/ did not come back: the broker's rules deny it",
            "enroll the device: quarl-edge enroll NAME; or give it the rules of docs/guides/broker.md",
        )  # fmt: skip
    if link.own != "came back":
        return warning("access", f"not told: a message to this device's own up/ {_FATES[link.own]}", _AGAIN)
    if link.foreign == "came back":
        return warning(
            "access", "this device may write and read the topics of others: the broker has no rules per device",
            "a broker with rules: quarl-edge broker init DIR, quarl-edge broker up DIR",
        )  # fmt: skip
    if link.foreign != "denied":
        said = f"it writes its own up/; whether it may write another device's is not told: that {_FATES[link.foreign]}"
        return warning("access", said, _AGAIN)
    return ok(
        "access", "it writes its own up/; what it wrote to another device's did not come back (a broker that lets it "
        "write there and not read is not told apart: MQTT 3.1.1 has no answer for it)"
    )  # fmt: skip


def check_packets(link: LinkReading) -> Finding:
    """Whether a message as large as a block may be goes through."""
    size = f"{link.large_bytes / 2**20:.2f} MiB"
    if link.large == "came back":
        return ok("packets", f"a message of {size} goes through; larger ones are never sent")
    if link.large == "cut":
        return problem(
            "packets", f"the broker ends the connection over a message of {size}",
            "raise its limit to 2 MiB (Mosquitto: max_packet_size 2097152), or train --set block_steps=32",
        )  # fmt: skip
    return warning(
        "packets", f"a message of {size} did not come back in time: the link is slow, or the broker drops it",
        "try again; then raise the broker's limit to 2 MiB, or run --max-upload KIB",
    )  # fmt: skip


def check_learner(link: LinkReading, fleet: str) -> Finding:
    """Whether a learner is there, as far as it can be seen."""
    if link.learner_seen:
        return ok("learner", f"one has served fleet {fleet}")
    return warning(
        "learner", f"no learner's birth is seen in fleet {fleet}: none runs, or this device may not read it",
        f"quarl-edge train ENV --broker URL --fleet {fleet}",
    )  # fmt: skip
