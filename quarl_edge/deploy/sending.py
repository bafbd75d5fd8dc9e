"""A bundle into a private directory on the board, which is removed again whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from quarl_device.errors import BoardRefused, PayloadRefused, QuarlError
from quarl_device.wire.strict_json import Reader, loads
from quarl_edge.deploy.bundle import LIST_NAME, Bundle
from quarl_edge.deploy.host import MAX_OUTPUT_BYTES, Host, Source
from quarl_edge.deploy.scripts import on_board, said_of

_SCRIPT = "board_staging"
_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 20.0
_MIN_BYTES_PER_S = 20_000
_PERIOD_S = 2.0
_MIB = 1024 * 1024
# Nothing that a shell or an option parser reads otherwise than as one word; the directory comes from the board.
_FOLDER = re.compile(r"/[A-Za-z0-9._/+@:-]{1,400}")


@contextlib.asynccontextmanager
async def sent_bundle(host: Host, bundle: Bundle, *, note: Callable[[str], None]) -> AsyncIterator[str]:
    """Send a bundle and give its directory on the board; files that the board has kept are not sent again.

    Args:
        host: the board.
        bundle: what is sent.
        note: hears every two seconds how it goes, and what was sent.

    Raises:
        BoardUnreachable: the connection was lost.
        BoardRefused: files cannot be written there.
        PayloadRefused: the board's answer does not hold.
    """
    folder, lacks = await _open(host, bundle)
    try:
        await _send(host, bundle, folder, lacks, note)
        await _keep(host, bundle, folder)
        yield folder
    finally:
        await _close(host, folder)


async def _open(host: Host, bundle: Bundle) -> tuple[str, tuple[str, ...]]:
    read = await _ask(host, {"action": "open", "files": bundle.digests})
    folder = read.text("folder", max_length=400)
    lacks = read.array("lacks", max_length=len(bundle.entries))
    if not _FOLDER.fullmatch(folder) or "/../" in folder:
        raise PayloadRefused(f"{host.name} names a directory that is none: {folder[:80]!r}")
    if not all(type(path) is str and path in bundle.entries for path in lacks):
        raise PayloadRefused(f"{host.name} asks for files that are not sent")
    return folder, tuple(sorted(set(lacks)))


async def _send(host: Host, bundle: Bundle, folder: str, lacks: tuple[str, ...], note: Callable[[str], None]) -> None:
    files: dict[str, Source] = {f"{folder}/{path}": bundle.entries[path].source for path in lacks}
    total = sum(bundle.entries[path].size for path in lacks)
    done, told_s = 0, time.monotonic()

    def sent(count: int) -> None:
        nonlocal done, told_s
        done += count
        if time.monotonic() - told_s >= _PERIOD_S:
            told_s = time.monotonic()
            note(f"{done / _MIB:.1f} of {total / _MIB:.1f} MiB sent")

    listing = bundle.listing()
    timeout_s = _TIMEOUT_S + total / _MIN_BYTES_PER_S
    await host.send({**files, f"{folder}/{LIST_NAME}": listing}, sent=sent, timeout_s=timeout_s)
    kept = len(bundle.entries) - len(lacks)
    note(f"{len(lacks)} files, {total / _MIB:.1f} MiB" + (f"; {kept} were there from before" if kept else ""))


async def _keep(host: Host, bundle: Bundle, folder: str) -> None:
    """Have wheels kept. A board without room for that is still one to install on."""
    wheels = {path: entry.sha256 for path, entry in bundle.entries.items() if entry.kept}
    with contextlib.suppress(BoardRefused):
        await _ask(host, {"action": "keep", "folder": folder, "files": wheels})


async def _close(host: Host, folder: str) -> None:
    """Remove the directory, also where this deployment is being cancelled; a lost connection leaves it to the next."""
    closing = asyncio.ensure_future(_ask(host, {"action": "close", "folder": folder}, timeout_s=_CLOSE_TIMEOUT_S))
    try:
        with contextlib.suppress(QuarlError):
            await asyncio.shield(closing)
    except asyncio.CancelledError:
        with contextlib.suppress(QuarlError):
            await closing
        raise


async def _ask(host: Host, asked: Mapping[str, Any], *, timeout_s: float = _TIMEOUT_S) -> Reader:
    ran = await host.run(on_board(_SCRIPT), data=json.dumps(asked).encode(), timeout_s=timeout_s)
    if ran.status != 0:
        raise BoardRefused(
            f"{host.name} cannot take files: {said_of(ran)}",
            hint="the home directory of that user needs room and must be writable: df -h ~; ls -ld ~/.cache",
        )
    return loads(ran.stdout, what=f"the answer of {host.name}", cap_bytes=MAX_OUTPUT_BYTES)
