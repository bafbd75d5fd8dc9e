"""sd_notify: what a service manager hears, that nothing blocks or raises, and that pings come from one thread alone."""

import contextlib
import math
import os
import socket

import pytest

from quarl_device.notify import Notifier, linger


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    """A manager's socket and its address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5.0)
        name = str(tmp_path / "notify") if request.param == "path" else f"@quarl-{os.getpid()}-{id(listening)}"
        listening.bind(name.replace("@", "\0") if request.param == "abstract" else name)
        yield listening, name


def heard(listening):
    """Return the datagrams that have come."""
    listening.setblocking(False)
    found = []
    try:
        while True:
            found.append(listening.recv(4096).decode())
    except BlockingIOError:
        return found


def fill(listening, address):
    """Fill the manager's queue, so that it takes no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.sendto(b"x", address.replace("@", "\0"))


def test_what_is_said_comes(manager):
    listening, address = manager
    notifier = Notifier(address)
    notifier.ready("no learner")
    notifier.status("acts\nwith  7")
    notifier.stopping("SIGTERM")
    notifier.alive()
    assert heard(listening) == ["READY=1\nSTATUS=no learner", "STATUS=acts with  7", "STOPPING=1\nSTATUS=SIGTERM"]


def test_pings_are_as_rare_as_they_may_be(manager):
    listening, address = manager
    clock = Clock()
    notifier = Notifier(address, watchdog_s=60.0, clock=clock)
    notifier.alive()
    assert heard(listening) == ["WATCHDOG=1"]
    for _ in range(600):
        clock.now_s += 0.1
        notifier.alive()
    assert 2 <= len(heard(listening)) <= 3
    assert not notifier.is_due
    clock.now_s += 20.0
    assert notifier.is_due


def test_a_status_is_no_ping(manager):
    listening, address = manager
    clock = Clock()
    notifier = Notifier(address, watchdog_s=60.0, clock=clock)
    for _ in range(100):
        clock.now_s += 5.0
        notifier.status("still here")
    assert notifier.is_due
    assert not any("WATCHDOG" in each for each in heard(listening))


def test_without_a_watchdog_nothing_is_due(manager):
    listening, address = manager
    clock = Clock()
    notifier = Notifier(address, clock=clock)
    clock.now_s = 1e9
    notifier.alive()
    assert not notifier.is_due
    assert heard(listening) == []


@pytest.mark.parametrize("watchdog_s", [0.0, 60.0])
def test_a_manager_that_does_not_read_is_told_later(manager, watchdog_s):
    listening, address = manager
    clock = Clock()
    notifier = Notifier(address, watchdog_s=watchdog_s, clock=clock)
    fill(listening, address)
    notifier.ready("first")
    notifier.status("second")
    notifier.alive()
    heard(listening)
    clock.now_s += 1.0
    assert notifier.is_due
    notifier.alive()
    (said,) = heard(listening)
    lines = said.split("\n")
    assert lines[:2] == ["READY=1", "STATUS=second"]
    assert lines[2:] == (["WATCHDOG=1"] if watchdog_s else [])
    clock.now_s += 1.0
    notifier.alive()
    assert heard(listening) == []


def test_a_ping_that_was_not_taken_is_not_sent_by_another_thread_later(manager):
    listening, address = manager
    clock = Clock()
    notifier = Notifier(address, watchdog_s=60.0, clock=clock)
    fill(listening, address)
    notifier.alive()
    heard(listening)
    clock.now_s += 100.0
    notifier.status("from the ticker")
    assert heard(listening) == ["STATUS=from the ticker"]
    assert notifier.is_due


@pytest.mark.parametrize("address", ["", "@", "relative", "vsock:2:1", "/no/such/socket", "/" + "x" * 500, "/a\0b"])
def test_no_manager_is_no_error(address):
    notifier = Notifier(address, watchdog_s=1.0)
    notifier.ready("x")
    notifier.status("y")
    notifier.alive()
    notifier.stopping()


@pytest.mark.parametrize(
    ("said", "period_s"),
    [
        ({}, math.inf),
        ({"WATCHDOG_USEC": "60000000"}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, math.inf),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "x"}, math.inf),
        ({"WATCHDOG_USEC": "0"}, math.inf),
        ({"WATCHDOG_USEC": "-5"}, math.inf),
        ({"WATCHDOG_USEC": "1e6"}, math.inf),
        ({"WATCHDOG_USEC": "9" * 5000}, math.inf),
    ],
)
def test_the_environment_says_who_listens(manager, said, period_s):
    listening, address = manager
    environment = {"NOTIFY_SOCKET": address, "HOME": "/x", **said}
    notifier = Notifier.from_environment(environment)
    assert environment == {"HOME": "/x"}
    assert notifier._period_s == period_s
    notifier.ready()
    assert heard(listening) == ["READY=1"]


def test_lingering_pings_and_ends_when_it_is_asked_to(manager):
    listening, address = manager
    clock = Clock()
    notifier = Notifier(address, watchdog_s=30.0, clock=clock)
    linger(notifier, "certificate revoked", for_s=60.0, sleep=clock.advance)
    said = heard(listening)
    assert "READY=1" in said[0]
    assert "will be started anew: certificate revoked" in "".join(said)
    assert sum("WATCHDOG=1" in one for one in said) >= 5
    began_s = clock()
    linger(notifier, "again", ended=lambda: True, sleep=clock.advance)
    linger(Notifier(), "nobody listens", sleep=clock.advance)
    assert clock() == began_s


def test_without_a_manager_in_the_environment(monkeypatch):
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    notifier = Notifier.from_environment()
    notifier.ready()
    assert not notifier.is_due
