"""Every link on every broker: the fake, amqtt and Mosquitto, with passwords and with certificates and access rules.

One more by its URL, which is how a clustered broker is tried (docs/guides/broker.md)::

    QUARL_TEST_BROKER_URL=mqtts://emqx.local:8883 QUARL_TEST_BROKER_CREDENTIALS=broker/clients \\
      pytest tests/device/test_link_conformance.py -k url
"""

import contextlib
import dataclasses
import os
import secrets
import ssl
from pathlib import Path

import pytest
from secured_broker import SecuredBroker

from quarl_device.link import Backoff, BrokerURL, LinkLimits, PahoLink
from quarl_device.link.credentials import Credentials
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.testing.link_conformance import LINK_CHECKS, LinkCase
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.testing.tcp_proxy import TcpProxy
from quarl_edge.broker import EmbeddedBroker

USERS = {name: f"secret-{name}" for name in ("a", "b", "d", "w")}
CAP = 100_000
QUICK = Backoff(base_s=0.05, cap_s=0.2)
# Controllers may write below it and read it: the checks' topics are put there, so that access rules are at work.
SECURED_ROOT = "q/v1/default/blob/"
URL = os.environ.get("QUARL_TEST_BROKER_URL", "")
KINDS = ["fake", "embedded", "mosquitto", "mosquitto-tls", "amqtt-tls", *(["url"] if URL else [])]


class Rooted:
    """A link whose topics all lie below `root`, without its users knowing."""

    def __init__(self, link, root):
        self._link, self._root = link, root

    def __getattr__(self, name):
        return getattr(self._link, name)

    def publish(self, topic, payload, **options):
        return self._link.publish(topic and self._root + topic, payload, **options)

    def subscribe(self, topic_filter, handler, **options):
        def unrooted(message):
            handler(dataclasses.replace(message, topic=message.topic.removeprefix(self._root)))

        self._link.subscribe(topic_filter and self._root + topic_filter, unrooted, **options)

    def set_will(self, will):
        self._link.set_will(dataclasses.replace(will, topic=self._root + will.topic))

    def unsubscribe(self, topic_filter):
        self._link.unsubscribe(self._root + topic_filter)


@contextlib.contextmanager
def fake_case(_):
    broker, links = FakeBroker(USERS), []

    def make(name, will):
        links.append(broker.link(name, password=USERS[name], will=will, max_payload_bytes=CAP))
        return links[-1]

    @contextlib.contextmanager
    def outage():
        broker.down()
        yield
        broker.up()
        for link in links:
            link.reconnect()

    yield LinkCase(
        make=make,
        stranger=lambda: broker.link("a", password="wrong"),
        cut=broker.cut,
        outage=outage,
        cap_bytes=CAP,
    )


@contextlib.contextmanager
def paho_case(place):
    """Each client has a proxy of its own in front of the broker, so that it can be cut off alone."""
    with contextlib.ExitStack() as stack:
        proxies = {name: stack.enter_context(TcpProxy(place.port, host=place.host)) for name in USERS}

        def make(name, will):
            if will is not None:
                will = dataclasses.replace(will, topic=place.root + will.topic)
            link = place.link(name, proxies[name].port, will)
            stack.callback(link.close)
            return Rooted(link, place.root) if place.root else link

        @contextlib.contextmanager
        def outage():
            for proxy in proxies.values():
                proxy.refuse()
                proxy.cut()
            yield
            for proxy in proxies.values():
                proxy.refuse(False)

        yield LinkCase(
            make=make,
            stranger=lambda: place.link("a", place.port, None, stranger=True),
            cut=lambda name: proxies[name].cut(),
            outage=outage,
            cap_bytes=CAP,
        )


@dataclasses.dataclass(kw_only=True)
class Place:
    """A broker: where it is, and what each client shows there."""

    port: int
    host: str = "127.0.0.1"
    root: str = ""
    tls: dict | None = None
    stranger_tls: object = None
    passwords: dict | None = None

    def link(self, name, port, will, *, stranger=False):
        nearby = "127.0.0.1" if port != self.port else self.host
        tls = None if self.tls is None else self.stranger_tls if stranger else self.tls[name]
        password = "wrong" if stranger else (self.passwords or {}).get(name)
        return PahoLink(
            BrokerURL(host=nearby, port=port, user=name if self.passwords else "", tls=tls is not None),
            client_id=name, password=password if self.passwords else None, will=will, backoff=QUICK, tls=tls,
            limits=LinkLimits(max_payload_bytes=CAP),
        )  # fmt: skip


@pytest.fixture(scope="module")
def embedded():
    with EmbeddedBroker(USERS) as broker:
        yield Place(port=broker.port, passwords=USERS)


@pytest.fixture(scope="module")
def mosquitto():
    with Mosquitto(USERS) as broker:
        yield Place(port=broker.port, passwords=USERS)


@contextlib.contextmanager
def secured(engine):
    with SecuredBroker(dict.fromkeys(USERS, ("controller", "default")), engine=engine) as broker:
        contexts = {name: broker.credentials(name).tls() for name in USERS}
        nobody = ssl.create_default_context(cafile=str(broker.directory.ca_certificate))
        yield Place(port=broker.port, root=SECURED_ROOT, tls=contexts, stranger_tls=nobody)


@pytest.fixture(scope="module")
def mosquitto_tls():
    with secured("mosquitto") as place:
        yield place


@pytest.fixture(scope="module")
def amqtt_tls():
    with secured("amqtt") as place:
        yield place


@pytest.fixture(scope="module")
def url():
    """A broker that runs already; its clients are a, b, d and w, with credentials or with one password."""
    broker, folder = BrokerURL.parse(URL), os.environ.get("QUARL_TEST_BROKER_CREDENTIALS", "")
    if not folder:
        word = os.environ["QUARL_TEST_BROKER_PASSWORD"]
        root = f"quarl-test-{secrets.token_hex(4)}/"
        return Place(host=broker.host, port=broker.port, root=root, passwords=dict.fromkeys(USERS, word))
    contexts = {name: Credentials.load(Path(folder) / name).tls() for name in USERS}
    for context in contexts.values():
        # The clients come through a proxy on this machine, whose name is not in the certificate.
        context.check_hostname = False
    stranger = ssl.create_default_context(cafile=str(Path(folder) / "a" / "ca.crt"))
    stranger.check_hostname = False
    return Place(host=broker.host, port=broker.port, root=SECURED_ROOT, tls=contexts, stranger_tls=stranger)


@pytest.mark.parametrize("check", LINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_conformance(kind, check, request):
    place = None if kind == "fake" else request.getfixturevalue(kind.replace("-", "_"))
    with (fake_case if kind == "fake" else paho_case)(place) as case:
        check(case)
