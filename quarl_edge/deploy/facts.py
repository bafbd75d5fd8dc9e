"""A board as it says it is: asked by `board_probe`, read without trust."""

from __future__ import annotations

import time
from dataclasses import dataclass

from quarl_device.errors import BoardUnfit, PayloadRefused
from quarl_device.wire.strict_json import MAX_UNIX_S, Reader, loads
from quarl_edge.deploy.host import MAX_OUTPUT_BYTES, Host
from quarl_edge.deploy.scripts import no_python, on_board, said_of

_PROBE_TIMEOUT_S = 60.0
_MAX_BYTES = 2.0**60


@dataclass(frozen=True, kw_only=True)
class BoardFacts:
    """What a board is.

    Attributes:
        machine: as `uname -m` says: "aarch64", "armv7l", "x86_64".
        bits: of its Python, which may be 32 under a kernel of 64.
        system: "Linux".
        os_name: as /etc/os-release says.
        model: of the board, "" where it does not say.
        glibc: (major, minor), `None` for another C library.
        python: version of its python3.
        implementation: of it: "cpython".
        pip: version, "" where it has none.
        ensurepip: whether it makes a venv with pip by itself.
        free_bytes: where /opt/quarl-edge is, or will be.
        home_free_bytes: in the home directory of the user that logged in.
        home: that directory.
        uid: of that user; 0 is root.
        sudo: whether there is sudo.
        systemd: whether systemd runs the board.
        unix_s: its clock.
        clock_ahead_s: of this computer's; what the answer took is not known better than to half of it.
        temperature_c: of its hottest zone, `None` where it does not say.
        throttled: flags of a Raspberry Pi's firmware, `None` elsewhere.
    """

    machine: str
    bits: int
    system: str
    os_name: str
    model: str
    glibc: tuple[int, int] | None
    python: tuple[int, int, int]
    implementation: str
    pip: str
    ensurepip: bool
    free_bytes: float
    home_free_bytes: float
    home: str
    uid: int
    sudo: bool
    systemd: bool
    unix_s: float
    clock_ahead_s: float
    temperature_c: float | None
    throttled: int | None

    @property
    def root(self) -> str:
        """What a command that needs root begins with: "" for root itself."""
        return "" if self.uid == 0 else "sudo -n "


async def ask_board(host: Host) -> BoardFacts:
    """Ask a board what it is.

    Raises:
        BoardUnfit: it has no Python, or one that cannot say.
        PayloadRefused: its answer does not hold.
        BoardUnreachable: see `Host.run`.
    """
    begun_s = time.time()
    ran = await host.run(on_board("board_probe"), timeout_s=_PROBE_TIMEOUT_S)
    middle_s = (begun_s + time.time()) / 2
    if ran.status == 127:
        raise no_python(host)
    if ran.status != 0:
        raise BoardUnfit(f"python3 of {host.name} cannot say what the board is: {said_of(ran)}")
    return read_facts(ran.stdout, now_unix_s=middle_s)


def read_facts(payload: bytes, *, now_unix_s: float) -> BoardFacts:
    """Read an untrusted answer.

    Args:
        payload: what `board_probe` printed.
        now_unix_s: this computer's clock when the board was asked.

    Raises:
        PayloadRefused: it does not hold.
    """
    read = loads(payload, what="the board's answer", cap_bytes=MAX_OUTPUT_BYTES)
    read.schema()
    unix_s = read.number("unix_s", low=-MAX_UNIX_S, high=MAX_UNIX_S)
    return BoardFacts(
        machine=_word(read, "machine"),
        bits=read.integer("bits", low=32, high=64),
        system=_word(read, "system"),
        os_name=_word(read, "os_name"),
        model=_word(read, "model"),
        glibc=_glibc(read),
        python=_python(read),
        implementation=_word(read, "implementation"),
        pip="" if read.raw("pip") is None else _word(read, "pip"),
        ensurepip=read.boolean("ensurepip"),
        free_bytes=read.number("free_bytes", low=0, high=_MAX_BYTES),
        home_free_bytes=read.number("home_free_bytes", low=0, high=_MAX_BYTES),
        home=_word(read, "home"),
        uid=read.integer("uid"),
        sudo=read.boolean("sudo"),
        systemd=read.boolean("systemd"),
        unix_s=unix_s,
        clock_ahead_s=unix_s - now_unix_s,
        temperature_c=None if read.raw("temperature_c") is None else read.number("temperature_c", low=-300, high=1000),
        throttled=None if read.raw("throttled") is None else read.integer("throttled"),
    )


def _word(read: Reader, name: str) -> str:
    return read.line(name, max_length=200)


def _glibc(read: Reader) -> tuple[int, int] | None:
    if read.raw("glibc") is None:
        return None
    parts = _word(read, "glibc").split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts[:2]):
        raise PayloadRefused(f"the board's answer: 'glibc' is {'.'.join(parts)!r}, expected a version")
    return int(parts[0]), int(parts[1])


def _python(read: Reader) -> tuple[int, int, int]:
    found = read.array("python", max_length=3)
    if len(found) != 3 or not all(type(part) is int and 0 <= part < 1000 for part in found):
        raise PayloadRefused("the board's answer: 'python' is no version of three numbers")
    return found[0], found[1], found[2]
