from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import struct
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarl_device.errors import JournalError
from quarl_device.wire.limits import MAX_BLOCK_BYTES
from quarl_edge.replay import journal as module
from quarl_edge.replay.journal import Journal, iterate, read_segments

SMALL = 4_096


def content(journal: Journal, start: int = 0) -> list[tuple[str, bytes]]:
    return [(record.device, record.payload) for record in journal.iterate(start)]


def fill(journal: Journal, count: int, size: int = 500) -> list[int]:
    return [journal.append("pi-1", bytes([i % 256]) * size) for i in range(count)]


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.qj"))


def test_gives_back_what_was_appended_in_order(tmp_path):
    journal = Journal(tmp_path / "j", segment_bytes=SMALL)
    wanted = [(f"pi-{i % 3}", os.urandom(i * 37 % 900)) for i in range(60)]
    positions = [journal.append(*record) for record in wanted]
    assert positions == sorted(set(positions))
    assert len(files(tmp_path / "j")) > 5
    assert content(journal) == wanted
    journal.close()
    reopened = Journal(tmp_path / "j", segment_bytes=SMALL)
    assert content(reopened) == wanted
    assert reopened.position == positions[-1]
    assert reopened.torn_bytes == 0
    reopened.close()


def test_positions_name_records(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    ends = fill(journal, 40)
    records = list(journal.iterate())
    assert [record.end for record in records] == ends
    for i in (0, 1, 17, 39):
        assert [r.payload for r in journal.iterate(records[i].position)] == [r.payload for r in records[i:]]
    assert list(journal.iterate(journal.position)) == []
    journal.close()


def test_goes_on_after_reopening(tmp_path):
    for round_ in range(3):
        journal = Journal(tmp_path, segment_bytes=SMALL)
        assert len(content(journal)) == round_ * 7
        fill(journal, 7)
        journal.close()
    assert len(list(iterate(tmp_path))) == 21


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 3_000), count=st.integers(1, 5), reopenings=st.integers(1, 2))
def test_a_torn_tail_costs_only_the_torn_record(tmp_path, cut, count, reopenings):
    directory = tmp_path / os.urandom(8).hex()
    journal = Journal(directory)
    ends = [0, *fill(journal, count)]
    journal.close()
    (path,) = files(directory)
    size = max(0, path.stat().st_size - cut)
    os.truncate(path, size)
    whole = [end for end in ends[1:] if end <= size]
    for _ in range(reopenings):
        journal = Journal(directory)
        assert len(content(journal)) == len(whole)
        fill(journal, 1)
        whole.append(journal.position)
        journal.close()
    if size < path.stat().st_size and cut:
        journal = Journal(directory)
        assert len(content(journal)) == len(whole)
        journal.close()


def test_a_torn_tail_is_counted_and_reported(tmp_path, caplog):
    journal = Journal(tmp_path)
    ends = fill(journal, 3)
    journal.close()
    os.truncate(files(tmp_path)[0], ends[-1] - 10)
    journal = Journal(tmp_path)
    assert journal.torn_bytes == ends[2] - ends[1] - 10
    assert journal.position == ends[1]
    assert "torn tail" in caplog.text
    journal.close()


@pytest.mark.parametrize("tail", [b"\0" * 4_000, b"\xff" * 300, struct.pack("<II", 50, 1) + b"x" * 50])
def test_a_tail_of_garbage_is_cut_off(tmp_path, tail):
    journal = Journal(tmp_path)
    fill(journal, 3)
    journal.close()
    with files(tmp_path)[0].open("ab") as file:
        file.write(tail)
    journal = Journal(tmp_path)
    assert journal.torn_bytes == len(tail)
    assert len(content(journal)) == 3
    journal.close()


@pytest.mark.parametrize("header", [b"", b"QJ", b"\0" * 200])
def test_a_segment_that_was_only_begun_is_dropped(tmp_path, header):
    journal = Journal(tmp_path)
    fill(journal, 3)
    position = journal.position
    journal.close()
    (tmp_path / f"{position:020d}.qj").write_bytes(header)
    journal = Journal(tmp_path)
    assert (journal.position, len(content(journal))) == (position, 3)
    journal.close()


