"""W9: a device writes only its own `up/` and reads only what is its own or its fleet's; shown by what arrives."""

import time

import pytest
from secured_broker import SecuredBroker

from quarl_device.errors import BrokerRefused
from quarl_device.link import Will
from quarl_device.testing.link_conformance import Heard, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

FLEETS = ("lab", "yard")
CLIENTS = {
    "pi-1": ("device", "lab"),
    "pi-2": ("device", "lab"),
    "far": ("device", "yard"),
    "lab-learner": ("learner", "lab"),
    "eye": ("viewer", "lab"),
}
LEAVES = (
    "learner",
    "learner/telemetry",
    "live/policy",
    "live/edgetpu",
    "blob/00ff/0",
    "tuf/timestamp.json",
    "tuf/index",
    *(f"d/{name}/up/{leaf}" for name in ("pi-1", "pi-2", "far") for leaf in ("state", "xp", "need", "telemetry")),
    *(f"d/{name}/down/{leaf}" for name in ("pi-1", "pi-2", "far") for leaf in ("ack", "desired")),
)
TOPICS = [f"q/v1/{fleet}/{leaf}" for fleet in FLEETS for leaf in LEAVES]
STRAY = ["elsewhere", "q/v1/lab", "q/v2/lab/learner", "q/v1/lab/d/pi-1", "q/v1/lab/d/pi-10/up/xp", "$SYS/broker/uptime"]
OWN = tuple(f"q/v1/lab/d/pi-1/up/{leaf}" for leaf in ("state", "xp", "need", "telemetry"))


@pytest.fixture(scope="module", params=["mosquitto", "amqtt"])
def broker(request):
    with SecuredBroker(CLIENTS, engine=request.param) as running:
        yield running


@pytest.fixture
def connected(broker):
    links = []

    def make(name, **options):
        link = broker.link(name, **options)
        link.connect(timeout_s=10.0)
        links.append(link)
        return link

    yield make
    for link in links:
        link.close()


def listening(connected, name, *filters):
    heard, link = Heard(), connected(name)
    for topic_filter in filters:
        link.subscribe(topic_filter, heard)
    assert link.flush(timeout_s=10.0)
    return heard


def arrived(heard, payload):
    return [message.topic for message in list(heard.messages) if message.payload == payload]


def test_w9_a_device_writes_its_own_up_and_nothing_else(connected):
    # The controller reads every fleet: whatever the broker takes, it hears.
    heard = listening(connected, "controller", "q/v1/lab/#", "q/v1/yard/#")
    device = connected("pi-1")
    for topic in [*TOPICS, *STRAY]:
        if not topic.startswith("$SYS"):
            device.publish(topic, b"mine", qos=1)
            device.publish(topic, b"kept", qos=1, retain=True)
    assert device.publish(OWN[1], b"end mark")
    assert device.flush(timeout_s=10.0)
    assert until(lambda: arrived(heard, b"end mark"))
    assert sorted(arrived(heard, b"mine")) == sorted(OWN)
    for topic in OWN:
        device.publish(topic, b"", retain=True)
    assert device.flush(timeout_s=10.0)
    late = listening(connected, "learner", "q/v1/lab/#", "q/v1/yard/#", "q/v1/+/learner/#", "q/v1/+/live/#")
    time.sleep(0.3)
    assert not arrived(late, b"kept")


def writers(connected):
    """Whoever may write each topic, so that it is really there to be read."""
    learner, controller = connected("learner"), connected("controller")
    devices = {name: connected(name) for name in ("pi-2", "far")}

    def write(topic):
        _, _, fleet, *leaf = topic.split("/")
        if leaf[0] == "tuf" or leaf[-1] == "desired":
            return controller
        if leaf[0] == "d" and leaf[2] == "up":
            home = "yard" if leaf[1] == "far" else "lab"
            return devices.get(leaf[1]) if home == fleet else None
        return learner

    return write, [learner, controller, *devices.values()]


