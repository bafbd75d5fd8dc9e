"""A process that is tied to its parent ends with it, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

IMPORT = "import os, time; from quarl_device.parent import *; "
TIED = IMPORT + "{}(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)"
PARENT = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', {!r}], stdout=subprocess.PIPE)\n"
    "print(int(child.stdout.readline()), flush=True)\n"
    "sys.stdin.read()\n"
)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own promise")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("function", ["end_with_parent", "end_with_parent_or_now"])
def test_it_ends_with_its_parent(function, how):
    words = [sys.executable, "-c", PARENT.format(TIED.format(function))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(how)
        parent.wait(10)
    deadline_s = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not alive(child)


def test_a_parent_that_is_gone_already_is_told_or_ends_it():
    code = IMPORT + "print(end_with_parent({0}), flush=True); end_with_parent_or_now({0}); print('on')"
    done = subprocess.run(
        [sys.executable, "-c", code.format(os.getppid())], capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"False\n")


def test_one_that_is_there_is_there():
    code = IMPORT + "end_with_parent_or_now(os.getppid()); print(end_with_parent(os.getppid()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=True).stdout == b"True\n"
