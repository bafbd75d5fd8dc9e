"""Whether the broker is up is asked of the system: a connection that ends without a word is an error in a TLS log."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from secured_broker import SecuredBroker

from quarl_edge.broker import address
from quarl_edge.broker.address import Address

ALL = "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_is_listened_at_from_the_moment_that_somebody_listens(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((host, 0))
        place = Address(host=host, port=server.getsockname()[1])
        assert not place.is_listened_at()
        server.listen()
        assert place.is_listened_at()
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()  # nobody has connected to find out
    assert not place.is_listened_at()


@pytest.mark.parametrize(
    ("host", "everywhere"),
    [("127.0.0.1", ALL), ("localhost", ALL), ("::1", "::"), ("127.0.0.1", "::")],
)
def test_who_listens_everywhere_listens_there_too(host, everywhere):
    family = socket.AF_INET6 if ":" in everywhere else socket.AF_INET
    with socket.create_server((everywhere, 0), family=family) as server:
        assert Address(host=host, port=server.getsockname()[1]).is_listened_at()


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("127.0.0.1", "127.0.0.2"),
        ("::1", "127.0.0.1"),
        ("127.0.0.1", "::1"),
        (ALL, "127.0.0.1"),
        ("::1", ALL),
    ],
)
def test_who_listens_at_another_address_of_the_port_is_not_it(asked, taken):
    """Or a broker would be said to be up that has not begun to listen."""
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    with socket.create_server((taken, 0), family=family) as server:
        port = server.getsockname()[1]
        assert not Address(host=asked, port=port).is_listened_at()
        assert Address(host=taken, port=port).is_listened_at()


def test_an_ipv4_socket_in_the_table_of_ipv6_is_known():
    with socket.socket(socket.AF_INET6) as server:
        server.bind(("::ffff:127.0.0.1", 0))
        server.listen()
        assert Address(host="127.0.0.1", port=server.getsockname()[1]).is_listened_at()


def test_a_name_that_nobody_knows_is_listened_at_by_nobody(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert not Address(host="nobody.invalid", port=1883).is_listened_at()


def test_where_the_system_does_not_say_it_is_tried(monkeypatch):
    monkeypatch.setattr(address, "_TABLES", ())
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert Address(host="127.0.0.1", port=server.getsockname()[1]).is_listened_at()
    assert not Address(host="127.0.0.1", port=1).is_listened_at()


def test_a_broker_comes_up_and_serves_without_an_error_in_its_log():
    with SecuredBroker({"pi-1": ("device", "default")}) as broker:
        link = broker.link("pi-1")
        link.connect(timeout_s=20)
        link.close()
        assert broker.end() == 0
        said = broker.said()
    assert "rror" not in said


def test_make_install_says_what_takes_so_long():
    """A minute of silence looks like a machine that hangs."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "MAKEFLAGS": ""}
    shown = subprocess.run(
        ["make", "-n", "-B", "install", f"PYTHON={sys.executable}"],
        cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert "one to three minutes" in shown
    (pip,) = [line for line in shown.splitlines() if "pip" in line and "learner,dev" in line]
    assert " -q" not in pip
