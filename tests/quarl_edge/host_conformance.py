"""What every `Host` must do, SSH and fake alike."""

from __future__ import annotations

import asyncio

import pytest

from quarl_device.errors import BoardRefused, BoardUnreachable, PayloadRefused
from quarl_edge.deploy.host import MAX_LINE_BYTES, MAX_OUTPUT_BYTES, MAX_STDERR_BYTES


async def output_status_and_errors_come_back(host, folder):
    ran = await host.run("cat; echo wrong >&2; exit 3", data=b"given\0", timeout_s=20)
    assert (ran.status, ran.stdout, ran.stderr.strip()) == (3, b"given\0", "wrong")


async def a_signal_is_no_status(host, folder):
    assert (await host.run("kill -9 $$", timeout_s=20)).status == -1


async def what_does_not_end_is_left(host, folder):
    with pytest.raises(BoardUnreachable):
        await host.run("sleep 60", timeout_s=0.3)
    assert (await host.run("echo still here", timeout_s=20)).stdout == b"still here\n"


async def more_output_than_the_cap_is_refused(host, folder):
    with pytest.raises(PayloadRefused):
        await host.run(f"head -c {MAX_OUTPUT_BYTES + 70_000} /dev/zero", timeout_s=20)


async def of_errors_the_end_is_kept(host, folder):
    ran = await host.run("head -c 1000000 /dev/zero >&2; echo the end >&2", timeout_s=20)
    assert ran.stderr.endswith("the end\n")
    assert len(ran.stderr) <= MAX_STDERR_BYTES


async def lines_come_as_they_happen(host, folder):
    heard, first = [], asyncio.Event()

    def hear(line):
        heard.append(line)
        first.set()

    gate = folder / "gate"
    command = f"echo one; while ! [ -e {gate} ]; do sleep 0.02; done; printf 'two\\r\\nthree'; exit 4"
    watching = asyncio.create_task(host.watch(command, hear, timeout_s=20))
    async with asyncio.timeout(20):
        await first.wait()
        gate.touch()
        ran = await watching
    assert [line.rstrip("\r") for line in heard] == ["one", "two", "three"]
    assert ran.status == 4


async def a_long_line_is_cut_and_the_next_one_is_whole(host, folder):
    heard = []
    await host.watch("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo next", heard.append, timeout_s=20)
    assert all(len(line) <= MAX_LINE_BYTES for line in heard)
    assert heard[-1] == "next"
    assert len(heard) == 2


async def a_cancelled_terminal_gets_ctrl_c(host, folder):
    started, mark = asyncio.Event(), folder / "interrupted"
    command = f"trap 'touch {mark}; exit 0' INT; echo up; while :; do sleep 0.05; done"
    watching = asyncio.create_task(host.watch(command, lambda _: started.set(), timeout_s=None, terminal=True))
    async with asyncio.timeout(20):
        await started.wait()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    assert mark.exists()


async def files_are_written_for_their_owner_alone(host, folder):
    counted, local = [], folder / "local"
    local.write_bytes(b"x" * 2_500_000)
    (folder / "into").mkdir()
    files = {f"{folder}/into/a": b"bytes", f"{folder}/into/b": local}
    await host.send(files, sent=counted.append, timeout_s=20)
    assert (folder / "into" / "a").read_bytes() == b"bytes"
    assert (folder / "into" / "b").read_bytes() == local.read_bytes()
    assert sum(counted) == 2_500_005
    assert all((folder / "into" / name).stat().st_mode & 0o777 == 0o600 for name in "ab")


async def files_that_cannot_be_written_are_an_error(host, folder):
    with pytest.raises(BoardRefused):
        await host.send({f"{folder}/nowhere/a": b""}, sent=lambda _: None, timeout_s=20)


HOST_CHECKS = (
    output_status_and_errors_come_back,
    a_signal_is_no_status,
    what_does_not_end_is_left,
    more_output_than_the_cap_is_refused,
    of_errors_the_end_is_kept,
    lines_come_as_they_happen,
    a_long_line_is_cut_and_the_next_one_is_whole,
    a_cancelled_terminal_gets_ctrl_c,
    files_are_written_for_their_owner_alone,
    files_that_cannot_be_written_are_an_error,
)
