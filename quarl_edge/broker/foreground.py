"""`quarl-edge broker up`: a broker in the foreground until a signal ends it; SIGHUP has it read its rules again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType

from quarl_device.errors import BrokerStartFailed, QuarlError
from quarl_edge.broker.address import Address
from quarl_edge.broker.authority import read_server_certificate, utc_now
from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.broker.mosquitto import MosquittoServer, find_mosquitto
from quarl_edge.broker.running import Running, declared

ENGINES = ("mosquitto", "amqtt")
_END = (signal.SIGINT, signal.SIGTERM)


def run_broker(directory: BrokerDirectory, listen: Address, *, engine: str, ready: Callable[[Running], None]) -> None:
    """Run a broker until SIGINT or SIGTERM.

    Args:
        directory: of the broker.
        listen: where.
        engine: one of `ENGINES`.
        ready: called once it accepts connections.

    Raises:
        MissingTool: Mosquitto is not installed.
        BrokerStartFailed: another one runs on this directory, the port is taken, its certificate has expired, or it
            did not come up.
        AuthorityError: files are missing or out of its user's reach.
        QuarlError: it ended by itself.
    """
    _check_certificate(directory)
    running = Running(pid=os.getpid(), listen=listen, engine=engine)
    directory.write_rules()
    with declared(directory, running):
        if engine == "mosquitto":
            _run_mosquitto(directory, listen, ready=lambda: ready(running))
        else:
            listen.check_free()
            asyncio.run(_run_amqtt(directory, listen, ready=lambda: ready(running)))


def _check_certificate(directory: BrokerDirectory) -> None:
    hosts, ends = read_server_certificate(directory.server.read_bytes())
    if ends < utc_now():
        raise BrokerStartFailed(
            f"the broker's certificate (for {', '.join(hosts)}) expired on {ends:%Y-%m-%d}",
            hint=f"quarl-edge broker init {directory.path} renews it",
        )
    directory.check_served()


def _run_mosquitto(directory: BrokerDirectory, listen: Address, *, ready: Callable[[], None]) -> None:
    find_mosquitto()
    asked: list[int] = []
    reloads: list[int] = []
    server: MosquittoServer | None = None

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            reloads.append(number)
            if server is not None:
                server.reload()
            return
        asked.append(number)
        if server is not None:
            server.ask_to_end(force=len(asked) > 1)

    before = {number: signal.signal(number, handle) for number in (*_END, signal.SIGHUP)}
    try:
        server = MosquittoServer(directory, listen)
        if reloads:
            # It may have read its rules before they changed; a client that was revoked meanwhile must not get in.
            server.reload()
        if not asked:
            ready()
            status = server.wait()
        server.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not asked:
        raise QuarlError(f"Mosquitto ended by itself with status {status}; its last lines above say why")


async def _run_amqtt(directory: BrokerDirectory, listen: Address, *, ready: Callable[[], None]) -> None:
    from quarl_edge.broker.amqtt_tls import serve

    events: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in _END:
        loop.add_signal_handler(number, events.put_nowait, "stop")
    loop.add_signal_handler(signal.SIGHUP, events.put_nowait, "reload")
    await serve(directory, listen, ready=ready, events=events)
