"""The fault proxy fails as it says: a proxy that did nothing would make every test of faults pass."""

import contextlib
import itertools
import random
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.testing.link_conformance import until
from quarl_device.testing.packet_faults import FaultyPackets, PacketFaults, split_packets
from quarl_device.testing.tcp_proxy import TcpProxy


class Echo:
    """A server that sends back what it gets, and keeps it."""

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port, self.heard = self._server.getsockname()[1], bytearray()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._server.accept()
                with sock, contextlib.suppress(OSError):
                    while data := sock.recv(65_536):
                        self.heard += data
                        sock.sendall(data)

    def close(self):
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo):
    with TcpProxy(echo.port) as proxy:
        yield proxy


def dial(proxy):
    sock = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    sock.settimeout(10)
    return sock


def receive(sock, count):
    data = b""
    while len(data) < count and (more := sock.recv(count - len(data))):
        data += more
    return data


def silent(sock, seconds=0.2):
    sock.settimeout(seconds)
    try:
        return sock.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        sock.settimeout(10)


def test_without_faults_bytes_pass_as_they_are(proxy):
    data = random.Random(0).randbytes(300_000)
    with dial(proxy) as sock:
        threading.Thread(target=sock.sendall, args=(data,), daemon=True).start()
        assert receive(sock, len(data)) == data


@pytest.mark.parametrize("count", [1, 7, 100])
def test_a_cut_after_bytes_up_lets_exactly_these_through(proxy, echo, count):
    with dial(proxy) as sock:
        proxy.cut_after("up", count)
        sock.sendall(bytes(range(1, 200)))
        with contextlib.suppress(ConnectionError):
            while sock.recv(4096):
                pass
    assert until(lambda: len(echo.heard) >= count)
    assert bytes(echo.heard) == bytes(range(1, 200))[:count]
    with dial(proxy) as again:
        again.sendall(b"x")
        assert receive(again, 1) == b"x", "it cuts once"


def test_a_cut_after_bytes_down_counts_what_comes_back(proxy):
    with dial(proxy) as sock:
        proxy.cut_after("down", 3)
        sock.sendall(b"abcdef")
        assert receive(sock, 6) == b"abc"


def test_half_open_connections_stay_open_and_silent_and_new_ones_work(proxy, echo):
    with dial(proxy) as sock:
        sock.sendall(b"a")
        assert receive(sock, 1) == b"a"
        proxy.half_open()
        sock.sendall(b"lost")
        assert silent(sock)
        with dial(proxy) as other:
            # The server of this test takes one connection after the other.
            sock.close()
            other.sendall(b"b")
            assert receive(other, 1) == b"b"
    assert bytes(echo.heard) == b"ab"


def test_healing_does_not_wake_what_went_silent(proxy):
    with dial(proxy) as sock:
        sock.sendall(b"a")
        receive(sock, 1)
        proxy.half_open()
        proxy.heal()
        sock.sendall(b"b")
        assert silent(sock)


def test_a_stall_holds_bytes_back_and_loses_none(proxy):
    with dial(proxy) as sock:
        proxy.stall()
        sock.sendall(b"late")
        assert silent(sock)
        proxy.heal()
        assert receive(sock, 4) == b"late"


def test_a_delay_delays_both_directions(proxy):
    proxy.shape(delay_s=0.1)
    with dial(proxy) as sock:
        began = time.monotonic()
        sock.sendall(b"x")
        assert receive(sock, 1) == b"x"
        assert time.monotonic() - began >= 0.2


def test_a_throttle_bounds_the_rate_and_ends_when_it_is_healed(proxy):
    proxy.shape(bytes_per_s=10_000)
    with dial(proxy) as sock:
        began = time.monotonic()
        sock.sendall(bytes(5_000))
        assert receive(sock, 2_000) == bytes(2_000)
        assert time.monotonic() - began >= 0.15
        proxy.heal()
        sock.sendall(bytes(1_000_000))
        assert len(receive(sock, 1_003_000)) == 1_003_000
        assert time.monotonic() - began < 20, "100 s at the old rate"


def test_closing_ends_whatever_waits(echo):
    proxy = TcpProxy(echo.port)
    proxy.shape(delay_s=60, bytes_per_s=1)
    with dial(proxy) as sock:
        sock.sendall(bytes(100))
        began = time.monotonic()
        proxy.close()
        assert time.monotonic() - began < 10
        assert not [thread for thread in proxy._threads if thread.is_alive()]


# -- packets ---------------------------------------------------------------------------------------------------------


def publish(number, *, qos=1, size=0):
    topic = b"t/%d" % number
    body = len(topic).to_bytes(2) + topic + (number.to_bytes(2) if qos else b"") + bytes(size)
    length, left = b"", len(body)
    while True:
        length += bytes([left % 128 | (0x80 if left >= 128 else 0)])
        left //= 128
        if not left:
            return bytes([0x30 | qos << 1]) + length + body


PING = b"\xc0\x00"


def faulty(seed=0, **faults):
    return FaultyPackets(PacketFaults(**faults), random.Random(seed))


def test_a_lost_message_is_acknowledged_in_the_place_of_its_receiver():
    assert faulty(drop=1).feed(publish(258, size=300)) == (b"", b"\x40\x02\x01\x02")
    assert faulty(drop=1).feed(publish(5, qos=0)) == (b"", b"")


def test_other_packets_and_qos_2_are_left_alone():
    everything = PING + publish(1, qos=2) + b"\x40\x02\x00\x07"
    assert faulty(drop=1).feed(everything) == (everything, b"")


def test_a_repeated_message_is_marked_as_one():
    first = publish(1)
    assert faulty(duplicate=1).feed(first) == (first + bytes([first[0] | 8]) + first[1:], b"")
    assert faulty(duplicate=1).feed(publish(2, qos=0)) == (publish(2, qos=0) * 2, b"")


def test_a_late_message_comes_after_the_next_packet():
    packets = faulty(reorder=1)
    assert packets.feed(publish(1)) == (b"", b"")
    assert packets.feed(PING) == (PING + publish(1), b"")


def test_the_same_seed_gives_the_same_faults():
    stream = b"".join(publish(number) for number in range(1, 200))
    fates = [faulty(seed, drop=0.2, duplicate=0.2, reorder=0.2).feed(stream) for seed in (1, 1, 2)]
    assert fates[0] == fates[1] != fates[2]


@given(sizes=st.lists(st.integers(0, 300), max_size=8), cuts=st.lists(st.integers(0, 3_000), max_size=6))
def test_however_bytes_are_cut_the_packets_are_the_same(sizes, cuts):
    stream = b"".join(publish(number, size=size) for number, size in enumerate(sizes))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    packets = faulty()
    out = b"".join(packets.feed(stream[low:high])[0] for low, high in itertools.pairwise(edges))
    assert out == stream
    assert b"".join(split_packets(stream)[0]) == stream


def test_what_is_no_mqtt_breaks_the_connection():
    with pytest.raises(ConnectionError, match="no MQTT"):
        faulty().feed(b"\x30\xff\xff\xff\xff\x01")


def test_a_filter_lies_in_connections_that_begin_after_it_and_healing_cuts_them(proxy):
    proxy.filter_packets(lambda _: faulty(drop=1))
    with dial(proxy) as sock:
        sock.sendall(PING + publish(3))
        assert receive(sock, 6) in (PING + b"\x40\x02\x00\x03", b"\x40\x02\x00\x03" + PING)
        proxy.heal()
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""
    with dial(proxy) as sock:
        sock.sendall(publish(3))
        assert receive(sock, len(publish(3))) == publish(3)