def test_w9_a_device_reads_its_own_and_its_fleets_and_nothing_else(connected):
    filters = ["#", "+/#", "q/#", "q/v1/+/#", "q/v1/lab/#", "q/v1/lab/d/+/#", "$SYS/#", "q/v1/+/d/+/up/xp", *TOPICS]
    heard = listening(connected, "pi-1", *filters)
    write, links = writers(connected)
    written = set()
    for topic in TOPICS:
        writer = write(topic)
        if writer is not None and writer.publish(topic, b"news"):
            written.add(topic)
    assert all(link.flush(timeout_s=10.0) for link in links)
    assert len(written) > 30
    fleet = {f"q/v1/lab/{leaf}" for leaf in LEAVES if leaf.split("/")[0] in ("learner", "live", "blob", "tuf")}
    mine = fleet | {f"q/v1/lab/d/pi-1/down/{leaf}" for leaf in ("ack", "desired")}
    assert mine <= written
    assert until(lambda: mine <= set(arrived(heard, b"news")))
    time.sleep(0.3)
    assert set(arrived(heard, b"news")) == mine
    assert not [message.topic for message in heard.messages if message.topic.startswith("$SYS")]


def test_w9_what_is_retained_elsewhere_is_not_read_either(connected):
    write, links = writers(connected)
    kept = [topic for topic in TOPICS if write(topic) is not None]
    for topic in kept:
        write(topic).publish(topic, b"old news", retain=True)
    assert all(link.flush(timeout_s=10.0) for link in links)
    heard = listening(connected, "pi-1", "#", *TOPICS)
    assert until(lambda: "q/v1/lab/learner" in arrived(heard, b"old news"))
    time.sleep(0.3)
    allowed = ("q/v1/lab/learner", "q/v1/lab/live", "q/v1/lab/blob", "q/v1/lab/tuf", "q/v1/lab/d/pi-1")
    assert all(topic.startswith(allowed) for topic in arrived(heard, b"old news"))
    for topic in kept:
        write(topic).publish(topic, b"", retain=True)
    assert all(link.flush(timeout_s=10.0) for link in links)


def test_w9_a_learner_of_one_fleet_and_a_viewer_stay_in_theirs(connected):
    heard = listening(connected, "controller", "q/v1/lab/#", "q/v1/yard/#")
    learner, eye = connected("lab-learner"), connected("eye")
    for topic in TOPICS:
        learner.publish(topic, b"learner's")
        eye.publish(topic, b"viewer's")
    learner.publish("q/v1/lab/learner", b"end mark")
    assert eye.flush(timeout_s=10.0)
    assert until(lambda: arrived(heard, b"end mark"))
    own = {f"q/v1/lab/{leaf}" for leaf in LEAVES if leaf.split("/")[0] in ("learner", "live", "blob")}
    own |= {f"q/v1/lab/d/{name}/down/ack" for name in ("pi-1", "pi-2", "far")}
    assert set(arrived(heard, b"learner's")) == own
    assert not arrived(heard, b"viewer's")


def test_w9_a_will_is_no_way_around(broker, connected):
    heard = listening(connected, "controller", "q/v1/lab/#")
    foreign = broker.link("pi-1", will=Will(topic="q/v1/lab/learner", payload=b"last words", retain=False))
    if broker.engine == "amqtt":
        with pytest.raises(BrokerRefused):
            foreign.connect(timeout_s=5.0)
    else:
        die(foreign)
    die(broker.link("pi-1", will=Will(topic="q/v1/lab/d/pi-1/up/state", payload=b"last words", retain=False)))
    assert until(lambda: arrived(heard, b"last words"))
    assert arrived(heard, b"last words") == ["q/v1/lab/d/pi-1/up/state"]


def die(link):
    link.connect(timeout_s=10.0)
    link._loop.client.socket().shutdown(2)
    assert until(lambda: link.counters.connections > 1)
    link.close()


def test_w9_a_device_cannot_take_anothers_name(broker, connected):
    victim = connected("pi-2")
    before = victim.counters.connections
    thief = broker.link("pi-2", tls=broker.credentials("pi-1").tls())
    if broker.engine == "amqtt":
        with pytest.raises(BrokerRefused):
            thief.connect(timeout_s=5.0)
        # It ends the other's session before it looks at the certificate, as docs/guides/broker.md says.
        return
    thief.connect(timeout_s=10.0)
    heard = listening(connected, "controller", "q/v1/lab/#")
    thief.publish("q/v1/lab/d/pi-2/up/xp", b"forged")
    thief.publish("q/v1/lab/d/pi-1/up/xp", b"as itself")
    assert until(lambda: arrived(heard, b"as itself"))
    assert not arrived(heard, b"forged")
    assert victim.connected
    assert victim.counters.connections == before
    thief.close()
