"""The embedded broker with certificates and access rules: to try things where no Mosquitto is at hand.

It holds what it can: TLS 1.2 on, client certificates, the revoked ones, the rules of `access` (a will's topic too), and
a client id that must be the certificate's name. What it cannot hold is in docs/guides/broker.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqtt.contexts import Action, BrokerConfig, ListenerConfig
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from cryptography import x509
from cryptography.x509.oid import NameOID

from quarl_device.errors import BrokerStartFailed
from quarl_edge.broker.access import Grant, allows, grants_of
from quarl_edge.broker.address import Address
from quarl_edge.broker.child import LeanBroker
from quarl_edge.broker.directory import BrokerDirectory

if TYPE_CHECKING:
    from amqtt.session import Session

_log = logging.getLogger(__name__)
_MODULE = "quarl_edge.broker.amqtt_tls"
_START_S = 15.0
_STOP_S = 2.0


class Rules:
    """Who may do what, by user name; read again at `load`. One per process, since amqtt makes its plugins itself."""

    grants: dict[str, tuple[Grant, ...]]
    revoked: frozenset[int]
    context: ssl.SSLContext | None

    def __init__(self) -> None:
        self.grants = {}
        self.revoked = frozenset()
        self.context = None

    def load(self, directory: BrokerDirectory) -> None:
        """Read the register of a directory, and show its certificate of now to who connects from now on."""
        register = directory.register()
        self.grants = {entry.name: grants_of(entry) for entry in register.current()}
        self.revoked = frozenset(entry.revocation[0] for entry in register if entry.revoked)
        if self.context is not None:
            self.context.load_cert_chain(directory.server)

    def allow(self, user: str | None, verb: str, topic: str | None) -> bool:
        """Whether a user may read or write a topic."""
        return bool(topic) and allows(self.grants.get(user or "", ()), verb, topic or "")


RULES = Rules()


class CertificatePlugin(BaseAuthPlugin):  # type: ignore[misc]  # amqtt has no stubs
    """Lets in who shows a certificate that is not revoked, as its common name alone."""

    @dataclass
    class Config:
        """Nothing to set."""

    async def authenticate(self, *, session: Session) -> bool | None:
        """Whether certificate, client id and will fit together; the certificate's name becomes the user name."""
        shown = session.ssl_object.getpeercert(binary_form=True) if session.ssl_object else None
        if not shown:
            return False
        certificate = x509.load_der_x509_certificate(shown)
        names = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [session.client_id] or certificate.serial_number in RULES.revoked:
            return False
        session.username = session.client_id
        return not session.will_flag or RULES.allow(session.username, "write", session.will_topic)


class AccessPlugin(BaseTopicPlugin):  # type: ignore[misc]  # amqtt has no stubs
    """Allows what `Rules` allow."""

    @dataclass
    class Config:
        """Nothing to set."""

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        """Whether a session may do this; a subscription is judged message by message, as Mosquitto does."""
        if action == Action.SUBSCRIBE:
            return True
        verb = "write" if action == Action.PUBLISH else "read"
        return RULES.allow(session.username if session else None, verb, topic)


class CertifiedBroker(LeanBroker):
    """amqtt that lets nobody in without a certificate, and can end a session."""

    @staticmethod
    def _create_ssl_context(listener: Any) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=listener["cafile"])
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(listener["certfile"], listener["keyfile"])
        # Optional here, required by the plugin: asyncio ends a handshake that fails without telling the client why.
        context.verify_mode = ssl.CERT_OPTIONAL
        RULES.context = context
        return context

    async def _publish_retained_messages_for_subscription(self, subscription: Any, session: Session) -> None:
        """Send what is retained and may be read: amqtt asks nobody here, and on connect takes everybody's filters."""
        topic_filter, qos = subscription
        handler = self._get_handler(session)
        kept = [
            retained
            for topic, retained in self._retained_messages.items()
            if self._matches(topic, topic_filter) and RULES.allow(session.username, "read", topic)
        ]
        if handler is not None:
            await asyncio.gather(
                *(handler.mqtt_publish(one.topic, one.data, min(qos, one.qos or qos), retain=True) for one in kept)
            )

    async def end_sessions(self, allowed: Callable[[str], bool]) -> None:
        """End the sessions of clients that are not allowed any more."""
        for client_id, (_, handler) in list(self._sessions.items()):
            if not allowed(client_id):
                await handler.handle_connection_closed()
                await self._delete_session(client_id)


async def serve(
    directory: BrokerDirectory, listen: Address, *, ready: Callable[[], None], events: asyncio.Queue[str]
) -> None:
    """Run until `events` says "stop"; at "reload" the register is read again.

    Raises:
        BrokerStartFailed: it does not come up.
    """
    RULES.load(directory)
    listener = ListenerConfig(
        bind=str(listen),
        ssl=True,
        cafile=str(directory.ca_certificate),
        certfile=str(directory.server),
        keyfile=str(directory.server),
    )
    plugins: dict[str, dict[str, Any]] = {f"{_MODULE}.CertificatePlugin": {}, f"{_MODULE}.AccessPlugin": {}}
    broker = CertifiedBroker(BrokerConfig(listeners={"default": listener}, plugins=plugins))
    try:
        await asyncio.wait_for(broker.start(), timeout=_START_S)
    except Exception as error:  # amqtt wraps whatever it meets
        raise BrokerStartFailed(f"the embedded broker did not come up: {error}") from error
    ready()
    while await events.get() != "stop":
        RULES.load(directory)
        await broker.end_sessions(RULES.grants.__contains__)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(broker.shutdown(), timeout=_STOP_S)