def test_damage_before_the_tail_is_an_error_that_says_where(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    fill(journal, 30)
    journal.close()
    path = files(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    journal = Journal(tmp_path, segment_bytes=SMALL)
    with pytest.raises(JournalError, match=rf"damaged: .*{path.name} holds no whole record at byte"):
        content(journal)
    journal.close()
    with pytest.raises(JournalError, match="damaged"):
        list(iterate(tmp_path))


@pytest.mark.parametrize("where", [0, 4, 8, 16, 25])
def test_a_damaged_header_is_an_error(tmp_path, where):
    journal = Journal(tmp_path)
    fill(journal, 3)
    journal.close()
    path = files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[where] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"damaged|position"):
        Journal(tmp_path).truncate(-1)


def test_a_missing_segment_is_an_error(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    fill(journal, 30)
    journal.close()
    files(tmp_path)[1].unlink()
    with pytest.raises(JournalError, match="ends at"):
        Journal(tmp_path, segment_bytes=SMALL)
    # A failed opening leaves the lock to the next one.
    with pytest.raises(JournalError, match="ends at"):
        Journal(tmp_path, segment_bytes=SMALL)


def test_one_process_at_a_time(tmp_path):
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match="another process"):
        Journal(tmp_path)
    journal.close()
    journal.close()
    Journal(tmp_path).close()


def test_can_be_read_beside_the_writer(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    fill(journal, 12)
    assert len(list(iterate(tmp_path))) == 12
    with files(tmp_path)[-1].open("ab") as file:
        file.write(b"\1\2\3")
    assert len(list(iterate(tmp_path))) == 12
    journal.close()
    assert list(iterate(tmp_path / "none")) == []


def test_truncate_discards_what_came_after(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    ends = fill(journal, 40)
    for i in (35, 20, 2):
        discarded = journal.truncate(ends[i])
        assert discarded > 0
        assert journal.position == ends[i]
        assert len(content(journal)) == i + 1
        assert journal.append("pi-1", b"new") > ends[i]
        assert content(journal)[-1] == ("pi-1", b"new")
        journal.truncate(ends[i])
    assert journal.truncate(journal.position) == 0
    journal.close()
    assert len(list(iterate(tmp_path))) == 3


def test_truncate_to_nothing(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    fill(journal, 20)
    journal.truncate(0)
    assert (journal.position, content(journal), files(tmp_path)) == (0, [], [])
    fill(journal, 1)
    assert len(content(journal)) == 1
    journal.close()


@pytest.mark.parametrize("position", [-1, 10**9])
def test_truncate_to_a_position_that_is_not_there(tmp_path, position):
    journal = Journal(tmp_path)
    fill(journal, 3)
    with pytest.raises(JournalError, match="spans positions 0"):
        journal.truncate(position)
    assert len(content(journal)) == 3
    journal.close()


def test_trim_keeps_what_a_rebuild_needs_and_one_segment_more(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    count = 0
    journal.bind(lambda: (count, {"note": count}))
    for _ in range(60):
        journal.append("pi-1", b"x" * 500)
        count += 10
    starts = [segment.items for segment in journal.segments]
    assert starts == sorted(starts)
    position = journal.position
    assert journal.trim(-5) == 0
    assert journal.trim(starts[3] - 1) == 1
    assert journal.trim(starts[3]) == 1
    assert [segment.items for segment in journal.segments][1] == starts[3]
    assert journal.start == journal.segments[0].first > 0
    journal.trim(10**9)
    assert len(journal.segments) == 2
    assert journal.position == position
    journal.close()
    reopened = Journal(tmp_path, segment_bytes=SMALL)
    assert reopened.position == position
    assert reopened.segments[1].snapshot == {"note": reopened.segments[1].items}
    reopened.close()


class Disk:
    """`os.writev` of a disk that takes `room` bytes and then is full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def writev(self, file: int, parts: tuple[bytes, ...]) -> int:
        return self.write(file, b"".join(parts))

    def write(self, file: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = bytes(data)[: self.room]
        self.room -= len(part)
        return _write(file, part)


_write = os.write


@pytest.mark.parametrize("room", [0, 1, 9, 100, 499])
def test_a_full_disk_is_an_error_that_names_the_directory_and_leaves_no_trace(tmp_path, monkeypatch, room):
    journal = Journal(tmp_path)
    fill(journal, 3)
    position = journal.position
    disk = Disk(room)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "writev", disk.writev)
        patch.setattr(module.os, "write", disk.write)
        for _ in range(2):
            with pytest.raises(JournalError, match=rf"cannot be written: {tmp_path}: No space left"):
                journal.append("pi-1", b"y" * 500)
        assert journal.position == position
    journal.append("pi-1", b"z")
    assert len(content(journal)) == 4
    journal.close()
    assert len(list(iterate(tmp_path))) == 4


@pytest.mark.parametrize("room", [0, 10, 40])
def test_a_disk_that_fills_up_at_a_new_segment(tmp_path, monkeypatch, room):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    while journal.segments[-1].size_bytes < SMALL if journal.segments else True:
        fill(journal, 1)
    position, count = journal.position, len(content(journal))
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", Disk(room).write)
        for _ in range(2):
            with pytest.raises(JournalError, match="No space left"):
                fill(journal, 1)
    assert journal.position == position
    fill(journal, 1)
    assert len(content(journal)) == count + 1
    journal.close()


def test_fsync_is_rare_and_due_in_time(tmp_path, monkeypatch):
    now = [0.0]
    synced: list[float] = []
    monkeypatch.setattr(module.os, "fdatasync", lambda _file: synced.append(now[0]))
    journal = Journal(tmp_path, fsync_interval_s=5.0, clock=lambda: now[0])
    for tick in range(100):
        now[0] = tick / 10
        fill(journal, 1)
        sync_if_due(journal)
    assert synced == [5.0]
    now[0] = 20.0
    sync_if_due(journal)
    assert synced == [5.0, 20.0]
    now[0] = 60.0
    sync_if_due(journal)
    assert synced == [5.0, 20.0], "nothing new to sync"
    fill(journal, 1)
    journal.sync()
    assert synced == [5.0, 20.0, 60.0]
    journal.close()


def sync_if_due(journal: Journal) -> None:
    if journal.sync_is_due():
        journal.sync()


def test_half_a_segment_is_due_at_once_so_that_its_end_is_short(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL, fsync_interval_s=1e9)
    fill(journal, 1)
    assert not journal.sync_is_due()
    fill(journal, 4)
    assert journal.sync_is_due()
    journal.sync()
    assert not journal.sync_is_due()
    journal.close()


def test_records_come_in_while_an_fsync_takes_its_time(tmp_path, monkeypatch):
    journal = Journal(tmp_path, fsync_interval_s=0.0)
    fill(journal, 1)
    began, may_end = threading.Event(), threading.Event()

    def slow(_file: int) -> None:
        began.set()
        assert may_end.wait(30)

    monkeypatch.setattr(module.os, "fdatasync", slow)
    thread = threading.Thread(target=journal.sync_job(), daemon=True)
    thread.start()
    assert began.wait(30)
    fill(journal, 3)
    may_end.set()
    thread.join(30)
    assert journal.sync_is_due(), "what came meanwhile is not on the disk"
    journal.sync()
    assert not journal.sync_is_due()
    assert len(content(journal)) == 4
    journal.close()


def broken_disk(*_args: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_failed_fsync_is_no_failed_append_and_is_tried_again(tmp_path, monkeypatch):
    """The record is there: refused, it would come again and be in the journal twice."""
    journal = Journal(tmp_path, fsync_interval_s=0.0)
    fill(journal, 1)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdatasync", broken_disk)
        fill(journal, 1)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.sync()
        assert journal.sync_is_due()
    journal.sync()
    assert not journal.sync_is_due()
    assert len(content(journal)) == 2
    journal.close()


def test_after_a_sync_that_failed_what_it_was_about_is_written_again_and_nothing_else(tmp_path, monkeypatch):
    """The kernel may hold for clean what it could not write: only what is written again is certain."""
    journal = Journal(tmp_path, segment_bytes=SMALL, fsync_interval_s=1e9)
    fill(journal, 2)
    journal.sync()
    certain = journal.position
    fill(journal, 12)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdatasync", broken_disk)
        for _ in range(2):
            with pytest.raises(JournalError):
                journal.sync()
    fill(journal, 1)
    first, second = journal.segments
    written: list[tuple[str, int, int]] = []
    order: list[str] = []
    real, real_sync = os.pwrite, os.fdatasync

    def pwrite(file: int, data: bytes, offset: int) -> int:
        written.append((Path(f"/proc/self/fd/{file}").readlink().name, offset, len(data)))
        order.append("write")
        return real(file, data, offset)

    def fdatasync(file: int) -> None:
        order.append("sync")
        real_sync(file)

    before = [path.read_bytes() for path in files(tmp_path)]
    monkeypatch.setattr(module.os, "pwrite", pwrite)
    monkeypatch.setattr(module.os, "fdatasync", fdatasync)
    journal.sync()
    assert written == [
        (first.path.name, certain, first.size_bytes - certain),
        (second.path.name, 0, second.size_bytes),
    ]
    assert order == ["write", "write", "sync", "sync"]
    assert [path.read_bytes() for path in files(tmp_path)] == before
    fill(journal, 1)
    journal.sync()
    assert len(written) == 2, "what a good sync was about is certain"
    assert len(content(journal)) == 16
    journal.close()


def test_a_sync_that_succeeds_beside_one_that_fails_vouches_for_its_own_records_alone(tmp_path, monkeypatch):
    """Two jobs share a file's descriptor, and a kernel tells an error once: the second must not believe it."""
    journal = Journal(tmp_path, fsync_interval_s=1e9)
    fill(journal, 1)
    earlier, short = journal.sync_job(), journal.segments[-1].size_bytes
    fill(journal, 1)
    later, whole = journal.sync_job(), journal.segments[-1].size_bytes
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdatasync", broken_disk)
        with pytest.raises(JournalError):
            later()
    written: list[int] = []
    real = os.pwrite
    monkeypatch.setattr(
        module.os, "pwrite", lambda file, data, offset: written.append(offset + len(data)) or real(file, data, offset)
    )
    earlier()
    journal.sync()
    assert written == [short, whole]
    journal.close()


def test_two_syncs_take_turns(tmp_path, monkeypatch):
    """The second one has to know whether the first one failed."""
    journal = Journal(tmp_path, fsync_interval_s=1e9)
    fill(journal, 1)
    jobs = [journal.sync_job(), journal.sync_job()]
    inside, most = [], []

    def fdatasync(_file: int) -> None:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()

    monkeypatch.setattr(module.os, "fdatasync", fdatasync)
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1, 1]
    journal.close()


def names_of(directory: Path, synced: list[str]) -> object:
    """An `fdatasync` that notes what it is about."""

    def note(file: int) -> None:
        inode = os.fstat(file).st_ino
        synced.extend(path.name for path in files(directory) if path.stat().st_ino == inode)

    return note


def test_a_segment_begins_without_a_sync_and_the_next_one_covers_the_end_of_the_one_before(tmp_path, monkeypatch):
    """`append` runs under the ingest's lock, so it waits for no disk."""
    journal = Journal(tmp_path, segment_bytes=SMALL, fsync_interval_s=1e9)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdatasync", broken_disk)
        patch.setattr(module, "sync_directory", broken_disk)
        fill(journal, 12)
        assert len(journal.segments) == 2
    synced: list[str] = []
    monkeypatch.setattr(module.os, "fdatasync", names_of(tmp_path, synced))
    monkeypatch.setattr(module, "sync_directory", lambda _path: synced.append("directory"))
    journal.sync()
    first, second = (path.name for path in files(tmp_path))
    assert synced == [first, second, "directory"]
    fill(journal, 1)
    journal.sync()
    assert synced[3:] == [second], "the rest is there"
    journal.close()


def test_no_segment_begins_before_the_last_but_one_is_on_the_disk(tmp_path, monkeypatch):
    journal = Journal(tmp_path, segment_bytes=SMALL, fsync_interval_s=1e9)
    fill(journal, 16)
    assert len(journal.segments) == 2
    position = journal.position
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fdatasync", broken_disk)
        for _ in range(2):
            with pytest.raises(JournalError, match="Input/output error"):
                fill(journal, 1)
        assert (journal.position, len(files(tmp_path))) == (position, 2)
    synced: list[str] = []
    monkeypatch.setattr(module.os, "fdatasync", names_of(tmp_path, synced))
    fill(journal, 1)
    assert synced == [path.name for path in files(tmp_path)[:2]]
    assert len(content(journal)) == 17
    journal.close()


def test_what_a_killed_process_left_to_the_system_is_synced_at_the_next_opening(tmp_path, monkeypatch):
    fill(Journal(tmp_path, segment_bytes=SMALL), 12)
    (tmp_path / "lock").unlink()  # it lives on in this process
    synced: list[str] = []
    monkeypatch.setattr(module.os, "fdatasync", names_of(tmp_path, synced))
    journal = Journal(tmp_path, segment_bytes=SMALL)
    assert synced == [path.name for path in files(tmp_path)]
    assert not journal.sync_is_due()
    journal.close()


class Power:
    """What is surely on the disk: noted at each fsync, so that `cut` may take any of the rest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sizes: dict[int, int] = {}
        self.named: set[str] = set()

    def fdatasync(self, file: int) -> None:
        status = os.fstat(file)
        self.sizes[status.st_ino] = status.st_size

    def sync_directory(self, _directory: Path) -> None:
        self.named = {path.name for path in files(self.directory)}

    def cut(self, draw: st.DataObject) -> None:
        for path in files(self.directory):
            data, kept = path.read_bytes(), self.sizes.get(path.stat().st_ino, 0)
            if path.name not in self.named and draw.draw(st.booleans(), "the name is lost"):
                path.unlink()
                continue
            size = draw.draw(st.integers(kept, len(data)), "size")
            sectors = [kept, *range(-(-kept // 512) * 512, size, 512)]
            hole = min(size, draw.draw(st.sampled_from(sectors), "where what it has not got of that begins"))
            path.write_bytes(data[:hole] + bytes(size - hole) if draw.draw(st.booleans(), "zeros") else data[:size])
            if not kept and draw.draw(st.booleans(), "later pages came first"):
                path.write_bytes(bytes(512) + data[512:])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_power_cut_at_any_moment_costs_only_what_was_not_synced(tmp_path, draw):
    """Also while a segment begins: the end of the one before and its own start may be on the disk, or not."""
    directory = tmp_path / os.urandom(8).hex()
    directory.mkdir()
    power, durable, ends = Power(directory), 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.os, "fdatasync", power.fdatasync)
        patch.setattr(module, "sync_directory", power.sync_directory)
        journal = Journal(directory, segment_bytes=SMALL, fsync_interval_s=1e9)
        for number in range(draw.draw(st.integers(1, 40), "records")):
            ends.append(journal.append("pi-1", bytes([number]) * 700))
            if draw.draw(st.integers(0, 5), "sync") == 0:
                journal.sync()
                durable = journal.position
    os.close(journal._lock)
    power.cut(draw)
    for _ in range(2):
        read = [record.payload[0] for record in iterate(directory)]
        journal = Journal(directory, segment_bytes=SMALL)
        assert [payload[0] for _, payload in content(journal)] == read == list(range(len(read)))
        assert len(read) >= sum(end <= durable for end in ends)
        journal.append("pi-1", bytes([len(read)]) * 700)
        journal.close()


def test_what_half_a_write_left_is_cut_off_before_anything_is_written_behind_it(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    fill(journal, 3)
    disk = Disk(100)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "writev", disk.writev)
        patch.setattr(module.os, "write", disk.write)
        patch.setattr(module.os, "ftruncate", broken_disk)
        with pytest.raises(JournalError, match="No space left"):
            fill(journal, 1)
        disk.room = 10_000
        with pytest.raises(JournalError, match="Input/output error"):
            fill(journal, 1)
    fill(journal, 2)
    assert len(content(journal)) == 5
    journal.close()
    assert len(list(iterate(tmp_path))) == 5


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 8, 15, 16, 17, 20, 21, 23])
def test_a_header_that_is_cut_anywhere_and_reads_as_zeros_behind_is_torn(tmp_path, cut):
    journal = Journal(tmp_path, segment_bytes=300)
    while len(journal.segments) < 2:
        journal.append("pi", b"x" * 90)
    last = journal.segments[-1].path
    kept = [record.payload for record in journal.iterate()][:-1]
    journal.close()
    whole = last.read_bytes()
    last.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    journal = Journal(tmp_path)
    assert [record.payload for record in journal.iterate()] == kept
    assert journal.torn_bytes == len(whole)
    journal.close()


def test_a_header_whose_length_is_damaged_is_no_torn_one(tmp_path):
    journal = Journal(tmp_path)
    journal.append("pi", b"x")
    path = journal.segments[-1].path
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[:16] + bytes(4) + data[20:])
    with pytest.raises(JournalError, match="does not hold"):
        Journal(tmp_path)


def test_a_header_that_never_reached_the_disk_is_torn_and_a_damaged_one_an_error(tmp_path):
    journal = Journal(tmp_path, segment_bytes=SMALL)
    fill(journal, 8)
    count = len(content(journal))
    fill(journal, 1)
    journal.close()
    last = files(tmp_path)[-1]
    whole = last.read_bytes()
    end = read_segments(tmp_path)[-1].header_bytes
    last.write_bytes(whole[: end - 4] + b"\x7f" + whole[end - 3 :])
    with pytest.raises(JournalError, match="header"):
        Journal(tmp_path, segment_bytes=SMALL)
    last.write_bytes(whole[: end - 4] + bytes(4) + whole[end:])
    journal = Journal(tmp_path, segment_bytes=SMALL)
    assert (len(content(journal)), journal.torn_bytes) == (count, len(whole))
    journal.close()


@pytest.mark.parametrize(("device", "size"), [("", 1), ("x" * 256, 1), ("pi", MAX_BLOCK_BYTES + 2_000)])
def test_what_no_record_can_hold_is_refused(tmp_path, device, size):
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match="does not fit"):
        journal.append(device, bytes(size))
    assert content(journal) == []
    journal.close()


def test_an_unwritable_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "file" / "journal")
    with pytest.raises(JournalError, match="cannot be read"):
        read_segments(tmp_path / "file")


def _write_until_killed(directory: Path, told: multiprocessing.connection.Connection) -> None:
    journal = Journal(directory, segment_bytes=SMALL)
    number = 0
    while True:
        journal.append("pi-1", number.to_bytes(4, "little") * 50)
        told.send(number)
        number += 1


def test_w2_every_append_that_returned_survives_kill_9(tmp_path):
    """W2: `durable` never covers an accepted block that a resume would lose."""
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=_write_until_killed, args=(tmp_path, tell))
    process.start()
    tell.close()
    last = -1
    try:
        for _ in range(200):
            assert told.poll(30)
            last = told.recv()
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        while told.poll(0):
            last = told.recv()
    except EOFError:
        pass
    finally:
        process.kill()
        process.join(10)
    journal = Journal(tmp_path, segment_bytes=SMALL)
    numbers = [int.from_bytes(payload[:4], "little") for _, payload in content(journal)]
    journal.close()
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > last
