"""A real Mosquitto on the loopback, for tests: free port, temporary configuration, stopped by its own process id."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

from quarl_device.errors import BrokerStartFailed, LinkLost
from quarl_device.parent import end_with_parent_or_now
from quarl_device.wire.limits import MAX_PAYLOAD_BYTES

_START_S = 5.0
_USER = "mosquitto"


def mosquitto_binary() -> str:
    """Return the path of the broker; Debian puts it where an unprivileged PATH does not look.

    Raises:
        BrokerStartFailed: it is not installed.
    """
    for name in ("mosquitto", "/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"):
        found = shutil.which(name)
        if found:
            return found
    raise BrokerStartFailed("Mosquitto is not installed", hint="sudo apt-get install -y mosquitto")


class Mosquitto:
    """A running broker.

    Args:
        users: user name to password; `None` lets everybody in.
        port: to listen on; 0 takes a free one.
        persistence: folder for what it remembers over a kill, written every second; `None` remembers nothing.
        tied: it ends with the thread that starts it, whatever ends that.

    Raises:
        BrokerStartFailed: not installed, or not accepting within 5 s.
    """

    def __init__(
        self,
        users: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        persistence: Path | None = None,
        tied: bool = False,
    ) -> None:
        binary = mosquitto_binary()
        self._folder = tempfile.TemporaryDirectory(prefix="quarl-mosquitto-")
        folder = Path(self._folder.name)
        self.port = port or _free_port()
        lines = [
            f"listener {self.port} 127.0.0.1",
            "set_tcp_nodelay true",
            f"max_packet_size {2 * MAX_PAYLOAD_BYTES}",
            "max_inflight_messages 1000",
            "max_queued_messages 10000",
            *_persistence_lines(persistence),
            f"allow_anonymous {'true' if users is None else 'false'}",
        ]
        if users is not None:
            passwords = folder / "passwords"
            passwords.write_text("".join(f"{user}:{password}\n" for user, password in users.items()))
            passwords.chmod(0o600)
            tool = Path(binary).with_name("mosquitto_passwd")
            command = str(tool) if tool.exists() else "mosquitto_passwd"
            subprocess.run([command, "-U", str(passwords)], check=True, capture_output=True, timeout=30)
            # Started as root it drops to its own user, which must be able to read the file.
            passwords.chmod(0o644)
            folder.chmod(0o755)
            lines.append(f"password_file {passwords}")
        config = folder / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        self._log = (folder / "log").open("wb")
        if tied:
            # Its own user must read it; one that drops root by itself loses the tie.
            folder.chmod(0o755)
        self._process = subprocess.Popen(
            [binary, "-c", str(config)],
            stdout=self._log,
            stderr=self._log,
            user=_own_user() if tied else None,
            preexec_fn=partial(end_with_parent_or_now, os.getpid()) if tied else None,  # noqa: PLW1509  one system call, made ready beforehand
        )
        self._wait()

    @property
    def url(self) -> str:
        """Its URL without a user."""
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Mosquitto:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def check(self) -> None:
        """Raise LinkLost where it has ended by itself."""
        if self._process.poll() is not None:
            raise LinkLost(f"Mosquitto, process {self._process.pid}, ended with status {self._process.returncode}")

    def stop(self) -> None:
        """Stop it and remove its files; idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=3.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=3.0)
        self._log.close()
        self._folder.cleanup()

    def kill(self) -> None:
        """End it as a power cut would, and remove its configuration; what `persistence` holds stays."""
        self._process.kill()
        self._process.wait(timeout=3.0)
        self.stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=0.5).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        text = (Path(self._folder.name) / "log").read_text(errors="replace")[-500:]
        self.stop()
        raise BrokerStartFailed(f"Mosquitto did not accept connections within {_START_S:.0f} s: {text}")


def _own_user() -> int | None:
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(_USER).pw_uid
    return None


def _persistence_lines(folder: Path | None) -> list[str]:
    if folder is None:
        return ["persistence false"]
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # started as root it drops to its own user
    return ["persistence true", f"persistence_location {folder}/", "autosave_interval 1"]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
