"""A board for tests: asyncssh's own server on the loopback, with a real shell, real SFTP and real keys.

Commands run as subprocesses with a home, a PATH and a sudo of their own, so nothing outside the folder is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
import threading
from pathlib import Path

import asyncssh

_START_S = 10.0
_SUDO = """#!/bin/sh
[ "$1" = -n ] && shift
if [ -e "$HOME/sudo-wants-a-password" ]; then echo "sudo: a password is required" >&2; exit 1; fi
echo "$*" >> "$HOME/sudo.log"
exec "$@"
"""


class SshBoard:
    """A running server.

    Args:
        folder: everything of the board, and the user's keys.
        deaf: connections are taken and never answered.
    """

    def __init__(self, folder: Path, *, deaf: bool = False) -> None:
        self.home = folder / "home"
        self.user = folder / "user"  # the person's own .ssh
        self._bin = folder / "bin"
        for each in (self.home, self.user, self._bin):
            each.mkdir(parents=True)
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.identity, self.known_hosts = self.user / "id_ed25519", self.user / "known_hosts"
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(self.identity))
        self._authorized = asyncssh.import_authorized_keys(key.export_public_key().decode())
        self.tool("sudo", _SUDO)
        (self._bin / "python3").symlink_to(sys.executable)
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.commands: list[str] = []
        self.port = 0
        self._deaf = deaf
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> SshBoard:
        self._thread.start()
        assert self._started.wait(_START_S)
        self.know(self.host_key)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(_START_S)

    def tool(self, name: str, text: str) -> None:
        """Put a program on the board's PATH."""
        path = self._bin / name
        path.write_text(text)
        path.chmod(0o755)

    def without(self, name: str) -> None:
        """Take one away."""
        (self._bin / name).unlink()

    def know(self, key: asyncssh.SSHKey) -> None:
        """Have the user know the board by a key."""
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {key.export_public_key().decode()}")

    def cut(self) -> None:
        """End all connections, as a pulled plug does."""
        for connection in self.connections:
            self._loop.call_soon_threadsafe(connection.abort)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        if self._deaf:
            server = await asyncio.start_server(self._listen, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
        else:
            server = await asyncssh.listen(
                "127.0.0.1",
                0,
                server_host_keys=[self.host_key],
                authorized_client_keys=self._authorized,
                process_factory=self._process,
                sftp_factory=True,
                encoding=None,
                acceptor=self.connections.append,
                line_editor=False,
            )
            self.port = server.get_port()
        self._started.set()
        await self._ended.wait()
        server.close()
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._ended.wait()
        writer.close()

    def environment(self) -> dict[str, str]:
        """Of every command."""
        path = f"{self._bin}:/usr/local/bin:/usr/bin:/bin"
        return {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "USER": "tester"}

    async def _process(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self.commands.append(process.command or "")
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "true",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.home,
            env=self.environment(),
            start_new_session=True,
        )
        feeding = asyncio.create_task(_feed(process, child))
        try:
            await asyncio.gather(_pass_on(child.stdout, process.stdout), _pass_on(child.stderr, process.stderr))
            status = await child.wait()
            process.exit(status) if status >= 0 else process.exit_with_signal(signal.Signals(-status).name[3:])
        except (asyncssh.Error, OSError, asyncio.CancelledError):
            pass
        finally:
            feeding.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
            for pipe in (child.stdout, child.stderr):
                pipe._transport.close()


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    """Pass standard input on; a Ctrl-C on a terminal is a signal."""
    with contextlib.suppress(asyncssh.Error, OSError):
        while data := await process.stdin.read(65_536):
            if process.term_type and b"\x03" in data:
                os.killpg(child.pid, signal.SIGINT)
                continue
            child.stdin.write(data)
            await child.stdin.drain()
        child.stdin.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
    while data := await source.read(65_536):
        target.write(data)
        await target.drain()


def is_private(path: Path) -> bool:
    """Whether nobody but the owner may do anything with it."""
    return not stat.S_IMODE(path.stat().st_mode) & 0o077
