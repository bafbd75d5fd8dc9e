"""What a bad broker, a bad network or a bad moment can do to the link over paho, and what it must not."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
import time
import tracemalloc

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from link_factory import link_to

from quarl_device.errors import BrokerRefused, BrokerUnreachable, LinkError
from quarl_device.link import Backoff, BrokerURL, LinkLimits, PahoLink
from quarl_device.testing.link_conformance import Heard, until
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.testing.tcp_proxy import TcpProxy

CONNACK = bytes([0x20, 2, 0, 0])


class Scripted:
    """A server that answers what each connection sends first, by a function of it."""

    def __init__(self, answer, *, tls=None):
        self._answer, self._tls = answer, tls
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.accepted = 0
        self._open = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        # The thread may be about to keep one more.
        self._thread.join(5)
        assert not self._thread.is_alive()
        for sock in self._open:
            sock.close()

    def _serve(self):
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            sock.settimeout(2)
            try:
                if self._tls is not None:
                    sock = self._tls.wrap_socket(sock, server_side=True)
                self._answer(sock)
            except OSError:
                pass
            finally:
                self._open.append(sock)


def read_packet(sock):
    """Return the type and body of a short MQTT packet."""
    kind, size = _read(sock, 2)
    return kind, _read(sock, size)


def _read(sock, size):
    # Not MSG_WAITALL: a TLS socket takes no flags.
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("the client has hung up")
        data += part
    return data


def answering(*replies):
    def answer(sock):
        for reply in replies:
            _, body = read_packet(sock)
            sock.sendall(reply(body) if callable(reply) else reply)

    return answer


@pytest.fixture(scope="module")
def mosquitto():
    with Mosquitto() as broker:
        yield broker


@pytest.fixture
def proxy(mosquitto):
    with TcpProxy(mosquitto.port) as proxy:
        yield proxy


# -- servers that are no good brokers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text"),
    [(2, "client id"), (4, "user name or password"), (5, "not allowed")],
)
def test_a_final_connack_code_is_said_at_once(code, text):
    with Scripted(answering(bytes([0x20, 2, 0, code]))) as server:
        began = time.monotonic()
        with pytest.raises(BrokerRefused, match=text) as caught:
            link_to(server.port, password="x").connect(timeout_s=10)
        assert f"127.0.0.1:{server.port}" in str(caught.value)
        assert time.monotonic() - began < 5
        assert server.accepted == 1


def test_a_broker_that_is_not_ready_yet_is_asked_again():
    with Scripted(answering(bytes([0x20, 2, 0, 3]))) as server:
        with pytest.raises(BrokerUnreachable, match="code"):
            link_to(server.port).connect(timeout_s=0.5)
        assert server.accepted >= 2


def test_a_broker_of_another_mqtt_version_is_said():
    refusal = pytest.raises(BrokerUnreachable, match=r"does not speak MQTT 3\.1\.1")
    with Scripted(answering(bytes([0x20, 2, 0, 1]))) as server, refusal:
        link_to(server.port).connect(timeout_s=0.4)


def test_a_denied_subscription_is_said_with_its_topic():
    with Scripted(answering(CONNACK, lambda body: bytes([0x90, 3, *body[:2], 0x80]))) as server:
        link = link_to(server.port)
        link.subscribe("q/v1/lab/d/a/down/ack", print)
        with pytest.raises(BrokerRefused, match="denied the subscription to q/v1/lab/d/a/down/ack"):
            link.connect(timeout_s=10)


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 400 No\r\n\r\n", bytes(64), b"\xff" * 64, b"\x20" + b"\x80" * 5, b"\x20\x02\x00", b"\x90\x00", b""],
    ids=["http", "zeros", "ones", "endless length", "half a packet", "empty suback", "nothing"],
)  # fmt: skip
def test_w6_a_server_of_another_protocol_is_no_broker_and_hurts_nobody(reply):
    with Scripted(answering(reply)) as server:
        link = link_to(server.port)
        began = time.monotonic()
        with pytest.raises((BrokerUnreachable, BrokerRefused)):
            link.connect(timeout_s=0.4)
        assert time.monotonic() - began < 3
        link.close()


@settings(max_examples=25, deadline=None)
@given(junk=st.binary(min_size=1, max_size=40))
def test_w5_no_bytes_after_the_greeting_kill_the_thread(junk):
    with Scripted(answering(CONNACK + junk)) as server:
        link = link_to(server.port, client_id="junk")
        with contextlib.suppress(BrokerUnreachable, BrokerRefused):
            link.connect(timeout_s=0.05)
            assert link._loop.thread.is_alive()
        link.close(timeout_s=2)
        assert until(lambda: "link-junk" not in [thread.name for thread in threading.enumerate()])


def test_a_topic_that_is_not_text_is_left_out():
    bad, good = b"\x30\x05\x00\x02\xff\xfe!", b"\x30\x04\x00\x01t!"
    suback = lambda body: bytes([0x90, 3, *body[:2], 0])  # noqa: E731
    with Scripted(answering(CONNACK, lambda body: suback(body) + bad + good)) as server:
        link, heard = link_to(server.port), Heard()
        link.subscribe("#", heard)
        link.connect(timeout_s=5)
        assert [message.payload for message in heard.wait(1)] == [b"!"]
        assert link.connected
        link.close()


def test_w4_a_message_larger_than_any_of_this_protocol_is_left_out_without_memory_and_acknowledged(caplog):
    """Ending the connection would let whoever sends it keep this client off the broker."""
    size = 24 * 1024 * 1024
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21 & 127])
    answers = []

    def answer(sock):
        read_packet(sock)
        sock.sendall(CONNACK)
        _, body = read_packet(sock)
        sock.sendall(bytes([0x90, 3, *body[:2], 1]))
        head = b"\x32" + length + b"\x00\x01t" + b"\x12\x34"
        sock.sendall(head)
        part = bytes(1024 * 1024)
        for _ in range(24):
            sock.sendall(part[: len(part) - (5 if _ == 0 else 0)])
        sock.sendall(b"\x30\x04\x00\x01t!")
        answers.append(read_packet(sock))

    with Scripted(answer) as server:
        link, heard = link_to(server.port), Heard()
        link.subscribe("#", heard)
        tracemalloc.start()
        try:
            link.connect(timeout_s=5)
            assert [message.payload for message in heard.wait(1)] == [b"!"]
            # What the server above sends is in this process too.
            assert tracemalloc.get_traced_memory()[1] < 6 * 1024 * 1024
        finally:
            tracemalloc.stop()
        assert until(lambda: answers == [(0x40, b"\x12\x34")])
        assert link.connected
        assert link._loop.client.overlong == 1
        link.close()
    assert f"a message of {size} bytes on 't' is larger than any of this protocol" in caplog.text


def test_a_packet_of_another_kind_that_large_ends_the_connection():
    with Scripted(answering(CONNACK + b"\xd0\xff\xff\xff\x7f" + bytes(100))) as server:
        link = link_to(server.port)
        link.connect(timeout_s=5)
        link.close()
        assert link._loop is None


def test_a_broker_that_ends_every_connection_with_a_large_message_open_is_asked_about_its_limit(caplog):
    def answer(sock):
        read_packet(sock)
        sock.sendall(CONNACK)
        sock.recv(64)
        sock.close()

    with Scripted(answer) as server:
        link = link_to(server.port)
        link.on_connect(lambda: link.publish("t", bytes(100_000)))
        link.connect(timeout_s=5)
        assert until(lambda: "with a message of 100,000 bytes open: does it take packets of that size?" in caplog.text)
        link.close()


def test_a_bad_network_is_not_taken_for_a_limit(caplog):
    def answer(sock):
        read_packet(sock)
        sock.sendall(CONNACK)
        sock.recv(64)
        sock.close()

    with Scripted(answer) as server:
        link = link_to(server.port)
        link.on_connect(lambda: link.publish("t", bytes(1_000)))
        link.connect(timeout_s=5)
        assert until(lambda: link.counters.cut_short > 4)
        link.close()
    assert "lost the broker" in caplog.text
    assert "packets of that size" not in caplog.text


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + cert.public_bytes(serialization.Encoding.PEM))
    return path


def server_context(path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def test_an_untrusted_certificate_is_refused_at_once(certificate):
    with Scripted(answering(CONNACK), tls=server_context(certificate)) as server:
        with pytest.raises(BrokerRefused, match="certificate is not trusted"):
            link_to(server.port, tls=True).connect(timeout_s=10)
        assert server.accepted == 1


def test_a_trusted_certificate_is_taken(certificate):
    with Scripted(answering(CONNACK), tls=server_context(certificate)) as server:
        link = PahoLink(
            BrokerURL.parse(f"mqtts://127.0.0.1:{server.port}"),
            client_id="a",
            tls=ssl.create_default_context(cafile=str(certificate)),
        )
        link.connect(timeout_s=10)
        assert link.connected
        link.close()


def test_w6_a_handshake_that_is_never_answered_ends_at_its_deadline_and_is_tried_again():
    with Scripted(lambda _sock: None) as server:
        link = link_to(server.port, tls=True, limits=LinkLimits(connect_timeout_s=0.2))
        with pytest.raises(BrokerUnreachable):
            link.connect(timeout_s=1.5)
        assert server.accepted >= 2
        link.close()


# -- networks that stall -------------------------------------------------------------------------------------------


def test_w6_a_flush_ends_at_its_deadline_and_a_close_too(proxy):
    link = link_to(proxy.port)
    link.connect(timeout_s=5)
    proxy.stall()
    assert link.publish("t", b"x")
    began = time.monotonic()
    assert not link.flush(timeout_s=0.3)
    assert 0.25 < time.monotonic() - began < 2
    began = time.monotonic()
    link.close(timeout_s=0.3)
    assert time.monotonic() - began < 2
    assert not link.connected


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_network_that_is_dead_one_way_is_noticed_though_the_other_is_busy(mosquitto, proxy, way):
    """To the end that hears nothing is missing, and a keep-alive that only counts what comes would wait for ever."""
    link, heard = link_to(proxy.port, limits=LinkLimits(keepalive_s=1)), Heard()
    other = link_to(mosquitto.port, client_id="other")
    link.subscribe("to/a", heard)
    with contextlib.closing(link), contextlib.closing(other):
        other.connect(timeout_s=5)
        link.connect(timeout_s=5)
        proxy.half_open(way)
        deadline_s = time.monotonic() + 15
        while link.counters.connections < 2 and time.monotonic() < deadline_s:
            link.publish("from/a", b"x")
            other.publish("to/a", b"x")
            time.sleep(0.05)
        assert link.counters.connections == 2


def test_w6_a_flush_ends_when_the_connection_does(proxy):
    link = link_to(proxy.port)
    link.connect(timeout_s=5)
    proxy.stall()
    assert link.publish("t", b"x")
    proxy.refuse()
    threading.Timer(0.1, lambda: (proxy.stall(False), proxy.cut())).start()
    began = time.monotonic()
    link.flush(timeout_s=20)
    assert time.monotonic() - began < 10
    link.close()


def test_what_is_in_flight_is_bounded_in_number_and_bytes(proxy):
    limits = LinkLimits(max_inflight=5, max_inflight_bytes=1000, max_payload_bytes=900)
    link = link_to(proxy.port, limits=limits)
    link.connect(timeout_s=5)
    proxy.stall()
    assert [link.publish("t", b"x") for _ in range(7)] == [True] * 5 + [False] * 2
    assert link.counters.not_taken == 2
    proxy.stall(False)
    assert link.flush(timeout_s=5)
    proxy.stall()
    assert [link.publish("t", bytes(400)) for _ in range(3)] == [True, True, False]
    proxy.stall(False)
    assert link.flush(timeout_s=5)
    link.close()


def test_what_was_in_flight_at_a_cut_is_not_sent_after_the_new_birth(mosquitto):
    """Or an old retained message would win over the birth that the new connection publishes."""
    with TcpProxy(mosquitto.port) as proxy:
        watcher, heard = link_to(mosquitto.port, client_id="w"), Heard()
        watcher.subscribe("state/a", heard)
        watcher.connect(timeout_s=5)
        link = link_to(proxy.port)
        link.on_connect(lambda: link.publish("state/a", b"birth %d" % link.counters.connections))
        link.connect(timeout_s=5)
        heard.wait(1)
        proxy.stall()
        assert link.publish("state/a", b"stale")
        proxy.cut()
        assert until(lambda: not link.connected or link.counters.connections > 1)
        proxy.stall(False)
        assert until(lambda: link.counters.connections == 2 and link.connected)
        assert link.publish("state/a", b"end mark")
        assert until(lambda: heard.messages[-1].payload == b"end mark")
        payloads = [message.payload for message in heard.messages]
        assert payloads[-2:] == [b"birth 2", b"end mark"]
        link.close()
        watcher.close()


def test_w7_a_link_that_cannot_come_back_backs_off(proxy):
    asked = []

    class Recording(Backoff):
        def delay_s(self, attempt, rng):
            asked.append(attempt)
            return 0.01

    link = link_to(proxy.port, backoff=Recording())
    link.connect(timeout_s=5)
    proxy.refuse()
    proxy.cut()
    assert until(lambda: len(asked) >= 6)
    link.close()
    assert asked[:6] == [1, 2, 3, 4, 5, 6]


def test_w6_closing_a_link_ends_a_connect_that_waits():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = link_to(silent.getsockname()[1])
        threading.Timer(0.2, link.close).start()
        began = time.monotonic()
        with pytest.raises(LinkError, match="closed while connecting"):
            link.connect(timeout_s=30)
        assert time.monotonic() - began < 10


def test_a_link_may_close_itself_in_a_handler(proxy):
    link, done = link_to(proxy.port), threading.Event()
    link.subscribe("t", lambda _: (link.close(), done.set()))
    link.connect(timeout_s=5)
    assert link.publish("t", b"x")
    assert done.wait(5)
    assert not link.connected


def test_a_failed_connect_may_be_tried_again(mosquitto):
    with TcpProxy(mosquitto.port) as proxy:
        proxy.refuse()
        link = link_to(proxy.port)
        with pytest.raises(BrokerUnreachable, match=r"tried \d+ times in 0\.\d s"):
            link.connect(timeout_s=0.3)
        proxy.refuse(False)
        link.connect(timeout_s=5)
        assert link.connected
        link.close()


def test_no_thread_is_left_of_a_closed_link(mosquitto):
    link = link_to(mosquitto.port, client_id="lonely")
    link.connect(timeout_s=5)
    assert [t.name for t in threading.enumerate()].count("link-lonely") == 1
    link.close()
    assert until(lambda: "link-lonely" not in [t.name for t in threading.enumerate()], timeout_s=5)


def test_nagle_is_off_on_the_socket_itself(mosquitto):
    link = link_to(mosquitto.port)
    link.connect(timeout_s=5)
    assert link._loop.client.socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    link.close()


def test_two_clients_of_one_id_count_how_often_the_broker_ended_them_and_a_broker_that_is_away_does_not(mosquitto):
    """Mosquitto, as every MQTT broker, ends the session of the older one."""
    one, two = link_to(mosquitto.port, client_id="same"), link_to(mosquitto.port, client_id="same")
    with TcpProxy(mosquitto.port) as proxy:
        apart = link_to(proxy.port, client_id="alone")
        for link in (one, two, apart):
            link.connect(timeout_s=5)
        assert until(lambda: min(one.counters.cut_short, two.counters.cut_short) >= 3, timeout_s=20)
        for link in (one, two):
            link.close()
        proxy.cut()
        assert until(lambda: apart.counters.cut_short == 1, timeout_s=5)
        proxy.refuse()
        proxy.cut()
        assert until(lambda: apart.counters.cut_short == 0, timeout_s=5)
        apart.close()
