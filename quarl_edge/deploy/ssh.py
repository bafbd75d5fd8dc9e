"""A board over SSH, behind `Host`: the user's own keys, agent, configuration and known hosts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import asyncssh

from quarl_device.errors import BoardRefused, BoardUnreachable, PayloadRefused, UsageError
from quarl_edge.deploy.host import MAX_LINE_BYTES, MAX_OUTPUT_BYTES, MAX_STDERR_BYTES, Ran, Sent, Source
from quarl_edge.deploy.host_keys import KeyWitness, KnownHosts, known_hosts_files, refused_key
from quarl_edge.deploy.target import Target

_CONNECT_TIMEOUT_S = 20.0
_KEEPALIVE_S, _KEEPALIVES = 5, 4
_CLOSE_TIMEOUT_S = 3.0
_INTERRUPT_TIMEOUT_S = 60.0  # an installer that is interrupted puts back what it began
_PIECE_BYTES = 1024 * 1024
_READ_BYTES = 32 * 1024


async def connect_ssh(target: Target, *, identity: Path | None = None, known_hosts: Path | None = None) -> SshHost:
    """Connect and log in. Nothing is asked for: no password, no passphrase, no "yes" to a key.

    Args:
        target: the board.
        identity: private key to show instead of the user's own and those of their agent.
        known_hosts: file to look in instead of the user's own.

    Raises:
        BoardUnreachable: nothing answers, or not in time.
        BoardRefused: the host key is unknown or another one, or no key of the user's is accepted.
        UsageError: the key file or the SSH configuration does not hold.
    """
    if identity is not None and not identity.is_file():
        raise UsageError(f"no such key file: {identity}")
    witness = KeyWitness()
    try:
        options = asyncssh.SSHClientConnectionOptions(**_options(target, identity))
        known = KnownHosts(known_hosts_files(known_hosts, options.known_hosts))
        options = asyncssh.SSHClientConnectionOptions(
            options=options, known_hosts=known, client_factory=lambda: witness, preferred_auth="publickey"
        )
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise UsageError(
            f"the key {identity or 'of the SSH configuration'} cannot be used: {error}",
            hint="where it has a passphrase: ssh-add puts it into the agent",
        ) from error
    except (asyncssh.ConfigParseError, ValueError, OSError) as error:
        raise UsageError(f"the SSH configuration does not hold: {error}", hint=f"try: {target.ssh}") from error
    with _as_ours(target, witness, known):
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            connection = await asyncssh.connect(target.host, options=options)
    return SshHost(connection, target)


def _options(target: Target, identity: Path | None) -> dict[str, object]:
    chosen: dict[str, object] = {"host": target.host}
    if target.user:
        chosen["username"] = target.user
    if target.port:
        chosen["port"] = target.port
    if identity is not None:
        chosen.update(client_keys=[str(identity)], agent_path=None)
    return {**chosen, "keepalive_interval": _KEEPALIVE_S, "keepalive_count_max": _KEEPALIVES}


@contextlib.contextmanager
def _as_ours(target: Target, witness: KeyWitness, known: KnownHosts):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Map what a connection attempt ends with."""
    at = f"{target.host}{f':{target.port}' if target.port else ''}"
    try:
        yield
    except asyncssh.HostKeyNotVerifiable as error:
        raise refused_key(target, known, witness.shown, str(error)) from None
    except asyncssh.KeyExchangeFailed as error:
        # Only keys of the known kinds are asked for: a board that has none of them fails here.
        if known.knows:
            raise refused_key(target, known, None, str(error)) from None
        raise BoardRefused(f"{at} speaks no SSH that is taken here: {error.reason}") from None
    except asyncssh.PermissionDenied as error:
        raise BoardRefused(
            f"{at} accepts none of your keys ({error.reason})",
            hint=f"ssh-copy-id {target.ssh.removeprefix('ssh ')}; another key: --identity FILE; one with a "
            "passphrase: ssh-add",
        ) from None
    except TimeoutError:
        raise BoardUnreachable(
            f"{at} did not answer within {_CONNECT_TIMEOUT_S:.0f} s", hint=f"is it on? ping {target.host}"
        ) from None
    except socket.gaierror as error:
        raise BoardUnreachable(
            f"there is no host {target.host}: {error.strerror}", hint="its address instead, or NAME.local"
        ) from None
    except ConnectionRefusedError:
        raise BoardUnreachable(
            f"{at} refuses SSH connections",
            hint="there: sudo systemctl enable --now ssh; another port: --port N",
        ) from None
    except asyncssh.Error as error:
        raise BoardUnreachable(f"{at} ended the connection: {error.reason}", hint=f"try: {target.ssh}") from None
    except OSError as error:
        raise BoardUnreachable(f"{at} cannot be reached: {error.strerror or error}") from None


