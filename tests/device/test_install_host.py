"""The board, real and in memory, keeps the same promises; and what only a real one does: running commands."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quarl_device.errors import InstallFailed
from quarl_device.install.real_host import RealHost
from quarl_device.testing.host_conformance import HOST_CHECKS
from quarl_device.testing.install_host import FakeHost


@pytest.mark.parametrize("check", HOST_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["real", "fake"])
def test_conformance(kind, check, tmp_path):
    umask = os.umask(0o022)
    try:
        check(RealHost(tmp_path) if kind == "real" else FakeHost(own_system=False))
    finally:
        os.umask(umask)


def test_a_command_is_heard_line_by_line_and_its_end_told(tmp_path):
    heard = []
    code = "import sys; print('one'); print('two', file=sys.stderr, flush=True); sys.stdout.write('three'); sys.exit(3)"
    done = RealHost(tmp_path).run([sys.executable, "-u", "-c", code], timeout_s=30, hear=heard.append)
    assert done.code == 3
    assert sorted(heard) == ["one", "three", "two"]
    assert sorted(done.said.split()) == ["one", "three", "two"]


def test_only_the_end_of_much_is_kept_and_a_line_without_end_has_one(tmp_path):
    heard = []
    code = "import sys; sys.stdout.write('x' * 300_000 + '\\nthe end\\n')"
    done = RealHost(tmp_path).run([sys.executable, "-c", code], timeout_s=30, hear=heard.append)
    assert len(done.said) <= 2_000
    assert done.said.endswith("the end")
    assert sum(map(len, heard)) == 300_007
    assert max(map(len, heard)) < 200_000


@pytest.mark.parametrize(
    "code",
    [
        "import time; print('begun', flush=True); time.sleep(60)",
        "import os, time; print('begun', flush=True); os.close(1); os.close(2); time.sleep(60)",
    ],
)
def test_a_command_whose_time_is_over_is_killed(code, tmp_path):
    began_s = time.monotonic()
    done = RealHost(tmp_path).run([sys.executable, "-c", code], timeout_s=1.0)
    assert done.code == 124
    assert "not done after 1 s" in done.said
    assert time.monotonic() - began_s < 30


def test_a_signal_and_a_program_that_is_not_there_have_codes(tmp_path):
    host = RealHost(tmp_path)
    kill = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert host.run(kill, timeout_s=30).code == 137
    assert host.run(["no-such-program"], timeout_s=30).code == 127


def test_what_python_would_import_from_elsewhere_is_not_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    said = RealHost(tmp_path).run(["env"], timeout_s=30).said.splitlines()
    assert not any(line.startswith("PYTHONPATH=") for line in said)
    assert "https_proxy=http://proxy:1" in said
    assert "LC_ALL=C.UTF-8" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone becomes another user")
def test_a_command_runs_as_another_user_without_this_ones_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    host = RealHost(tmp_path)
    assert host.run(["id", "-un"], timeout_s=30, user="nobody").said == "nobody"
    assert "SECRET" not in host.run(["env"], timeout_s=30, user="nobody").said
    with pytest.raises(InstallFailed, match="no user nosuchuser"):
        host.run(["id"], timeout_s=30, user="nosuchuser")


def test_a_directory_that_stands_for_the_root_is_not_this_system(tmp_path):
    host = RealHost(tmp_path)
    assert not host.own_system
    assert host.place("/etc/app") == str(tmp_path / "etc/app")
    # An owner of the board's is nobody here.
    host.write("/etc/app", b"1", mode=0o600, owner="quarl-edge")
    assert (tmp_path / "etc/app").stat().st_uid == os.geteuid()


def test_a_child_ends_with_the_installer(tmp_path):
    code = (
        "import sys; from pathlib import Path; from quarl_device.install.real_host import RealHost\n"
        "RealHost(Path(sys.argv[1])).run([sys.executable, '-c', "
        "'import os, time; print(os.getpid(), flush=True); time.sleep(60)'], timeout_s=60, "
        "hear=lambda line: print(line, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    for _ in range(500):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.02)
    else:
        pytest.fail("the child lives on")


def test_neither_a_pipe_nor_a_file_without_end_holds_root_up(tmp_path, monkeypatch):
    monkeypatch.setattr("quarl_device.install.real_host._MAX_READ_BYTES", 1024)
    monkeypatch.setattr("quarl_device.files._PIPE_TIMEOUT_S", 0.05)
    host = RealHost(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "file").write_bytes(b"x")
    assert (host.read("/pipe"), host.read("/zero"), host.read("/file")) == (None, None, b"x")
