"""Capped reading, atomic writing, and where files live."""

import os
import stat
import threading

import pytest

from quarl_device import files, paths
from quarl_device.errors import KeyFileError, ModelFileError, StateUnwritable, UsageError
from quarl_device.files import read_capped, write_again, write_atomic


def read(path, cap_bytes=16):
    return read_capped(path, cap_bytes=cap_bytes, error=ModelFileError, what="policy file")


def test_reads_up_to_the_cap(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 16)
    assert read(path) == b"x" * 16
    path.write_bytes(b"")
    assert read(path) == b""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"x" * 17), "over its cap of 16 bytes"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: None, "not found"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
    ids=["over the cap", "directory", "missing", "loop"],
)
def test_refuses(tmp_path, make, message):
    path = tmp_path / "file"
    make(path)
    with pytest.raises(ModelFileError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_never_reads_an_endless_file_whole():
    with pytest.raises(KeyFileError, match="over its cap"):
        read_capped(paths.Path("/dev/zero"), cap_bytes=1000, error=KeyFileError, what="key file")


def test_writes_whole_with_mode_and_parents(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, b"one", error=StateUnwritable, what="state", mode=0o600)
    write_atomic(path, b"two", error=StateUnwritable, what="state", mode=0o600)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_the_longest_name_that_a_file_system_takes_can_be_written(tmp_path):
    target = tmp_path / ("x" * 255)
    write_atomic(target, b"new", error=ModelFileError, what="policy")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StateUnwritable, match="No space left"):
        write_atomic(path, b"new", error=StateUnwritable, what="state")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateUnwritable, match="cannot be written"):
        write_atomic(tmp_path / "file" / "below", b"", error=StateUnwritable, what="state")


@pytest.mark.parametrize(
    ("variable", "place"),
    [("XDG_CONFIG_HOME", paths.config_dir), ("XDG_CACHE_HOME", paths.cache_dir)],
)
def test_directories_follow_xdg(monkeypatch, tmp_path, variable, place):
    monkeypatch.setenv(variable, str(tmp_path))
    assert place() == tmp_path / "quarl-edge"
    monkeypatch.setenv(variable, "relative/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert place().is_relative_to(tmp_path / "home")


def test_state_goes_to_the_user_where_the_system_has_no_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert paths.state_dir() == tmp_path / "quarl-edge"


def test_no_home_directory_is_one_clear_error(monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(paths.Path, "home", fail)
    with pytest.raises(UsageError, match="set HOME, or XDG_CONFIG_HOME"):
        paths.config_dir()


def test_an_empty_home_is_not_the_root_of_the_file_system(monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    with pytest.raises(UsageError, match="HOME is empty"):
        paths.config_dir()


def test_a_pipe_is_read_to_its_end_within_the_cap(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"secret\n" * 20_000))
    writer.start()
    data = read_capped(tmp_path / "pipe", cap_bytes=1_000_000, error=KeyFileError, what="key file")
    writer.join(5)
    assert data == b"secret\n" * 20_000


def test_a_pipe_that_nothing_comes_out_of_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PIPE_TIMEOUT_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    keep_open = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(KeyFileError, match="pipe that nothing came out of"):
            read_capped(tmp_path / "pipe", cap_bytes=10, error=KeyFileError, what="key file")
    finally:
        os.close(keep_open)


def test_a_symbolic_link_is_followed_when_written_through(tmp_path):
    (tmp_path / "v1").write_bytes(b"old")
    (tmp_path / "current").symlink_to("v1")
    write_atomic(tmp_path / "current", b"new", error=KeyFileError, what="key file")
    assert (tmp_path / "current").is_symlink()
    assert (tmp_path / "v1").read_bytes() == b"new"


def test_what_does_not_pass_its_check_takes_nobodys_place(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")
    seen = []

    def check(temporary):
        seen.append((temporary.parent, temporary.read_bytes(), path.read_bytes()))
        raise StateUnwritable("it is not what was written")

    with pytest.raises(StateUnwritable, match="not what was written"):
        write_atomic(path, b"new", error=StateUnwritable, what="state", check=check)
    assert seen == [(tmp_path, b"new", b"old")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    assert path.read_bytes() == b"old"
    write_atomic(path, b"new", error=StateUnwritable, what="state", check=lambda _: None)
    assert path.read_bytes() == b"new"


def test_what_is_written_again_is_the_same_and_what_lies_behind_it_untouched(tmp_path, monkeypatch):
    path = tmp_path / "file"
    content = os.urandom(2_500_000)
    path.write_bytes(content)
    written, real = [], os.pwrite

    def pwrite(file, data, offset):
        written.append((offset, offset + len(data)))
        return real(file, bytes(data)[:400_000], offset)  # a disk may take less at a time

    monkeypatch.setattr(os, "pwrite", pwrite)
    file = os.open(path, os.O_RDWR)
    write_again(file, 10, 2_400_000)
    os.close(file)
    assert (min(begin for begin, _ in written), max(end for _, end in written)) == (10, 2_400_000)
    assert path.read_bytes() == content
