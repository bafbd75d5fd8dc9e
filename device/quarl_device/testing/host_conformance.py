"""What every `Host` of the installer must do, as checks that a test runs against the real one and the fake.

A check is a function of a host whose root is empty; `HOST_CHECKS` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable

from quarl_device.errors import InstallFailed
from quarl_device.install.host import Entry, Host


def _raises(act: Callable[[], object]) -> None:
    try:
        act()
    except InstallFailed:
        return
    raise AssertionError("expected InstallFailed")


def check_nothing_there(host: Host) -> None:
    """What is not there is no error to look at, or to remove."""
    assert host.entry("/opt/none") is None
    assert host.read("/opt/none") is None
    assert host.names("/opt/none") == ()
    assert host.link_target("/opt/none") is None
    host.remove("/opt/none")


def check_writes(host: Host) -> None:
    """A file is written with its mode, its directories are made, and it is replaced."""
    host.write("/etc/app/password", b"one", mode=0o600)
    host.write("/etc/app/password", b"two", mode=0o644)
    entry = host.entry("/etc/app/password")
    assert host.read("/etc/app/password") == b"two"
    assert entry is not None
    assert (entry.kind, entry.mode) == ("file", 0o644)
    assert host.names("/etc/app") == ("password",)
    assert host.names("/etc") == ("app",)


def check_makes_directories(host: Host) -> None:
    """A directory is made with those above it; one that is there gets the mode."""
    host.make_directory("/var/lib/app", mode=0o750)
    host.make_directory("/var/lib/app", mode=0o700)
    found = [host.entry("/var/lib/app"), host.entry("/var/lib")]
    assert [(each.kind, each.mode) for each in found if each] == [("directory", 0o700), ("directory", 0o755)]
    assert host.read("/var/lib/app") is None


def check_links(host: Host) -> None:
    """A link is replaced in one step; what lies behind it can be read, and it is a link to look at."""
    host.write("/opt/quarl-edge/releases/a/file", b"a", mode=0o644)
    host.write("/opt/quarl-edge/releases/b/file", b"b", mode=0o644)
    for name in "ab":
        host.link("/opt/quarl-edge/current", f"releases/{name}")
        assert host.link_target("/opt/quarl-edge/current") == f"releases/{name}"
        assert host.read("/opt/quarl-edge/current/file") == name.encode()
    entry = host.entry("/opt/quarl-edge/current")
    assert entry is not None
    assert entry.kind == "link"
    host.remove("/opt/quarl-edge/current")
    assert host.read("/opt/quarl-edge/releases/b/file") == b"b"


def check_moves(host: Host) -> None:
    """A directory is renamed with what is in it, a file onto another; never onto a directory that is not empty."""
    host.write("/a/one", b"1", mode=0o600)
    host.write("/c/two", b"2", mode=0o644)
    host.move("/a", "/b")
    assert (host.read("/b/one"), host.entry("/a")) == (b"1", None)
    _raises(lambda: host.move("/b", "/c"))
    _raises(lambda: host.move("/none", "/d"))
    host.move("/b/one", "/c/two")
    entry = host.entry("/c/two")
    assert host.read("/c/two") == b"1"
    assert entry is not None
    assert entry.mode == 0o600


def check_removes(host: Host) -> None:
    """A whole directory goes."""
    host.write("/a/b/c", b"1", mode=0o644)
    host.remove("/a")
    assert host.entry("/a") is None
    assert host.names("/a") == ()


def check_refuses(host: Host) -> None:
    """A directory is no file to be written."""
    host.write("/a/b", b"1", mode=0o644)
    _raises(lambda: host.write("/a", b"2", mode=0o644))
    _raises(lambda: host.make_directory("/a/b"))


def check_owners(host: Host) -> None:
    """Without an owner it is whoever's this is, and the entry names somebody."""
    host.write("/a", b"1", mode=0o644)
    entry = host.entry("/a")
    assert isinstance(entry, Entry)
    assert entry.owner


def check_time(host: Host) -> None:
    """The clock goes on as long as the pause is."""
    before = host.now_s()
    host.pause(0.001)
    assert host.now_s() > before
    host.sync()


HOST_CHECKS: tuple[Callable[[Host], None], ...] = (
    check_nothing_there,
    check_writes,
    check_makes_directories,
    check_links,
    check_moves,
    check_removes,
    check_refuses,
    check_owners,
    check_time,
)
