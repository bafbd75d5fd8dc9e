"""`quarl-edge broker`: a broker of your own, with certificates and access rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarl_device.errors import UsageError
from quarl_edge.broker.address import Address
from quarl_edge.broker.authority import read_server_certificate, utc_now
from quarl_edge.broker.directory import OWN_CLIENTS, TLS_PORT, BrokerDirectory
from quarl_edge.broker.foreground import ENGINES, run_broker
from quarl_edge.broker.running import Running, find_running
from quarl_edge.cli.output import Format, keep_examples, write_json, write_line, write_table

DEFAULT_DIRECTORY = Path("broker")
broker = typer.Typer(
    help="A broker with TLS, client certificates and access rules.", no_args_is_help=True, rich_markup_mode=None
)
_Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The broker's directory.")]
_Output = Annotated[Format, typer.Option("--format", help="text or json.")]


@broker.callback()
def _group() -> None:
    """Run a broker of your own, with TLS, client certificates and access rules."""


def init(
    directory: _Directory = DEFAULT_DIRECTORY,
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the broker; may be given often.")] = None,
    replace_ca: Annotated[
        bool, typer.Option("--replace-ca", help="A new authority: every client must be enrolled again.")
    ] = False,
    output: _Output = Format.TEXT,
) -> None:
    """Make a broker's directory: authority, certificate, access rules, and credentials of learner and controller.

    Run again it keeps what is good, adds hosts, mends what an interruption left, and renews the broker's certificate in
    its last 30 days; a broker that runs shows the new one at once. Who is revoked stays so.

    Examples:
      quarl-edge broker init
      quarl-edge broker init /etc/quarl-edge/broker --host broker.local --host 192.168.1.10
    """
    made = BrokerDirectory.init(directory, hosts=host or (), replace_ca=replace_ca)
    running = find_running(made)
    if running is not None:
        running.reload()
    missing = _missing(made)
    hosts, ends = read_server_certificate(made.server.read_bytes())
    learner = made.credentials_of("learner")
    if output is Format.JSON:
        write_json(
            {
                "directory": str(made.path),
                "hosts": hosts,
                "ca_sha256": made.authority().fingerprint,
                "server_expires": ends.isoformat(),
                "learner_credentials": str(learner),
                "controller_credentials": str(made.credentials_of("controller")),
                "missing": missing,
                "broker_running": running is not None,
            }
        )
        return
    rows = [
        ("directory", str(made.path)),
        ("broker's names", ", ".join(hosts)),
        ("certificate", f"until {ends:%Y-%m-%d}"),
        ("authority", f"SHA-256 {made.authority().fingerprint}"),
    ]
    following = [
        f"quarl-edge broker up {directory} --listen 0.0.0.0:{TLS_PORT}",
        f"quarl-edge enroll pi-1 --broker-dir {directory}",
        f"quarl-edge train CartPole-v1 --credentials {directory / learner.relative_to(made.path)} --actors 0",
    ]
    write_table("broker", rows, following)
    for text in missing.values():
        write_line(text)
    if running is not None and replace_ca:
        write_line("The broker that runs knows the old authority: restart quarl-edge broker up.")
    if hosts[0] == "localhost":
        write_line(f"Devices elsewhere need its name: quarl-edge broker init {directory} --host NAME-OR-ADDRESS")


def _missing(made: BrokerDirectory) -> dict[str, str]:
    """Return what is to be said of the directory's own clients that have no credentials there, by name."""
    register, texts = made.register(), {}
    for name in OWN_CLIENTS:
        if register.find(name) is None:
            again = f"quarl-edge enroll {name} --role {name} --broker-dir {made.path}"
            texts[name] = f"The {name} is revoked and stays out. To let one in again: {again}"
        elif not made.credentials_of(name).exists():
            again = f"quarl-edge enroll {name} --renew --broker-dir {made.path}"
            texts[name] = f"The {name}'s credentials are not here any more. To make others: {again}"
    return texts


def up(
    directory: _Directory = DEFAULT_DIRECTORY,
    engine: Annotated[str, typer.Option(help="mosquitto, or amqtt to try things without it.")] = ENGINES[0],
    listen: Annotated[str, typer.Option(help="HOST:PORT; 0.0.0.0 for all networks.")] = f"127.0.0.1:{TLS_PORT}",
    output: _Output = Format.TEXT,
) -> None:
    """Run the broker in the foreground until Ctrl-C; SIGHUP has it read access rules and revoked certificates again.

    Examples:
      quarl-edge broker up
      quarl-edge broker up /etc/quarl-edge/broker --listen 0.0.0.0:8883
      quarl-edge broker up --engine amqtt
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine[:80]!r}: expected one of {', '.join(ENGINES)}")
    address = Address.parse(listen)

    def ready(running: Running) -> None:
        if output is Format.JSON:
            write_json({"ready": True, "listen": str(address), "engine": engine, "pid": running.pid})
            return
        only = "; this machine alone reaches it: --listen 0.0.0.0:8883" if address.local_only else ""
        write_line(f"{engine} listens at {address}, TLS with client certificates{only}")
        if address.port != TLS_PORT:
            write_line(
                f"Credentials made before name port {TLS_PORT}: they need --broker mqtts://HOST:{address.port}, "
                "or new ones (quarl-edge enroll NAME --renew)"
            )

    run_broker(BrokerDirectory(directory), address, engine=engine, ready=ready)


def ls(directory: _Directory = DEFAULT_DIRECTORY, output: _Output = Format.TEXT) -> None:
    """List every certificate that was issued: whose, until when, and whether it is revoked.

    Examples:
      quarl-edge broker ls
      quarl-edge broker ls /etc/quarl-edge/broker --format json
    """
    register, now = BrokerDirectory(directory).register(), utc_now()
    if output is Format.JSON:
        clients = [
            {
                "name": entry.name,
                "role": entry.role,
                "fleet": entry.fleet or None,
                "state": entry.state(now),
                "serial": entry.serial,
                "expires_unix_s": entry.expires,
                "revoked_unix_s": entry.revoked or None,
            }
            for entry in register
        ]
        write_json({"clients": clients})
        return
    rows = []
    for entry in register:
        days = int((entry.expires - now.timestamp()) // 86_400)
        state = f"{entry.state(now)}, {days} days left" if entry.state(now) == "enrolled" else entry.state(now)
        rows.append((entry.name, f"{entry.role} of {entry.fleet or 'every fleet'}; {state}"))
    write_table(f"{len(rows)} certificates", rows)


for command in (init, up, ls):
    broker.command(help=keep_examples(command))(command)
