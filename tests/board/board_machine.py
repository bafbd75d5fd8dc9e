"""An emulated board that is up: systemd as its first process, sshd on its own end of a cable."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from board_network import BOARD, HOST, Cable

BOOT_S = 180  # 15 s where nothing else runs
_END_S = 60
_REBOOTS = 133  # what systemd-nspawn ends with when whoever started it is to start it again


class Machine:
    """Boots a tree of its own, which it writes to.

    Args:
        root: the tree.
        folder: for keys, logs and the file of known hosts.
        cable: its network.

    Attributes:
        address: where it is reached from the host's side of the cable.
        host: where it reaches that side.
    """

    address, host, user = BOARD, HOST, "pi"

    def __init__(self, root: Path, *, folder: Path, cable: Cable):
        self.root, self.folder, self.cable = root, folder, cable
        self.key, self.known_hosts = folder / "id_ed25519", folder / "known_hosts"
        self.log = folder / "console.log"
        self._process = None
        self._give_keys()

    # Its life.

    def boot(self, *, within_s=BOOT_S):
        """Switch it on and wait until somebody can log in."""
        assert self._process is None, "it is on already"
        words = [
            "systemd-nspawn", "--quiet", "--boot", f"--directory={self.root}", f"--machine={self.cable.board}",
            "--register=no", "--keep-unit", f"--network-namespace-path={self.cable.board_path}", "--private-users=no",
            "--link-journal=no", "--resolv-conf=off", "--timezone=off", "--console=pipe",
            # The host's own processors: LiteRT's cpuinfo takes them for ARM cores, and dies of it (SIGSEGV).
            "--tmpfs=/sys/devices/system/cpu",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C ends it by `power_off`, not in the middle of a write.
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._wait_until_up(within_s)

    def reboot(self, *, within_s=BOOT_S):
        """Have it reboot itself, in good order, and wait until it is up again."""
        self.run("systemctl", "--no-block", "reboot", check=False)
        ended = self._process.wait(_END_S)
        assert ended == _REBOOTS, f"it ended with {ended} where it should reboot: {self.said()}"
        self._process = None
        self.boot(within_s=within_s)

    def cut_power(self):
        """End everything in it at once."""
        leader = self.leader()
        if leader is not None:
            os.kill(leader, signal.SIGKILL)
        self._gone()

    def power_off(self):
        """Switch it off, in good order where it goes along."""
        if self._process is None:
            return
        # By its own command: real-time signals, which systemd-nspawn would send, have other numbers under emulation.
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("systemctl", "--no-block", "poweroff", within_s=_END_S)
            self._gone()
            return
        self.cut_power()

    def _gone(self):
        self._process.wait(_END_S)
        self._process = None

    def leader(self):
        """Return the host's number of the process that is 1 inside, or None."""
        pid = self._process.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return int(children[0]) if children else None
        return None

    def _wait_until_up(self, within_s):
        probe = self.ssh_words("true")
        deadline = time.monotonic() + within_s

        def up():
            if self.leader() is None:
                return False
            left = max(1.0, deadline - time.monotonic())
            try:
                return subprocess.run(probe, capture_output=True, check=False, timeout=left).returncode == 0
            except subprocess.TimeoutExpired:
                return False

        self.wait(up, within_s=within_s, what="somebody could log in")

    # What is done in it.

    def run(self, *words, within_s=120, check=True, text_in=None, memory=None):
        """Run a command as root, past sshd.

        Args:
            words: the command.
            within_s: deadline, seconds.
            check: a failure is a failed test.
            text_in: standard input.
            memory: a `MemoryLimit` to run under.
        """
        done = subprocess.run(
            self.words(*words, memory=memory), input=text_in or "", capture_output=True, text=True, timeout=within_s,
            check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def words(self, *words, memory=None):
        """Return a command of the host's that runs one as root inside."""
        inside = [
            "nsenter", f"--target={self.leader()}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd",
            "--", "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
            *map(str, words),
        ]  # fmt: skip
        return inside if memory is None else memory.words(inside)

    def ssh_words(self, *words):
        """Return a command of the host's that runs one inside as the person who owns the board."""
        return self.cable.beside(
            ["ssh", "-F", "none", "-i", self.key, "-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "BatchMode=yes",
             "-o", "GlobalKnownHostsFile=none", "-o", "ConnectTimeout=10", "-o", "IdentitiesOnly=yes",
             "-o", "LogLevel=ERROR", f"{self.user}@{self.address}", *words]
        )  # fmt: skip

    def ssh(self, *words, within_s=60):
        """Run a command by ssh and return what became of it."""
        return subprocess.run(
            self.ssh_words(*words), capture_output=True, text=True, timeout=within_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def put(self, source: Path, target: str):
        """Copy a file or folder to an absolute path inside."""
        place = self.root / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--no-preserve=ownership", str(source), str(place)], check=True, timeout=120)

    def wait(self, condition, *, within_s, what, every_s=0.2):
        """Wait for something that nothing tells of, and fail with the end of the console's log."""
        deadline = time.monotonic() + within_s
        while not (value := condition()):
            over = self._process is None or self._process.poll() is not None
            assert not over, f"the machine ended before {what}: {self.said()}"
            assert time.monotonic() < deadline, f"{within_s} s passed before {what}: {self.said()}"
            time.sleep(every_s)
        return value

    def said(self):
        """Return the end of what it has written to its console."""
        return self.log.read_text(errors="replace")[-4000:]

    # How it is entered.

    def _give_keys(self):
        """A host key for it, a person's key for us: made for this tree alone."""
        _make_key(self.key)
        ssh = self.root / "etc/ssh"
        _make_key(ssh / "ssh_host_ed25519_key")
        host_key = (ssh / "ssh_host_ed25519_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"{self.address} {' '.join(host_key)}\n")
        home = self.root / "home" / self.user
        owner = home.stat()
        authorized = home / ".ssh" / "authorized_keys"
        authorized.parent.mkdir(mode=0o700)
        authorized.write_text(self.key.with_suffix(".pub").read_text())
        for path in (authorized.parent, authorized):
            os.chown(path, owner.st_uid, owner.st_gid)


def _make_key(path):
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "board", "-f", str(path)], check=True, timeout=30,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
