"""`quarl-edge enroll` and `quarl-edge revoke`: who may connect to the broker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from quarl_device.errors import UsageError
from quarl_device.link import BrokerURL
from quarl_device.link.credentials import LEARNER_PUBLIC_FILE, ROLES
from quarl_device.names import DEFAULT_FLEET
from quarl_device.wire.keys import PublicKey
from quarl_edge.broker.directory import DEFAULT_DAYS, BrokerDirectory, Made
from quarl_edge.broker.revocation import revoke_client
from quarl_edge.broker.running import find_running
from quarl_edge.cli.broker import DEFAULT_DIRECTORY
from quarl_edge.cli.output import Format, write_json, write_line, write_table

_Directory = Annotated[Path, typer.Option("--broker-dir", metavar="DIR", help="The broker's directory.")]
_SHOWN = 8
_Output = Annotated[Format, typer.Option("--format", help="text or json.")]


def enroll(
    name: Annotated[str, typer.Argument(help="Of the client: its certificate's name, user name and client id.")],
    directory: _Directory = DEFAULT_DIRECTORY,
    fleet: Annotated[
        str, typer.Option(help="That it belongs to. Default: 'default' for devices, every fleet for others.")
    ] = "",
    role: Annotated[str, typer.Option(help=f"One of {', '.join(ROLES)}. Default: {ROLES[0]}; kept by --renew.")] = "",
    days: Annotated[int, typer.Option(min=1, max=7300, help="How long the certificate holds.")] = DEFAULT_DAYS,
    renew: Annotated[bool, typer.Option("--renew", help="Another certificate for a client that is enrolled.")] = False,
    learner_key: Annotated[
        Path | None, typer.Option(help="Public key that a device is to trust. Default: its fleet's learner's.")
    ] = None,
    broker: Annotated[str, typer.Option(help="Where the client connects. Default: the broker's first --host.")] = "",
    output: _Output = Format.TEXT,
) -> None:
    """Make a client's credentials and let it in; a broker that runs learns of it at once.

    Examples:
      quarl-edge enroll pi-1
      quarl-edge enroll arm-7 --fleet arms --days 365 --broker-dir /etc/quarl-edge/broker
      quarl-edge enroll lab-2 --role learner --fleet arms
      quarl-edge enroll pi-1 --renew
    """
    if role and role not in ROLES:
        raise UsageError(f"--role {role[:80]!r}: expected one of {', '.join(ROLES)}")
    opened = BrokerDirectory(directory)
    known = opened.register().find(name) if renew else None
    if known is not None:
        role, fleet = role or known.role, fleet or known.fleet
    else:
        role = role or ROLES[0]
        fleet = fleet or (DEFAULT_FLEET if role == "device" else "")
    url = BrokerURL.parse(broker) if broker else None
    if url is not None and not url.tls:
        raise UsageError("credentials need TLS", hint=f"--broker mqtts://{url.address}")
    running = find_running(opened)
    if url is None and running is not None:
        url = BrokerURL(host=opened.hosts()[0], port=running.listen.port, tls=True)
    made = opened.enroll(
        name,
        role=role,
        fleet=fleet,
        days=days,
        renew=renew,
        learner_key=PublicKey.from_file(learner_key) if learner_key else None,
        broker=url,
    )
    if running is not None:
        running.reload()
    if output is Format.JSON:
        write_json(_summary(made))
    else:
        _show(made)
        if url is None:
            write_line(f"Port {made.broker.port} is assumed, since no broker runs here to ask; another: --broker URL")


def revoke(
    name: Annotated[str, typer.Argument(help="The client to shut out.")],
    directory: _Directory = DEFAULT_DIRECTORY,
    output: _Output = Format.TEXT,
) -> None:
    """Shut a client out for good: its certificates are revoked, its rights removed, and its open session is ended.

    Examples:
      quarl-edge revoke pi-1
      quarl-edge revoke pi-1 --broker-dir /etc/quarl-edge/broker --format json
    """
    told = revoke_client(BrokerDirectory(directory), name)
    if output is Format.JSON:
        write_json({"name": name, "revoked": True, "broker_running": told})
    elif told:
        write_line(f"{name} is revoked, and its session at the broker is ended")
    else:
        write_line(f"{name} is revoked; no `quarl-edge broker up` runs here, so reload a broker that runs otherwise")
    if output is Format.TEXT:
        write_line(
            f"To let it in again: quarl-edge enroll {name}. Its client needs those new credentials and a restart."
        )


def _summary(made: Made) -> dict[str, object]:
    return {
        "name": made.entry.name,
        "role": made.entry.role,
        "fleet": made.entry.fleet or None,
        "fleet_before": made.before.fleet or None if made.before else None,
        "broker": str(made.broker),
        "credentials": str(made.folder),
        "serial": made.entry.serial,
        "expires_unix_s": made.entry.expires,
        "pins_learner_key": made.entry.role == "device" and (made.folder / LEARNER_PUBLIC_FILE).exists(),
        "restart_client": made.again,
        "devices_without_its_key": list(made.distrusting),
    }


def _show(made: Made) -> None:
    entry = made.entry
    ends = datetime.fromtimestamp(entry.expires, UTC)
    rows = [
        ("role", f"{entry.role} of {entry.fleet or 'every fleet'}"),
        ("broker", str(made.broker)),
        ("certificate", f"until {ends:%Y-%m-%d}"),
        ("credentials", str(made.folder)),
    ]
    following = {
        "device": [
            f"scp -rp {made.folder} BOARD:{entry.name}",
            f"quarl-device run --credentials {entry.name}      # on the board",
        ],
        "learner": [f"quarl-edge train CartPole-v1 --credentials {made.folder} --actors 0"],
        "viewer": [f"quarl-edge top --credentials {made.folder}"],
    }
    write_table(entry.name, rows, following.get(entry.role, []))
    if made.before is not None and made.before.fleet != entry.fleet:
        left, joined = (fleet or "every fleet" for fleet in (made.before.fleet, entry.fleet))
        write_line(f"It has moved from {left} to {joined}; its earlier certificates have the new rights too.")
    if made.again:
        write_line("A client that runs shows its old certificate until it has these credentials and is started again.")
    if made.distrusting:
        _show_distrusting(made)
    if entry.role == "device" and not (made.folder / LEARNER_PUBLIC_FILE).exists():
        write_line("No learner's key came along: the device will trust the first that it meets (--learner-key FILE).")
    if made.broker.host == "localhost":
        elsewhere = "a board" if entry.role == "device" else "another machine"
        write_line(
            f"It connects to localhost; for {elsewhere}, name the broker: quarl-edge broker init DIR --host NAME"
        )


def _show_distrusting(made: Made) -> None:
    """Say who refuses this learner, and how each gets its key."""
    names = ", ".join(made.distrusting[:_SHOWN]) + (", ..." if len(made.distrusting) > _SHOWN else "")
    write_line(f"Enrolled earlier, these devices trust another learner's key and will refuse this one: {names}")
    write_line(f"  scp {made.folder / LEARNER_PUBLIC_FILE} BOARD:{made.distrusting[0]}/    # each, then restart it")
