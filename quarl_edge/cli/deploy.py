"""`quarl-edge deploy`: an agent onto a board, over SSH, with one command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from quarl_edge.cli.interrupts import ended_by_sigterm
from quarl_edge.cli.output import Format

_Mode = Literal["train", "deploy"]
_House = Literal["auto", "always", "never"]


def deploy(
    board: Annotated[
        str, typer.Argument(metavar="USER@HOST", help="The board, as `ssh` takes it.", show_default=False)
    ],
    broker: Annotated[str, typer.Option(help="mqtt[s]://[user@]host[:port], as the board reaches it.")] = "",
    fleet: Annotated[str, typer.Option(help="To join. Default: 'default', or that of the credentials.")] = "",
    name: Annotated[str, typer.Option("--id", help="The device's name. Default: that of the credentials.")] = "",
    mode: Annotated[_Mode, typer.Option(help="For a learner, or with the policy that is released to it.")] = "train",
    policy: Annotated[
        Path | None, typer.Option(help="With --mode deploy: model.tflite, which is signed here, or model.qpol.")
    ] = None,
    env: Annotated[str, typer.Option(help="Environment of the device's own choice; may be module:Id.")] = "",
    credentials: Annotated[Path | None, typer.Option(help="The device's, from `enroll NAME`.")] = None,
    operator: Annotated[
        Path | None,
        typer.Option(
            help="Yours, from `enroll NAME --role viewer`, to hear the agent's birth; else QUARL_CREDENTIALS."
        ),
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="The device's broker password; else QUARL_MQTT_PASSWORD.")
    ] = None,
    learner_key: Annotated[
        Path | None,
        typer.Option(help="Signs model.tflite; else the learner's key that the board is to trust (learner.pub)."),
    ] = None,
    extras: Annotated[str, typer.Option(help="Of the device package: box2d,mujoco,dm-control,atari.")] = "",
    coral: Annotated[bool, typer.Option("--coral", help="Let the agent reach an Edge TPU.")] = False,
    delegate: Annotated[str, typer.Option(help="cpu or edgetpu[:usb|:pci|:N].")] = "",
    hz: Annotated[float, typer.Option(min=0.0, max=100_000, help="With --mode deploy: steps per second.")] = 0.0,
    safe_action: Annotated[
        list[float] | None, typer.Option(help="With --mode deploy: acts when nothing good is left; once per element.")
    ] = None,
    memory_mib: Annotated[int, typer.Option(min=0, max=1_000_000, help="Limit of the agent's memory; 0: none.")] = 0,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Of the SSH server; 0: as configured.")] = 0,
    identity: Annotated[Path | None, typer.Option(help="Private key to log in with, instead of your own.")] = None,
    known_hosts: Annotated[Path | None, typer.Option(help="File of host keys, instead of your own.")] = None,
    wheelhouse: Annotated[
        _House, typer.Option(help="Send packages: where the board reaches no index, always, or never.")
    ] = "auto",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until the agent's birth is heard.")] = True,
    timeout: Annotated[float, typer.Option(min=1.0, max=86_400, help="Seconds to wait for that birth.")] = 180.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the agent away; its state stays.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="With --remove: its state goes too.")] = False,
    output: Annotated[Format, typer.Option("--format", help="text or json; json: a line per step.")] = Format.TEXT,
) -> None:
    """Put an agent onto a board over SSH, start it, and wait until it acts or waits for a learner.

    Your own keys, agent, configuration and known hosts of `ssh` are used; nothing is asked for. The same command again
    changes only what differs. A step that fails leaves the agent before it running.

    Examples:
      quarl-edge deploy pi@raspberrypi.local --broker mqtt://192.168.1.10 --fleet lab --id pi-1
      quarl-edge deploy pi@pi-1.local --credentials broker/clients/pi-1 --operator broker/clients/me
      quarl-edge deploy pi@pi-1.local --id pi-1 --mode deploy --policy model.tflite --hz 50 --safe-action 0
      quarl-edge deploy pi@pi-1.local --id pi-1 --broker mqtt://broker.local --dry-run
      quarl-edge deploy pi@pi-1.local --remove --purge
    """
    from quarl_edge.cli.deploy_output import make_teller, show_deployed
    from quarl_edge.cli.deploy_wish import Typed, make_wish
    from quarl_edge.deploy.deploying import deploy as carry_out

    wish = make_wish(
        Typed(
            board=board,
            broker=broker,
            fleet=fleet,
            name=name,
            mode=mode,
            policy=policy,
            env=env,
            credentials=credentials,
            operator=operator,
            password_file=password_file,
            learner_key=learner_key,
            extras=extras,
            coral=coral,
            delegate=delegate,
            hz=hz,
            safe_action=tuple(safe_action or ()),
            memory_mib=memory_mib,
            port=port,
            identity=identity,
            known_hosts=known_hosts,
            wheelhouse=wheelhouse,
            wait=wait,
            dry_run=dry_run,
            remove=remove,
            purge=purge,
            timeout_s=timeout,
        )
    )
    with ended_by_sigterm():
        done = asyncio.run(carry_out(wish, make_teller(output)))
    show_deployed(wish, done, output)
