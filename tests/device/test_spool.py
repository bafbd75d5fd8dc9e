"""The spool over lives: kills, power cuts, damage, full disks, a second process."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.errors import SpoolInUse, StateUnwritable, UsageError
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.directory import is_in_use, spool_of, spools_of
from quarl_device.spool.disk import DiskSpool
from quarl_device.spool.records import HEADER_BYTES, PREAMBLE
from quarl_device.wire.block_stamp import restamped
from quarl_device.wire.loss import read_loss

A, B, C = ("00000000000000" + end for end in ("aa", "bb", "cc"))
SMALL = SpoolConfig(max_bytes=64 * 1024)  # segments of 8 KiB
BLOCK = 1_000


@pytest.fixture
def spool(tmp_path):
    """Return a function that opens the spool for a life; what is open at the end is closed."""
    opened = []

    def start(boot_id, config=SMALL):
        opened.append(DiskSpool(tmp_path / "spool", boot_id=boot_id, config=config))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def kill(spool):
    """End it as the system ends a process: files are closed, and nothing else happens."""
    spool._let_go()


def payload(life, sequence, size=BLOCK):
    return (f"{life} {sequence} ".encode() * size)[:size]


def fill(spool, count, *, steps=4):
    first = spool._holdings.next
    for sequence in range(first, first + count):
        spool.put(sequence, payload(spool.boot_id, sequence), steps=steps)


def deliver(spool):
    """Return (life, sequence) of every block that is held, as a learner would get it."""
    return [place for place, loss in everything(spool) if loss is None]


def everything(spool):
    """Return ((life, sequence), loss or None) of all that is held, as a learner would get it."""
    out = []
    while len(spool):
        sequence = spool.next_held(spool.base)
        found = spool.get(sequence)
        loss = None if found is None else read_loss(found)
        if loss is not None:
            assert (loss.boot_id, loss.sequence) == (spool.delivering, sequence)
            assert restamped(found, base=spool.base, dropped=spool.gap_before(sequence))
            out.append(((spool.delivering, sequence), loss))
            spool.free(sequence)
        elif found is not None:
            assert found == payload(spool.delivering, sequence)
            out.append(((spool.delivering, sequence), None))
            spool.free(sequence)
    return out


def files(tmp_path):
    return sorted(path for path in (tmp_path / "spool").iterdir() if path.suffix == ".qs")


def on_disk(tmp_path):
    return sum(path.stat().st_size for path in files(tmp_path))


# -- lives -------------------------------------------------------------------------------------------------------------


def test_what_a_killed_life_left_is_delivered_under_its_own_boot_id_before_the_next_lifes(spool):
    one = spool(A)
    fill(one, 30)
    one.free(4)
    kill(one)
    two = spool(B)
    assert (two.recovered.blocks, two.recovered.lives, two.recovered.torn_bytes) == (30, 1, 0)
    fill(two, 3)
    kill(two)
    three = spool(C)
    assert (three.delivering, three.end, len(three)) == (A, 30, 33)
    fill(three, 2)
    assert three.end == 30, "the end of the delivered life, not of its own"
    assert deliver(three) == [(A, n) for n in range(30)] + [(B, n) for n in range(3)] + [(C, 0), (C, 1)]
    assert (three.delivering, three.base, three.end, three.dropped_blocks) == (C, 2, 2, 0)


def test_a_restart_begins_about_where_the_learner_was(spool):
    one = spool(A)
    fill(one, 7)
    one.free(4)
    slow = one.upkeep(1e6)
    slow()
    kill(one)
    assert spool(B).base == 5


def test_a_life_that_was_delivered_is_not_delivered_again(spool):
    """Not even by a life that made nothing and was killed."""
    one = spool(A)
    fill(one, 3)
    kill(one)
    two = spool(B)
    fill(two, 1)
    kill(two)
    three = spool(C)
    three.free(2)
    assert three.delivering == B
    kill(three)
    assert deliver(spool("d" * 16)) == [(B, 0)]


def test_marks_are_kept_as_long_as_what_they_are_about(spool):
    one = spool(A)
    fill(one, 5)
    kill(one)
    two = spool(B)
    two.free(2)
    two.upkeep(1e6)()
    kill(two)
    # B put nothing: its file says how far A is freed, and nothing else.
    three = spool(C)
    assert three.base == 3
    kill(three)
    assert spool("d" * 16).base == 3


def test_a_clean_end_with_everything_delivered_leaves_nothing(spool, tmp_path):
    one = spool(A)
    fill(one, 30)
    one.free(29)
    one.close()
    assert files(tmp_path) == []
    two = spool(B)
    assert (len(two), two.base) == (0, 0)


def test_a_start_that_makes_nothing_writes_nothing(spool, tmp_path):
    one = spool(A)
    assert one.upkeep(1e6) is None
    assert (files(tmp_path), one.bytes_written) == ([], 0)


def test_a_boot_id_is_used_once(spool):
    one = spool(A)
    fill(one, 1)
    one.close()
    with pytest.raises(UsageError, match="used before"):
        spool(A)
    spool(B)


def test_a_thousand_short_lives_are_delivered_in_order(spool):
    lives = [f"{number:016x}" for number in range(60)]
    for life in lives:
        one = spool(life)
        fill(one, 1)
        kill(one)
    last = spool(C)
    assert deliver(last) == [(life, 0) for life in lives]


# -- damage ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 3_000))
def test_a_power_cut_costs_the_tail_and_it_is_counted(tmp_path_factory, cut):
    directory = tmp_path_factory.mktemp("s")
    one = DiskSpool(directory, boot_id=A, config=SMALL)
    fill(one, 5)
    kill(one)
    [path] = directory.glob("*.qs")
    whole = path.stat().st_size
    os.truncate(path, whole - cut)
    two = DiskSpool(directory, boot_id=B, config=SMALL)
    record = HEADER_BYTES + BLOCK
    lost = -(-cut // record)
    assert deliver(two) == [(A, n) for n in range(5 - lost)]
    assert two.recovered.torn_bytes == lost * record - cut
    two.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=80)), min_size=1, max_size=4))
def test_damage_in_the_middle_costs_the_blocks_it_hits_and_says_which(tmp_path_factory, hits):
    directory = tmp_path_factory.mktemp("s")
    one = DiskSpool(directory, boot_id=A, config=SMALL)
    fill(one, 20)
    kill(one)
    before = {path: path.read_bytes() for path in directory.glob("*.qs")}
    for place, junk in hits:
        path = sorted(before)[place % len(before)]
        data = bytearray(path.read_bytes())
        start = place % len(data)
        data[start : start + len(junk)] = junk[: len(data) - start]
        path.write_bytes(data)
    two = DiskSpool(directory, boot_id=B, config=SMALL)
    fill(two, 1)
    assert two.recovered.dropped_blocks == 20 - two.recovered.blocks - _unknown_tail(two)
    seen, lost = [], set()
    for (life, sequence), loss in everything(two):
        if life == A and loss is None:
            seen.append(sequence)
        elif life == A:
            assert (loss.first_step, loss.lost_steps) == (4 * loss.base, 4 * (sequence + 1 - loss.base))
            lost.update(range(loss.base, sequence + 1))
    assert len(seen) >= 20 - 2 * len(hits), "a hit costs the record it hits, or two"
    known = max([*seen, *lost], default=-1) + 1
    assert set(seen) | lost == set(range(known)), "from the life's first block on"
    assert not set(seen) & lost
    two.close()


def _unknown_tail(spool):
    """Return how many of 20 blocks came after the last one of which anything is left."""
    return 20 - max([*(one.last for one in spool._holdings.segments if one.life == A and len(one)),
                     *(loss.last for loss in spool._holdings.losses)], default=-1) - 1  # fmt: skip


def test_a_block_that_goes_bad_while_it_waits_is_dropped_when_it_is_due(spool, tmp_path, caplog):
    one = spool(A)
    fill(one, 3, steps=16)
    data = bytearray(files(tmp_path)[0].read_bytes())
    data[len(PREAMBLE) + 2 * HEADER_BYTES + BLOCK + 7] ^= 1
    files(tmp_path)[0].write_bytes(data)
    assert one.get(1) is None
    assert (len(one), one.dropped_blocks, one.dropped_steps) == (3, 1, 16)
    assert (one.next_held(1), one.gap_before(1), one.gap_before(2)) == (1, (), ())
    loss = read_loss(one.get(1))
    assert (loss.sequence, loss.first_step, loss.lost_steps) == (1, 16, 16), "told in its place"
    assert one.get(2) == payload(A, 2)
    assert "block 1 is damaged and dropped" in caplog.text


def test_a_block_that_cannot_be_read_for_now_is_not_given_up(spool, monkeypatch):
    one = spool(A)
    fill(one, 20)

    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert one.get(0) is None
    assert (len(one), one.dropped_blocks, one.get(0)) == (20, 0, payload(A, 0))


def test_a_file_that_vanishes_costs_its_blocks_and_ends_nothing(spool, tmp_path):
    one = spool(A)
    fill(one, 20)
    files(tmp_path)[0].unlink()
    assert one.get(0) is None
    assert read_loss(one.get(0)).sequence == 0
    assert 10 < len(deliver(one)) < 20


def test_damage_to_a_lifes_first_record_is_counted(spool, tmp_path):
    one = spool(A)
    fill(one, 3, steps=16)
    kill(one)
    data = bytearray(files(tmp_path)[0].read_bytes())
    data[: len(PREAMBLE) + HEADER_BYTES + 20] = bytes(len(PREAMBLE) + HEADER_BYTES + 20)
    files(tmp_path)[0].write_bytes(data)
    two = spool(B)
    assert (two.recovered.blocks, two.recovered.dropped_blocks, two.recovered.dropped_steps) == (2, 1, 16)
    assert [(place, loss and loss.lost_steps) for place, loss in everything(two)] == [
        ((A, 0), 16), ((A, 1), None), ((A, 2), None)
    ]  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_a_version_that_is_damaged_hides_no_block(spool, tmp_path, version):
    one = spool(A)
    fill(one, 2)
    kill(one)
    [path] = files(tmp_path)
    path.write_bytes(PREAMBLE[:-1] + bytes([version]) + path.read_bytes()[len(PREAMBLE) :])
    assert deliver(spool(B)) == [(A, 0), (A, 1)]


@pytest.mark.parametrize("content", [PREAMBLE[:-1] + b"\x01" + b"old" * 99, b"\xff" * 5_000])
def test_a_file_that_nobody_can_read_is_set_aside_once_and_its_blocks_are_counted(spool, tmp_path, caplog, content):
    one = spool(A)
    fill(one, 20)
    kill(one)
    paths = files(tmp_path)
    blocks = [(path.read_bytes().count(f"{A} ".encode()) > 0, path) for path in paths]
    assert len(blocks) == 3
    paths[0].write_bytes(content)
    two = spool(B)
    fill(two, 1)
    lost = 20 - two.recovered.blocks
    assert 0 < lost == two.recovered.dropped_blocks
    assert two.recovered.dropped_steps == 4 * lost
    assert caplog.text.count("is set aside") == 1
    assert [path.name for path in (tmp_path / "spool").glob("*.aside")] == [paths[0].name + ".aside"]
    kill(two)
    three = spool(C)
    assert (three.recovered.dropped_blocks, three.recovered.set_aside) == (0, []), "once"
    told = everything(three)
    assert (told[0][0], told[0][1].base, told[0][1].lost_steps) == ((A, lost - 1), 0, 4 * lost)
    assert [place for place, _ in told[1:]] == [(A, n) for n in range(lost, 20)] + [(B, 0)]
    assert caplog.text.count("is set aside") == 1


def test_few_files_are_kept_aside(spool, tmp_path):
    (tmp_path / "spool").mkdir()
    for number in range(20):
        (tmp_path / "spool" / f"{number:020d}-{A}-{number}-{number}.qs").write_bytes(b"junk" * 9)
    spool(B)
    assert [path.name[:20] for path in sorted((tmp_path / "spool").glob("*.aside"))] == [
        f"{number:020d}" for number in range(12, 20)
    ]


def test_what_is_not_a_segment_is_not_touched(spool, tmp_path):
    (tmp_path / "spool").mkdir()
    for name in ("notes.txt", "x.qs", "12.qs.bak"):
        (tmp_path / "spool" / name).write_bytes(b"mine")
    one = spool(A)
    fill(one, 1)
    one.free(0)
    one.close()
    assert {path.name for path in (tmp_path / "spool").iterdir()} == {"notes.txt", "x.qs", "12.qs.bak", "lock"}


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when_full", ["block", "drop-oldest"])
def test_the_disk_never_holds_more_than_the_bound_and_one_block(spool, tmp_path, when_full):
    one = spool(A, SpoolConfig(max_bytes=64 * 1024, when_full=when_full))
    most = 0
    for sequence in range(400):
        if one.full:
            one.free(one.base + sequence % 7)
        else:
            one.put(sequence := one._holdings.next, payload(A, sequence), steps=1)
        most = max(most, on_disk(tmp_path))
    assert 50_000 < most <= 64 * 1024 + HEADER_BYTES + BLOCK


def test_what_is_dropped_of_earlier_lives_is_the_oldest(spool):
    config = SpoolConfig(max_bytes=64 * 1024, when_full="drop-oldest")
    one = spool(A, config)
    fill(one, 40)
    kill(one)
    two = spool(B, config)
    fill(two, 100, steps=2)
    assert (two.delivering, two.base, two.next_held(0)) == (A, 0, 39)
    lost = two.dropped_blocks - 40
    assert two.dropped_steps == 40 * 4 + lost * 2
    told = [(place, loss.base, loss.lost_steps) for place, loss in everything(two) if loss is not None]
    assert told == [((A, 39), 0, 160), ((B, lost - 1), 0, 2 * lost)]


def test_blocks_of_another_task_are_dropped_whatever_life_made_them(spool, tmp_path):
    one = spool(A)
    one.begin_task("one")
    fill(one, 20)
    kill(one)
    two = spool(B)
    assert two.begin_task("two") == 20
    assert (two.delivering, len(two), two.dropped_steps, files(tmp_path)) == (B, 0, 80, [])
    fill(two, 2)
    kill(two)
    three = spool(C)
    assert three.begin_task("two") == 0
    assert deliver(three) == [(B, 0), (B, 1)]


def test_memory_is_a_few_bytes_a_block(spool):
    one = spool(A, SpoolConfig(max_bytes=64 * 1024 * 1024))
    for sequence in range(2_000):
        one.put(sequence, b"x")
    [segment] = one._holdings.segments
    held = sum(column.buffer_info()[1] * column.itemsize for column in (
        segment._sequences, segment._offsets, segment._lengths, segment._first_steps, segment._steps
    ))  # fmt: skip
    assert held == 28 * 2_000


# -- who may use it ----------------------------------------------------------------------------------------------------


def test_two_never_share_a_spool(spool):
    one = spool(A)
    with pytest.raises(SpoolInUse, match="another process uses the spool") as caught:
        spool(B)
    assert caught.value.code == 53
    assert "--state-dir" in caught.value.hint
    one.close()
    spool(B)


def test_a_directory_that_cannot_be_used_is_code_50(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnwritable, match="Not a directory") as caught:
        DiskSpool(tmp_path / "file" / "spool", boot_id=A)
    assert caught.value.code == 50
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "lock").symlink_to(tmp_path / "file")
    with pytest.raises(StateUnwritable):
        DiskSpool(tmp_path / "s", boot_id=A)


def test_only_its_owner_reads_it(spool, tmp_path):
    one = spool(A)
    fill(one, 1)
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600


# -- disks that refuse -------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch):
    """Return a switch: while it is set, writes fail half way, as on a disk that has filled up."""
    state = {"full": False, "largest": 1 << 30}
    real = os.pwritev

    def pwritev(file, parts, offset):
        if not state["full"] and sum(map(len, parts)) <= state["largest"]:
            return real(file, parts, offset)
        real(file, [b"".join(parts)[:100]], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", pwritev)
    return state


def test_a_full_disk_loses_nothing_says_why_and_is_tried_again(spool, full_disk, caplog):
    one = spool(A)
    fill(one, 2)
    full_disk["full"] = True
    one.put(2, payload(A, 2), steps=4)
    assert one.fault == "No space left on device"
    assert (len(one), one.get(2), one.next_held(2), one.end) == (3, payload(A, 2), 2, 3)
    with pytest.raises(UsageError, match="No space left"):
        one.put(3, b"more")
    one.upkeep(10.0)
    assert one.fault
    full_disk["full"] = False
    one.upkeep(10.5)
    assert one.fault, "not more than once a second"
    one.upkeep(11.5)
    assert one.fault == ""
    fill(one, 1)
    kill(one)
    assert deliver(spool(B)) == [(A, n) for n in range(4)]
    assert caplog.text.count("cannot be written") == 1
    assert "is written again" in caplog.text


def test_what_waits_in_memory_is_not_taken_for_a_block_of_an_earlier_life(spool, full_disk):
    one = spool(A)
    fill(one, 1)
    kill(one)
    two = spool(B)
    fill(two, 1)
    full_disk["full"] = True
    two.put(1, payload(B, 1))
    assert (two.delivering, two.get(1), two.next_held(1)) == (A, None, None)
    two.free(0)
    assert (two.delivering, two.get(1), two.next_held(1)) == (B, payload(B, 1), 1)
    full_disk["full"] = False
    assert deliver(two) == [(B, 0), (B, 1)]


def test_what_waits_in_memory_may_be_delivered_dropped_or_left(spool, full_disk):
    one = spool(A)
    full_disk["full"] = True
    one.begin_task("one")
    one.put(0, b"x", steps=1)
    assert (one.base, one.delivering, one.free(0), len(one), one.fault) == (0, A, 1, 0, "")
    one.put(1, b"y", steps=5)
    assert one.begin_task("two") == 1
    assert (len(one), one.base, one.dropped_steps, one.fault) == (0, 2, 5, "")
    one.put(2, b"z")
    one.close()
    assert len(spool(B)) == 0


def test_what_waits_in_memory_to_the_end_is_counted_said_and_told_where_a_note_of_it_fits(spool, full_disk, caplog):
    one = spool(A)
    fill(one, 2)
    full_disk["full"] = True
    one.put(2, payload(A, 2), steps=7)
    full_disk["full"] = False
    full_disk["largest"] = 300
    one.close()
    assert (one.dropped_blocks, one.dropped_steps) == (1, 7)
    assert "block 2 (7 steps) is lost; the learner will be told" in caplog.text
    held = [(place, loss and loss.lost_steps) for place, loss in everything(spool(B))]
    assert held == [((A, 0), None), ((A, 1), None), ((A, 2), 7)]


def test_what_waits_in_memory_to_the_end_of_a_full_disk_is_counted_and_said(spool, full_disk, caplog):
    one = spool(A)
    fill(one, 2)
    full_disk["full"] = True
    one.put(2, payload(A, 2), steps=7)
    one.close()
    assert (one.dropped_blocks, one.dropped_steps) == (1, 7)
    assert "No space left on device: block 2 (7 steps) is lost; the learner cannot be told" in caplog.text
    full_disk["full"] = False
    assert deliver(spool(B)) == [(A, 0), (A, 1)]


def refuse(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_a_failed_write_leaves_behind_moves_nothing_that_comes_after(spool, full_disk, monkeypatch):
    one = spool(A)
    fill(one, 1)
    full_disk["full"] = True
    monkeypatch.setattr(os, "ftruncate", refuse)
    one.put(1, payload(A, 1))
    full_disk["full"] = False
    one.upkeep(1e6)
    fill(one, 3)
    assert [one.get(n) for n in range(5)] == [payload(A, n) for n in range(5)]
    kill(one)
    two = spool(B)
    assert two.recovered.dropped_blocks == 0
    assert deliver(two) == [(A, n) for n in range(5)]


def test_a_disk_that_is_full_for_real(tmp_path):
    """A file size limit stands for a disk: the actor's process, not a stub, and what it wrote is whole."""
    code = (
        "import resource, sys; from pathlib import Path; from quarl_device.spool.disk import DiskSpool\n"
        f"spool = DiskSpool(Path(sys.argv[1]), boot_id={A!r})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))\n"
        "n = 0\n"
        f"while not spool.fault: spool.put(n, (f'{A} {{n}} '.encode() * {BLOCK})[:{BLOCK}]); n += 1\n"
        "assert spool.get(n - 1) is not None\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "spool.upkeep(1e6)()\n"
        "assert not spool.fault; print(n)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    two = DiskSpool(tmp_path, boot_id=B)
    assert two.recovered.torn_bytes == 0
    assert deliver(two) == [(A, n) for n in range(int(done.stdout))]
    two.close()


# -- certainty ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch):
    """Return the sizes of files at each fdatasync."""
    sizes = []
    real = os.fdatasync

    def fdatasync(file):
        sizes.append(os.fstat(file).st_size)
        real(file)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return sizes


def test_always_asks_for_every_block_before_put_returns(spool, synced):
    one = spool(A, SpoolConfig(max_bytes=64 * 1024, sync="always"))
    fill(one, 3)
    assert synced == [len(PREAMBLE) + n * (HEADER_BYTES + BLOCK) for n in (1, 2, 3)]
    assert one.upkeep(1e6) is None


def test_never_leaves_it_to_the_system(spool, synced):
    one = spool(A, SpoolConfig(max_bytes=64 * 1024, sync="never"))
    fill(one, 30)
    assert one.upkeep(1e6) is None
    one.close()
    assert synced == []


def test_at_intervals_it_asks_for_everything_once_and_not_when_nothing_is_new(spool, synced, tmp_path):
    one = spool(A, SpoolConfig(max_bytes=64 * 1024, sync_interval_s=5.0))
    fill(one, 20)
    assert synced == []
    one.upkeep(100.0)()
    assert sorted(synced) == sorted(path.stat().st_size for path in files(tmp_path))
    assert len(synced) == 3, "files that were ended meanwhile, too"
    fill(one, 1)
    assert one.upkeep(104.9) is None
    one.upkeep(105.1)()
    assert one.upkeep(200.0) is None
    assert len(synced) == 4


def test_a_sync_that_fails_is_a_fault_until_one_succeeds(spool, monkeypatch):
    one = spool(A)
    fill(one, 1)

    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        one.upkeep(100.0)()
    assert one.fault == "Input/output error"
    assert one.get(0) == payload(A, 0)
    one.upkeep(106.0)()
    assert one.fault == ""


def test_after_a_sync_that_failed_everything_it_was_about_is_written_again(spool, monkeypatch, tmp_path):
    """The kernel may hold for clean what it could not write: only what is written again is certain."""
    one = spool(A)
    fill(one, 20)  # several files
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        one.upkeep(100.0)()
        assert one.fault
        one.upkeep(106.0)()
        assert one.fault
    fill(one, 1)
    written = {}
    real = os.pwrite

    def pwrite(file, data, offset):
        path = Path(f"/proc/self/fd/{file}").readlink()
        written[path] = written.get(path, b"") + bytes(data)
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    one.upkeep(112.0)()
    assert one.fault == ""
    assert written == {path: path.read_bytes() for path in files(tmp_path)}
    written.clear()
    fill(one, 1)
    one.upkeep(118.0)()
    assert written == {}, "what a good sync was about is certain"
    kill(one)
    assert deliver(spool(B)) == [(A, n) for n in range(22)]


def test_what_is_freed_before_it_is_certain_needs_no_certainty(spool, monkeypatch):
    one = spool(A)
    fill(one, 20)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        one.upkeep(100.0)()
    one.free(18)
    one.upkeep(106.0)()
    assert one.fault == ""
    assert deliver(one) == [(A, 19)]


@pytest.mark.parametrize("sync", ["always", "never"])
def test_a_restart_begins_about_where_the_learner_was_whatever_the_policy(spool, sync):
    config = SpoolConfig(max_bytes=64 * 1024, sync=sync, sync_interval_s=3600.0)
    one = spool(A, config)
    fill(one, 7)
    one.free(4)
    assert one.upkeep(100.0) is None
    written = one.bytes_written
    one.free(5)
    assert one.upkeep(104.0) is None
    assert one.bytes_written == written, "a note now and then, not at every ack"
    kill(one)
    assert spool(B, config).base == 5


def test_a_life_that_was_dropped_for_room_is_not_delivered_again(spool, monkeypatch):
    """Not even where its files could not be removed."""
    config = SpoolConfig(max_bytes=64 * 1024, when_full="drop-oldest")
    one = spool(A, config)
    fill(one, 3)
    kill(one)
    two = spool(B, config)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        while two.dropped_blocks < 4:
            fill(two, 1)
    held = len(two)
    kill(two)
    three = spool(C, config)
    # The one of B that was dropped is held again: its file is still there.
    assert len(three) == held
    assert [(place, loss is None) for place, loss in everything(three)][:2] == [((A, 2), False), ((B, 0), True)]


def test_no_file_stays_open(spool):
    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    one = spool(A)
    fill(one, 40)
    one.get(0)
    one.upkeep(100.0)()
    fill(one, 5)
    one.close()
    two = spool(B)
    deliver(two)
    two.close()
    assert count() == before


def test_whether_a_process_uses_a_spool_is_seen_without_touching_it(tmp_path):
    directory = spool_of(tmp_path, fleet="lab", device="pi-1")
    assert directory.parent == spools_of(tmp_path)
    assert not is_in_use(directory)
    spool = DiskSpool(directory, boot_id="ab" * 8)
    assert is_in_use(directory)
    spool.close()
    before = sorted(directory.iterdir())
    assert not is_in_use(directory)
    assert sorted(directory.iterdir()) == before


def test_a_spool_whose_lock_may_not_be_looked_at_is_taken_to_be_used(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("quarl_device.spool.directory.os.open", denied)
    assert is_in_use(tmp_path)
