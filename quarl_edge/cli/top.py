"""`quarl-edge top`: a fleet, live."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quarl_device.errors import UsageError
from quarl_device.link import BrokerURL, PahoLink, read_password
from quarl_device.link.credentials import find_credentials, told_apart
from quarl_device.names import DEFAULT_FLEET, check_name
from quarl_device.wire.topics import Topics
from quarl_edge.cli.output import Format, write_json
from quarl_edge.flow.fleet_view import FleetView
from quarl_edge.flow.table import render

if TYPE_CHECKING:
    from rich.console import Console

VIEWER_NAME = "viewer"
_CONNECT_TIMEOUT_S = 10.0
_SETTLE_S = 0.5
_FILE_WIDTH = 160


def top(
    broker: Annotated[str, typer.Option(help="mqtt[s]://[user@]host[:port].")] = "",
    fleet: Annotated[str, typer.Option(help="To look at. Default: 'default', or that of the credentials.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    wait: Annotated[float, typer.Option(help="With --once: seconds to listen at most.", min=0.1, max=3_600)] = 3.0,
    every: Annotated[float, typer.Option(help="Seconds between two pictures.", min=0.1, max=3_600)] = 1.0,
    password_file: Annotated[Path | None, typer.Option(help="Broker password; else QUARL_MQTT_PASSWORD.")] = None,
    credentials: Annotated[
        Path | None, typer.Option(help="From `enroll NAME --role viewer`; else QUARL_CREDENTIALS.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json; json: one line a picture.")] = Format.TEXT,
) -> None:
    """Show learner and actors of a fleet: rates, policy lag, what waits in spools, and what stands still since when.

    Only listens; Ctrl-C ends it.

    Examples:
      quarl-edge top --broker mqtt://localhost
      quarl-edge top --broker mqtt://me@broker.local --fleet arms
      quarl-edge top --credentials broker/clients/watcher
      quarl-edge top --broker mqtt://localhost --once --format json
    """
    link, topics = _link(broker, fleet, password_file=password_file, credentials=credentials)
    view = FleetView(topics)
    view.listen(link)
    with told_apart(find_credentials(credentials), link.url):
        link.connect(timeout_s=_CONNECT_TIMEOUT_S)
    try:
        if once:
            _listen(view, wait)
            _show(view, output)
        else:
            _watch(view, every, output)
    except KeyboardInterrupt:
        # That is how it ends.
        return
    finally:
        link.close()


_UNFIT = {
    "device": "as a device, which sees itself alone",
    # A broker that takes the client id from the certificate would end the session of the learner that runs.
    "learner": "as a learner, which looking on under its name would throw off the broker",
}


def _link(broker: str, fleet: str, *, password_file: Path | None, credentials: Path | None) -> tuple[PahoLink, Topics]:
    """Return a link that is not connected yet, and what to look at."""
    held = find_credentials(credentials)
    if held is not None:
        unfit = _UNFIT.get(held.role)
        if unfit:
            raise UsageError(f"{held.name!r} is enrolled {unfit}", hint="quarl-edge enroll NAME --role viewer")
        topics = Topics(held.fleet_or(fleet, default=DEFAULT_FLEET))
        # A broker that takes the client id from the certificate lets one in at a time.
        return PahoLink(held.broker_or(broker), client_id=held.name, tls=held.tls()), topics
    if not broker:
        raise UsageError("which broker?", hint="--broker mqtt[s]://[user@]host[:port], or --credentials DIR")
    url, password = BrokerURL.parse(broker), read_password(password_file)
    if password and not url.user:
        url = replace(url, user=VIEWER_NAME)
    client_id = f"{VIEWER_NAME}-{secrets.token_hex(6)}"
    return PahoLink(url, client_id=client_id, password=password), Topics(
        check_name(fleet or DEFAULT_FLEET, kind="fleet")
    )


def _listen(view: FleetView, wait_s: float) -> None:
    """Wait until everybody has said how it goes, at most `wait_s`; what is retained needs a moment."""
    deadline_s = time.monotonic() + wait_s
    time.sleep(min(_SETTLE_S, wait_s))
    while (view.empty or not view.complete) and time.monotonic() < deadline_s:
        time.sleep(0.05)


def _show(view: FleetView, output: Format) -> None:
    if output is Format.JSON:
        write_json(view.snapshot())
        return
    _console().print(render(view.snapshot()))


def _watch(view: FleetView, every_s: float, output: Format) -> None:
    if output is Format.JSON:
        while True:
            time.sleep(every_s)
            write_json(view.snapshot())
    from rich.live import Live

    time.sleep(_SETTLE_S)
    with Live(render(view.snapshot()), console=_console(), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(render(view.snapshot()), refresh=True)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    # A file or a pipe has no width to be fitted into.
    return console if console.is_terminal else Console(width=_FILE_WIDTH)
