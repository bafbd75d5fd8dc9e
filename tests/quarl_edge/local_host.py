"""The fake of `Host`: this machine is the board, with a home and a PATH of its own. No SSH."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from quarl_device.errors import BoardRefused, BoardUnreachable, PayloadRefused
from quarl_edge.deploy.host import MAX_LINE_BYTES, MAX_OUTPUT_BYTES, MAX_STDERR_BYTES, Ran


class LocalHost:
    """Runs commands in a folder.

    Args:
        environment: of every command, with HOME.

    Attributes:
        written: paths of all files that were sent.
        closed: `close` was called.
    """

    name = "tester@board"

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self.written: list[str] = []
        self.commands: list[str] = []
        self.closed = False

    async def run(self, command: str, *, data: bytes = b"", timeout_s: float) -> Ran:
        child = await self._start(command)
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await child.communicate(data)
        except TimeoutError:
            raise BoardUnreachable(f"{self.name} did not finish in time") from None
        finally:
            _end(child)
            await child.wait()
        if len(stdout) > MAX_OUTPUT_BYTES:
            raise PayloadRefused("the board wrote too much")
        return Ran(status=max(child.returncode, -1), stdout=stdout, stderr=_tail(stderr))

    async def watch(self, command, on_line, *, timeout_s, terminal=False) -> Ran:
        child = await self._start(command)
        child.stdin.close()
        try:
            async with asyncio.timeout(timeout_s):
                errors = asyncio.create_task(child.stderr.read())
                text = b""
                while piece := await child.stdout.read(65_536):
                    *lines, text = (text + piece).split(b"\n")
                    for line in lines:
                        on_line(line[:MAX_LINE_BYTES].decode(errors="replace"))
                if text:
                    on_line(text[:MAX_LINE_BYTES].decode(errors="replace"))
                return Ran(status=max(await child.wait(), -1), stderr=_tail(await errors))
        except TimeoutError:
            raise BoardUnreachable(f"{self.name} did not finish in time") from None
        except asyncio.CancelledError:
            if terminal:
                os.killpg(child.pid, signal.SIGINT)
                await asyncio.wait_for(child.wait(), 10)
            raise
        finally:
            _end(child)
            await child.wait()

    async def send(self, files, *, sent, timeout_s) -> None:
        for path, source in files.items():
            data = source if isinstance(source, bytes) else source.read_bytes()
            try:
                Path(path).touch(mode=0o600)
                Path(path).write_bytes(data)
            except OSError as error:
                raise BoardRefused(f"{self.name} does not take files: {error}") from error
            self.written.append(path)
            sent(len(data))

    async def close(self) -> None:
        self.closed = True

    async def _start(self, command: str) -> asyncio.subprocess.Process:
        self.commands.append(command)
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environment,
            cwd=self._environment["HOME"], start_new_session=True,
        )  # fmt: skip


def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        os.killpg(child.pid, signal.SIGKILL)


def _tail(stderr: bytes) -> str:
    return stderr[-MAX_STDERR_BYTES:].decode(errors="replace")
