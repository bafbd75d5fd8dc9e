"""The link's conformance suite on the fake, the embedded broker and a real Mosquitto; and what only paho can do."""

import logging
import random
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import BrokerRefused, BrokerUnreachable, UsageError
from quarl_device.link import Backoff, BrokerURL, PahoLink, read_password
from quarl_device.testing.link_conformance import until
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.testing.tcp_proxy import TcpProxy
from quarl_edge.broker import EmbeddedBroker

USERS = {name: f"secret-{name}" for name in ("a", "b", "d", "w")}
CAP = 100_000
QUICK = Backoff(base_s=0.05, cap_s=0.2)


@pytest.fixture(scope="module")
def embedded():
    with EmbeddedBroker(USERS) as broker:
        yield broker.url


@pytest.fixture(scope="module")
def mosquitto():
    with Mosquitto(USERS) as broker:
        yield broker.url


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def paho(url, name="a", password=USERS["a"]):
    return PahoLink(BrokerURL.parse(url.replace("mqtt://", f"mqtt://{name}@")), client_id=name, password=password)


def test_w6_no_broker_is_said_with_its_address_and_how_long_it_was_tried():
    port = free_port()
    link = paho(f"mqtt://127.0.0.1:{port}")
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=rf"127.0.0.1:{port}.* in \d\.\d s"):
        link.connect(timeout_s=0.5)
    assert time.monotonic() - began < 3


def test_w6_a_server_that_says_nothing_is_no_broker():
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = paho(f"mqtt://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(BrokerUnreachable):
            link.connect(timeout_s=0.7)


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_a_wrong_password_is_refused_and_not_repeated_in_any_message(kind, request, caplog):
    caplog.set_level(logging.DEBUG)
    link = paho(request.getfixturevalue(kind), password="wrong-secret")
    with pytest.raises(BrokerRefused) as caught:
        link.connect(timeout_s=5)
    assert "wrong-secret" not in str(caught.value) + repr(link) + caplog.text


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
@pytest.mark.parametrize("user", ["", "a@"])
def test_no_password_where_one_is_wanted_is_said_with_both_ways_to_give_one(kind, user, request):
    url = request.getfixturevalue(kind).replace("mqtt://", f"mqtt://{user}")
    link = PahoLink(BrokerURL.parse(url), client_id="a")
    with pytest.raises(BrokerRefused) as caught:
        link.connect(timeout_s=5)
    assert "no password was given: QUARL_MQTT_PASSWORD is not set, or empty" in caught.value.message
    assert "wrong" not in caught.value.message
    assert "QUARL_MQTT_PASSWORD or --password-file" in caught.value.hint


def test_what_a_link_says_names_the_broker_and_what_happened(caplog):
    caplog.set_level(logging.INFO)
    with Mosquitto() as broker:
        url = BrokerURL.parse(broker.url)
        link = PahoLink(url, client_id="a", backoff=Backoff(base_s=0.05, cap_s=0.1))
        link.connect(timeout_s=5)
    assert until(lambda: "cannot connect" in caplog.text)
    with Mosquitto(port=url.port):
        assert until(lambda: f"connected to the broker at {url.address} again" in caplog.messages)
    link.close()
    said = [record.getMessage() for record in caplog.records if record.name.startswith("quarl_device.link")]
    assert said[0] == f"lost the broker at {url.address}: The connection was lost; connecting again"
    assert said[1] == (
        f"cannot connect to the broker at {url.address}: Connection refused; trying again (is it running?)"
    )


@pytest.mark.parametrize("kind", ["embedded", "mosquitto"])
def test_nobody_gets_in_without_a_name(kind, request):
    link = PahoLink(BrokerURL.parse(request.getfixturevalue(kind)), client_id="x")
    with pytest.raises(BrokerRefused):
        link.connect(timeout_s=5)


def test_nagle_is_off(embedded, monkeypatch):
    seen = []
    real = socket.socket.setsockopt
    monkeypatch.setattr(socket.socket, "setsockopt", lambda sock, *a: (seen.append(a), real(sock, *a))[1])
    link = paho(embedded)
    link.connect(timeout_s=5)
    link.close()
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in seen


def test_nothing_queues_up_behind_a_dead_link(embedded):
    with TcpProxy(BrokerURL.parse(embedded).port) as proxy:
        link = paho(f"mqtt://127.0.0.1:{proxy.port}")
        link.connect(timeout_s=5)
        proxy.refuse()
        proxy.cut()
        assert until(lambda: not link.connected, timeout_s=5)
        assert not link.publish("t", b"x")
        link.close()


@given(attempt=st.integers(0, 200), seed=st.integers(0, 999))
def test_w7_reconnects_back_off_with_full_jitter(attempt, seed):
    backoff = Backoff(base_s=0.25, cap_s=30.0)
    delay = backoff.delay_s(attempt, random.Random(seed))
    assert 0 <= delay <= min(30.0, 0.25 * 2 ** min(attempt, 64))


def test_w7_the_jitter_is_full():
    delays = [Backoff().delay_s(6, random.Random(seed)) for seed in range(200)]
    assert min(delays) < 1
    assert max(delays) > 14


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("mqtt://h", ("h", 1883, "", False)),
        ("mqtts://pi-1@broker.local", ("broker.local", 8883, "pi-1", True)),
        ("mqtt://u@[::1]:99", ("::1", 99, "u", False)),
    ],
)
def test_urls(text, parts):
    url = BrokerURL.parse(text)
    assert (url.host, url.port, url.user, url.tls) == parts


@pytest.mark.parametrize(
    "text", ["", "h", "http://h", "mqtt://", "mqtt://h:0", "mqtt://h:99999", "mqtt://h/x", "mqtt://h?x"]
)
def test_bad_urls_are_usage_errors(text):
    with pytest.raises(UsageError):
        BrokerURL.parse(text)


def test_a_password_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(UsageError, match="QUARL_MQTT_PASSWORD") as caught:
        BrokerURL.parse("mqtt://u:hunter2@h")
    assert "hunter2" not in str(caught.value)


def test_a_password_comes_from_its_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("QUARL_MQTT_PASSWORD", raising=False)
    assert read_password(None) is None
    monkeypatch.setenv("QUARL_MQTT_PASSWORD", "env")
    assert read_password(None) == "env"
    path = tmp_path / "password"
    path.write_text("file\n")
    assert read_password(path) == "file"
    path.write_text("")
    with pytest.raises(UsageError):
        read_password(path)
