"""`quarl-device spool`: what waits is shown as it is, and what is given up is lost and told."""

import errno
import json
import os

import pytest

from quarl_device.cli import main
from quarl_device.spool import recovery
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.disk import DiskSpool
from quarl_device.wire.loss import read_loss

A, B, C = ("00000000000000" + end for end in ("aa", "bb", "cc"))
CONFIG = SpoolConfig(max_bytes=64 * 1024)


def fill(directory, life, count, steps=4):
    spool = DiskSpool(directory, boot_id=life, config=CONFIG)
    for sequence in range(count):
        spool.put(sequence, f"{life} {sequence}".encode() * 100, steps=steps)
    return spool


@pytest.fixture
def pi(tmp_path):
    """Return the spool of a device with two lives that left something."""
    directory = tmp_path / "spool" / "lab.pi"
    for life, count in ((A, 12), (B, 3)):
        fill(directory, life, count)._let_go()
    return directory


def said(capsys, tmp_path, *words):
    status = main(["spool", *words, "--state-dir", str(tmp_path), "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


def held(directory):
    spool = DiskSpool(directory, boot_id=C, config=CONFIG)
    found = []
    while len(spool):
        sequence = spool.next_held(spool.base)
        loss = read_loss(spool.get(sequence))
        found.append((spool.delivering, sequence, loss and loss.lost_steps))
        spool.free(sequence)
    spool._let_go()
    return found


def test_it_shows_every_spool_and_changes_nothing(pi, tmp_path, capsys):
    (tmp_path / "spool" / "lab.other").mkdir()
    before = {path.name: path.read_bytes() for path in pi.iterdir()}
    status, listing = said(capsys, tmp_path, "ls")
    other, mine = listing["spools"]
    assert (status, other) == (0, {"name": "lab.other", "in_use": False, "lives": [], "aside": []})
    assert [(life["boot_id"], life["blocks"], life["steps"]) for life in mine["lives"]] == [(A, 12, 48), (B, 3, 12)]
    assert {path.name: path.read_bytes() for path in pi.iterdir()} == before
    assert main(["spool", "ls", "--state-dir", str(tmp_path)]) == 0
    assert f"  {A}  12 blocks, 48 steps, 22 KiB" in capsys.readouterr().out


def test_a_file_that_an_agent_removes_meanwhile_is_looked_for_no_longer(pi, tmp_path, capsys, monkeypatch):
    real, once = recovery._read, []

    def read(path):
        if not once:
            once.append(path)
            path.unlink()
        return real(path)

    monkeypatch.setattr(recovery, "_read", read)
    status, listing = said(capsys, tmp_path, "ls")
    assert (status, len(listing["spools"][0]["lives"])) == (0, 2)


def test_no_spools_are_no_fault(tmp_path, capsys):
    assert said(capsys, tmp_path, "ls") == (0, {"spools": []})


def test_the_blocks_of_one_life_are_given_up_and_told(pi, tmp_path, capsys):
    status, answer = said(capsys, tmp_path, "discard", "lab.pi", "--boot", A)
    assert (status, [life["blocks"] for life in answer["discarded"]["lives"]]) == (0, [12])
    _, listing = said(capsys, tmp_path, "ls")
    lives = {life["boot_id"]: life for life in listing["spools"][0]["lives"]}
    assert (lives[A]["blocks"], lives[A]["lost_blocks"], lives[A]["lost_steps"]) == (0, 12, 48)
    assert (lives[B]["blocks"], lives[B]["lost_blocks"]) == (3, 0)
    assert held(pi) == [(A, 11, 48), (B, 0, None), (B, 1, None), (B, 2, None)]


def test_all_are_given_up_with_what_was_set_aside(pi, tmp_path, capsys):
    (pi / ("0" * 20 + ".qs.aside")).write_bytes(b"junk")
    status, answer = said(capsys, tmp_path, "discard", "lab.pi", "--all")
    assert (status, answer["discarded"]["aside"]) == (0, ["0" * 20 + ".qs.aside"])
    assert list(pi.glob("*.aside")) == []
    assert sum(path.stat().st_size for path in pi.glob("*.qs")) < 1_000, "the space is given back"
    assert held(pi) == [(A, 11, 48), (B, 2, 12)]


@pytest.fixture
def full_disk(monkeypatch):
    """A disk without room: files grow by what others were cut by, and what they have can be written again."""
    room, real = [0], (os.pwritev, os.write, os.ftruncate)

    def grow(file, end):
        grown = max(0, end - os.fstat(file).st_size)
        if grown > room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= grown

    def pwritev(file, parts, offset):
        grow(file, offset + sum(map(len, parts)))
        return real[0](file, parts, offset)

    def write(file, data):
        grow(file, os.lseek(file, 0, os.SEEK_CUR) + len(data))
        return real[1](file, data)

    def ftruncate(file, size):
        room[0] += max(0, os.fstat(file).st_size - size)
        real[2](file, size)

    for name, function in (("pwritev", pwritev), ("write", write), ("ftruncate", ftruncate)):
        monkeypatch.setattr(os, name, function)


def failing(monkeypatch, *names, code=errno.EIO):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    for name in names:
        monkeypatch.setattr(os, name, refuse)


def test_a_disk_that_is_full_to_the_last_byte_gets_room_and_every_loss_is_told(pi, tmp_path, capsys, full_disk):
    status, answer = said(capsys, tmp_path, "discard", "lab.pi", "--all")
    assert (status, [life["blocks"] for life in answer["discarded"]["lives"]]) == (0, [12, 3])
    assert sum(path.stat().st_size for path in pi.glob("*.qs")) < 1_000, "the space is given back"
    assert held(pi) == [(A, 11, 48), (B, 2, 12)]


@pytest.mark.parametrize("life", [A, B])
def test_one_life_of_a_full_disk_is_given_up_and_the_other_is_whole(pi, tmp_path, capsys, full_disk, life):
    status, _ = said(capsys, tmp_path, "discard", "lab.pi", "--boot", life)
    whole = {one: [(one, sequence, None) for sequence in range(count)] for one, count in ((A, 12), (B, 3))}
    lost = {A: [(A, 11, 48)], B: [(B, 2, 12)]}
    assert status == 0
    # A life of which nothing but losses is left needs no file, so it comes first.
    other = B if life == A else A
    assert held(pi) == lost[life] + whole[other]


@pytest.mark.parametrize("life", [A, B])
def test_the_space_of_any_life_is_given_back_at_once(pi, tmp_path, capsys, life):
    whole = {one: sum(path.stat().st_size for path in pi.glob(f"*-{one}-*.qs")) for one in (A, B)}
    assert main(["spool", "discard", "lab.pi", "--boot", life, "--state-dir", str(tmp_path)]) == 0
    assert " KiB) of 1 lives are given up" in capsys.readouterr().out
    left = whole[B if life == A else A]
    assert left <= sum(path.stat().st_size for path in pi.glob("*.qs")) < left + 500


def test_what_was_delivered_of_another_life_does_not_come_again_with_the_file_that_said_so(pi, tmp_path, capsys):
    spool = fill(pi, C, 2)
    assert spool.delivering == A
    spool.free(4)
    spool._notes.mark()
    spool._let_go()
    assert said(capsys, tmp_path, "discard", "lab.pi", "--boot", C)[0] == 0
    assert not list(pi.glob(f"*-{C}-*.qs"))
    spool = DiskSpool(pi, boot_id="d" * 16, config=CONFIG)
    spool.free(spool.end)  # what is lost of C
    assert (spool.delivering, spool.base) == (A, 5)
    spool._let_go()


def test_a_loss_that_only_a_file_that_goes_has_told_is_told_all_the_same(pi, tmp_path, capsys):
    # The file that tells the loss of A is that of C, which goes.
    spool = DiskSpool(pi, boot_id=C, config=CONFIG)
    spool.put(0, b"c" * 100, steps=4)
    segment = spool._holdings.oldest_segment()
    spool._holdings.lose(segment, next(segment.entries()))
    assert spool._notes.keep_losses()
    spool._let_go()
    assert said(capsys, tmp_path, "discard", "lab.pi", "--boot", C)[0] == 0
    assert not list(pi.glob(f"*-{C}-*.qs"))
    _, listing = said(capsys, tmp_path, "ls")
    lives = {one["boot_id"]: (one["lost_blocks"], one["lost_steps"]) for one in listing["spools"][0]["lives"]}
    assert (lives[A], lives[C]) == ((1, 4), (1, 4))


def test_what_was_begun_on_a_full_disk_and_cut_short_is_accounted_for_too(pi, tmp_path, capsys, full_disk, monkeypatch):
    with monkeypatch.context() as died:
        failing(died, "ftruncate")
        status, _ = said(capsys, tmp_path, "discard", "lab.pi", "--all")
    assert status == 50
    assert sum(steps if steps is not None else 4 for _, _, steps in held(pi)) == 60
    assert [life for life, _, _ in held(pi)] == []


@pytest.mark.parametrize(
    ("names", "code"),
    [(("pwritev", "pwrite", "write"), errno.ENOSPC), (("pwritev", "pwrite"), errno.EROFS), (("fdatasync",), errno.EIO)],
    ids=["a full disk that writes nothing in place", "read-only", "no certainty"],
)
def test_a_disk_that_takes_no_note_of_what_is_lost_keeps_the_blocks(pi, tmp_path, capsys, monkeypatch, names, code):
    before = {path.name: path.read_bytes() for path in pi.glob("*.qs")}
    with monkeypatch.context() as disk:
        failing(disk, *names, code=code)
        status, answer = said(capsys, tmp_path, "discard", "lab.pi", "--all")
    assert (status, answer["error"]["kind"]) == (50, "StateUnwritable")
    assert os.strerror(code) in answer["error"]["message"]
    assert before.items() <= {path.name: path.read_bytes() for path in pi.glob("*.qs")}.items()


def test_nothing_given_up_is_delivered_by_the_next_start(pi, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as disk:
        failing(disk, "pwritev", "pwrite", code=errno.ENOSPC)
        assert said(capsys, tmp_path, "discard", "lab.pi", "--all")[0] == 50
    assert len(held(pi)) == 15


def test_what_an_agent_uses_is_shown_and_not_touched(pi, tmp_path, capsys):
    agent = fill(pi, C, 1)
    _, listing = said(capsys, tmp_path, "ls")
    assert listing["spools"][0]["in_use"]
    status, answer = said(capsys, tmp_path, "discard", "lab.pi", "--all")
    assert (status, answer["error"]["kind"]) == (53, "SpoolInUse")
    assert answer["error"]["hint"] == "stop the agent first, then discard"
    agent.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lab.nobody", "--all"], "there is no spool"),
        (["../lab.pi", "--all"], "is no name of a spool"),
        (["lab.pi", "--boot", "f" * 16], f"but of {A}, {B}"),
        (["lab.pi"], "one of the arguments --boot --all is required"),
        (["lab.pi", "--boot", A, "--all"], "not allowed with"),
    ],
)
def test_what_does_not_fit_gives_nothing_up(pi, tmp_path, capsys, words, message):
    status, answer = said(capsys, tmp_path, "discard", *words)
    assert (status, message in answer["error"]["message"]) == (2, True), answer
    assert len(held(pi)) == 15