class SshHost:
    """An SSH connection that is logged in; see `Host`.

    Args:
        connection: that is used from then on by this alone.
        target: it leads to.
    """

    def __init__(self, connection: asyncssh.SSHClientConnection, target: Target) -> None:
        self._connection = connection
        self._target = target

    @property
    def name(self) -> str:
        """For messages."""
        return str(self._target)

    async def run(self, command: str, *, data: bytes = b"", timeout_s: float) -> Ran:
        """Run a command to its end; see `Host.run`."""
        async with self._process(command, timeout_s) as process:
            if data:
                process.stdin.write(data)
            process.stdin.write_eof()
            async with _tail_of(process.stderr) as stderr:
                stdout = await _capped(process.stdout)
                return Ran(status=await _status(process), stdout=stdout, stderr=await stderr)

    async def watch(
        self, command: str, on_line: Callable[[str], None], *, timeout_s: float | None, terminal: bool = False
    ) -> Ran:
        """Run a command and hear its lines; see `Host.watch`."""
        started = self._process(command, timeout_s, terminal=terminal)
        async with started as process, _tail_of(process.stderr) as stderr:
            try:
                async for line in _lines(process.stdout):
                    on_line(line)
            except asyncio.CancelledError:
                if terminal:
                    await _interrupt(process)
                raise
            return Ran(status=await _status(process), stderr=await stderr)

    async def send(self, files: Mapping[str, Source], *, sent: Sent, timeout_s: float) -> None:
        """Write files; see `Host.send`."""
        with self._lost():
            async with asyncio.timeout(timeout_s):
                try:
                    async with self._connection.start_sftp_client() as sftp:
                        for path, source in files.items():
                            await _write(sftp, path, source, sent)
                except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection) as error:
                    raise self._gone(error.reason) from None
                except (asyncssh.SFTPError, asyncssh.ChannelOpenError) as error:
                    raise BoardRefused(
                        f"{self.name} does not take files: {error.reason}",
                        hint="the server needs its sftp subsystem and room: grep Subsystem /etc/ssh/sshd_config; df -h",
                    ) from None

    async def close(self) -> None:
        """End the connection."""
        self._connection.close()
        with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._connection.wait_closed()

    @contextlib.asynccontextmanager
    async def _process(
        self, command: str, timeout_s: float | None, *, terminal: bool = False
    ) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
        with self._lost():
            async with asyncio.timeout(timeout_s):
                process = await self._connection.create_process(
                    command, encoding=None, term_type="dumb" if terminal else None
                )
                try:
                    yield process
                finally:
                    process.close()

    @contextlib.contextmanager
    def _lost(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
        try:
            yield
        except TimeoutError:
            raise BoardUnreachable(f"{self.name} did not finish in time, or does not answer any more") from None
        except (asyncssh.DisconnectError, asyncssh.ChannelOpenError, BrokenPipeError, ConnectionError) as error:
            raise self._gone(getattr(error, "reason", str(error))) from None

    def _gone(self, why: str) -> BoardUnreachable:
        return BoardUnreachable(f"the connection to {self.name} was lost: {why or 'no reason given'}")


async def _write(sftp: asyncssh.SFTPClient, path: str, source: Source, sent: Sent) -> None:
    private = asyncssh.SFTPAttrs(permissions=0o600)
    data = source if isinstance(source, bytes) else await asyncio.to_thread(source.read_bytes)
    async with sftp.open(path, "wb", private, encoding=None) as file:
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            await file.write(piece)
            sent(len(piece))


async def _capped(stream: asyncssh.SSHReader[bytes]) -> bytes:
    data = bytearray()
    while piece := await stream.read(_READ_BYTES):
        data += piece
        if len(data) > MAX_OUTPUT_BYTES:
            raise PayloadRefused(f"the board wrote more than {MAX_OUTPUT_BYTES:,} bytes where a short answer was due")
    return bytes(data)


@contextlib.asynccontextmanager
async def _tail_of(stream: asyncssh.SSHReader[bytes]) -> AsyncIterator[asyncio.Task[str]]:
    """Read standard error beside what else is done, so that it never fills up."""
    reading = asyncio.create_task(_tail(stream))
    try:
        yield reading
    finally:
        reading.cancel()


async def _tail(stream: asyncssh.SSHReader[bytes]) -> str:
    data = b""
    # A connection that is lost is told by standard output already.
    with contextlib.suppress(asyncssh.Error, OSError):
        while piece := await stream.read(_READ_BYTES):
            data = (data + piece)[-MAX_STDERR_BYTES:]
    return data.decode(errors="replace")


async def _lines(stream: asyncssh.SSHReader[bytes]) -> AsyncIterator[str]:
    """Give whole lines; the rest of one that is too long is dropped."""
    held, cut = b"", False
    while piece := await stream.read(_READ_BYTES):
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            if not cut:
                yield _text(line)
            cut = False
        if len(held) > MAX_LINE_BYTES:
            if not cut:
                yield _text(held)
            held, cut = b"", True
    if held and not cut:
        yield _text(held)


def _text(line: bytes) -> str:
    return line[:MAX_LINE_BYTES].rstrip(b"\r").decode(errors="replace")


async def _status(process: asyncssh.SSHClientProcess[bytes]) -> int:
    await process.wait_closed()
    if process.exit_signal is not None:
        return -1
    if process.exit_status is None:
        raise asyncssh.ConnectionLost("it ended while a command ran")
    return process.exit_status


async def _interrupt(process: asyncssh.SSHClientProcess[bytes]) -> None:
    """Press Ctrl-C on the board's terminal, which reaches what runs there as root too, and give it time to end."""
    with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
        process.stdin.write(b"\x03")
        async with asyncio.timeout(_INTERRUPT_TIMEOUT_S):
            await process.stdout.read()
            await process.wait_closed()
