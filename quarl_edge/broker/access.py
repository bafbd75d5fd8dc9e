"""Who may read and write which topics (W9), as pure data, and as the rules of a broker.

A device's rights name its fleet. A broker's patterns know a client's name (`%u`) but not its fleet, so every enrolled
client gets lines of its own and there is no pattern: who is not listed may do nothing, a revoked client's session that
is still open neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from paho.mqtt.client import topic_matches_sub

from quarl_device.names import check_name
from quarl_device.wire.limits import WIRE_VERSION

_HEAD = "# Made by quarl-edge from enrolled.json; changes here are overwritten.\n"


class Named(Protocol):
    """What rights follow from; see `enrolment.Enrolled`."""

    @property
    def name(self) -> str:
        """Of the client."""

    @property
    def role(self) -> str:
        """One of `credentials.ROLES`."""

    @property
    def fleet(self) -> str:
        """Or "" for every fleet."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One right.

    Attributes:
        verb: what it allows.
        topics: a topic filter.
    """

    verb: Literal["read", "write"]
    topics: str


def grants_of(client: Named) -> tuple[Grant, ...]:
    """Return all that a client may do.

    Raises:
        UsageError: a name or fleet that could reach beyond itself in a filter.
    """
    check_name(client.name, kind="device")
    root = f"q/v{WIRE_VERSION}/{check_name(client.fleet, kind='fleet') if client.fleet else '+'}"
    reads, writes = _RIGHTS[client.role]
    # `x/#` is also `x` itself.
    return tuple(
        Grant(verb=verb, topics=f"{root}/{leaf.format(name=client.name)}")  # type: ignore[arg-type]
        for verb, leaves in (("read", reads), ("write", writes))
        for leaf in leaves
    )


_RIGHTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "device": (("learner/#", "live/#", "blob/#", "tuf/#", "d/{name}/#"), ("d/{name}/up/#",)),
    "learner": (
        ("learner/#", "live/#", "blob/#", "d/+/up/#"),
        ("learner/#", "live/#", "blob/#", "d/+/down/ack"),
    ),
    "controller": (("#",), ("blob/#", "tuf/#", "d/+/down/desired")),
    "viewer": (("learner/#", "d/+/up/state", "d/+/up/telemetry", "d/+/up/reported"), ()),
}


def allows(grants: Iterable[Grant], verb: str, topic: str) -> bool:
    """Whether any of `grants` allows to read or write `topic`."""
    return any(grant.verb == verb and topic_matches_sub(grant.topics, topic) for grant in grants)


def mosquitto_acl(clients: Iterable[Named]) -> str:
    """Return Mosquitto's `acl_file` for these clients and nobody else."""
    sections = [_HEAD]
    for client in clients:
        lines = [f"topic {grant.verb} {grant.topics}" for grant in grants_of(client)]
        sections.append("\n".join([f"user {client.name}", *lines, ""]))
    return "\n".join(sections)


def emqx_acl(clients: Iterable[Named]) -> str:
    """Return EMQX's `acl.conf` for these clients and nobody else."""
    lines = [_HEAD.replace("#", "%%", 1).rstrip("\n")]
    for client in clients:
        for verb, action in (("read", "subscribe"), ("write", "publish")):
            topics = [f'"{grant.topics}"' for grant in grants_of(client) if grant.verb == verb]
            if topics:
                lines.append(f'{{allow, {{username, "{client.name}"}}, {action}, [{", ".join(topics)}]}}.')
    return "\n".join([*lines, "{deny, all}.", ""])
