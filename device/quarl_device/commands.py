"""The commands of `quarl-device`: their options, what they do, and how an error is shown."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from quarl_device import __version__
from quarl_device.arguments import at_least, between
from quarl_device.bench_command import MAX_ENVS, add_bench
from quarl_device.config_file import add_config_option, with_config
from quarl_device.delegate_spec import COMPILED_LAG_S
from quarl_device.deploy.command import add_deploy
from quarl_device.deploy.options import (
    add_deploy_options,
    heralded,
    make_deploy_agent,
    refuse_deploy_options,
    show_deploy_summary,
)
from quarl_device.doctor.command import add_doctor
from quarl_device.errors import QuarlError, TrustError, UsageError
from quarl_device.inspect.command import add_inspect
from quarl_device.install.command import add_install
from quarl_device.names import DEFAULT_FLEET
from quarl_device.notify import Notifier, linger
from quarl_device.output import write_result
from quarl_device.parent import end_with_parent
from quarl_device.runtime_options import add_runtime_options, chosen_runtime
from quarl_device.spool.command import add_spool
from quarl_device.spool.options import add_spool_options, make_outbox
from quarl_device.supervise.command import add_supervise

if TYPE_CHECKING:
    from quarl_device.actor.agent import Agent, AgentConfig, Summary
    from quarl_device.actor.joining import Joining
    from quarl_device.actor.live_slot import LiveSlot
    from quarl_device.deploy.agent import DeployAgent

_MAX_OFFLINE_S = 60
_MAX_OFFLINE_BLOCKS = 64  # what a learner that is there lets a device be ahead at most
_RUN_EXAMPLES = """\
examples:
  quarl-device run --broker mqtt://pi-1@192.168.1.10 --id pi-1
  QUARL_MQTT_PASSWORD=... quarl-device run --broker mqtt://pi-2@broker.local --id pi-2 --index 1 --envs 16
  quarl-device run --broker mqtt://robot@broker.local --id robot --env my_robot:Arm-v0 --learner-key learner.pub
  quarl-device run --broker mqtts://pi-3@broker.local --spool-mib 1024 --spool-sync 30 --when-full drop-oldest
  quarl-device run --broker mqtt://pi-4@broker.local --spool memory --max-offline 3600
  quarl-device run --config /etc/quarl-edge/device.toml
  quarl-device run --credentials pi-1
  quarl-device run --credentials pi-1 --delegate edgetpu:usb
  quarl-device run --mode deploy --policy model.qpol --learner-key learner.pub
  quarl-device run --mode deploy --env my_robot:Arm-v0 --hz 50 --safe-action 0 0 --limit -0.5 0.5

Experience waits in a spool on disk until the learner has it safe; after a kill or a power cut the next start delivers
what is left. Where link or learner are lost the device goes on for --max-offline seconds and until --max-offline-blocks
blocks wait, as far as the spool takes them. When the learner says goodbye it pauses at once, until one is back.

With --mode deploy nothing is learned and no broker is needed: policies that `quarl-edge sign` has signed act, a new one
first on probation, and what fails falls back to the one before it (docs/guides/deploy.md). A broker that is named is
told what acts; nothing ever waits for it.

The environment, policy and seed come from the learner. The broker's password comes from QUARL_MQTT_PASSWORD or
--password-file. Credentials (from `quarl-edge enroll`) name broker, fleet, device and learner's key by themselves.
Ctrl-C ends cleanly: what was experienced is sent first; a second one ends at once.
"""
_CONNECT_TIMEOUT_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_command(words: Sequence[str]) -> int:
    """Run one command line.

    Args:
        words: the arguments, without the program's name.

    Returns:
        The exit code: 0 done, 1 ran and failed, 2 wrong usage, or the error's own (see `quarl_device.errors`).
    """
    try:
        parser = _parser()
        options = with_config(parser, words, parser.parse_args(words))
    except UsageError as error:
        # What could not be parsed may still say how its error is to be shown.
        return _show_error(error, as_json="--format=json" in words or ("--format", "json") in pairwise(words))
    try:
        status: int = options.command(options)
    except QuarlError as error:
        return _show_error(error, as_json=getattr(options, "format", "text") == "json")
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="quarl-device", description="Act with int8 policies on this board, stream experience.")
    parser.add_argument("--version", action="version", version=f"quarl-device {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    version = commands.add_parser("version", help="show the version")
    version.set_defaults(command=_version)
    run = commands.add_parser(
        "run",
        help="act: for a learner that is sent the experience, or with policies that are released to this device",
        epilog=_RUN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run_options(run)
    run.set_defaults(command=_run)
    add_bench(commands)
    add_inspect(commands)
    add_spool(commands)
    for command in (add_doctor(commands), *add_deploy(commands)):
        add_config_option(command, run)
    add_install(commands)
    add_supervise(commands)
    return parser


def _add_run_options(run: argparse.ArgumentParser) -> None:
    add_config_option(run)
    run.add_argument(
        "--mode", choices=("train", "deploy"), default="train", help="for a learner, or with released policies"
    )
    run.add_argument("--broker", default="", metavar="URL", help="mqtt[s]://[user@]host[:port]")
    run.add_argument("--credentials", type=Path, metavar="DIR", help="of this device; else QUARL_CREDENTIALS")
    run.add_argument("--fleet", default="", metavar="F", help=f"fleet to join (default: {DEFAULT_FLEET})")
    run.add_argument("--id", default="", metavar="NAME", help="this device's name (default: the host's)")
    run.add_argument("--env", metavar="ID", help="environment of this device's own choice; may be module:Id")
    run.add_argument(
        "--envs", type=between(1, MAX_ENVS), default=1, metavar="N", help="environments, stepped as one batch"
    )
    run.add_argument("--index", type=at_least(0), default=0, metavar="I", help="which actor this is, from 0")
    run.add_argument("--seed", type=at_least(0), metavar="S", help="default: the learner's")
    run.add_argument("--block-steps", type=at_least(1), metavar="T", help="rows per block (default: the learner's)")
    run.add_argument("--steps", type=at_least(1), metavar="N", help="end after so many environment steps")
    run.add_argument("--password-file", type=Path, metavar="FILE", help="broker password; else QUARL_MQTT_PASSWORD")
    run.add_argument("--learner-key", type=Path, metavar="FILE", help="trust this learner's public key alone")
    add_runtime_options(run)
    add_spool_options(run)
    add_deploy_options(run)
    run.add_argument(
        "--max-offline",
        type=at_least(0),
        metavar="S",
        help=f"go on so long where link or learner are lost (default: {_MAX_OFFLINE_S})",
    )
    run.add_argument(
        "--max-offline-blocks",
        type=at_least(0),
        metavar="N",
        help=f"and until so many blocks wait (default: {_MAX_OFFLINE_BLOCKS}; no bound where --max-offline is given)",
    )
    run.add_argument(
        "--max-upload", type=at_least(1), metavar="KIB", help="send at most so many KiB of experience per second"
    )
    run.add_argument(
        "--edge-tpu-max-lag",
        type=at_least(0),
        metavar="S",
        help="with an Edge TPU: act so long with a replaced policy while a compiled one is awaited "
        f"(default: {COMPILED_LAG_S:g})",
    )
    run.add_argument("--exit-when-gone", action="store_true", help="end when the learner says goodbye")
    run.add_argument("--quiet", action="store_true", help="log warnings only")
    run.add_argument("--format", choices=("text", "json"), default="text", help="of the summary at the end")
    run.add_argument("--die-with-parent", action="store_true", help=argparse.SUPPRESS)


def _version(_: argparse.Namespace) -> int:
    write_result(f"quarl-device {__version__}\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.die_with_parent:
        _die_with_parent()
    logging.basicConfig(
        level=logging.WARNING if options.quiet else logging.INFO, format="quarl-device: %(message)s", stream=sys.stderr
    )
    notifier = Notifier.from_environment()
    return _deploy(options, notifier) if options.mode == "deploy" else _train(options, notifier)


def _deploy(options: argparse.Namespace, notifier: Notifier) -> int:
    agent, herald = make_deploy_agent(options, notifier)
    _stop_on_signals(agent)
    with heralded(herald):
        summary = agent.run()
    show_deploy_summary(summary, as_json=options.format == "json")
    return 0


def _train(options: argparse.Namespace, notifier: Notifier) -> int:
    refuse_deploy_options(options)
    # Imported here, so that --help and errors of usage are quick on a small board.
    from quarl_device.actor.agent import Agent, new_boot_id, will_of
    from quarl_device.actor.joining import joining_of
    from quarl_device.link import PahoLink
    from quarl_device.link.credentials import find_credentials, told_apart

    try:
        joining = joining_of(options)
    except TrustError as error:
        linger(notifier, error.message)
        raise
    config = _agent_config(options, joining)
    boot_id = new_boot_id()
    link = PahoLink(
        joining.url,
        client_id=joining.client_id,
        password=joining.password,
        will=will_of(config, boot_id),
        tls=joining.tls,
    )
    runtime = chosen_runtime(options)
    outbox = make_outbox(options, config, boot_id)
    live = _live_slot(options, config)
    agent = Agent(config, link=link, runtime=runtime, boot_id=boot_id, outbox=outbox, notifier=notifier, live=live)
    _stop_on_signals(agent)
    logging.getLogger(__name__).info("%s joins fleet %s at %s", config.name, config.fleet, joining.url.address)
    with told_apart(find_credentials(options.credentials), joining.url):
        summary = agent.run()
    _show_summary(config.name, summary, as_json=options.format == "json")
    return 0


def _live_slot(options: argparse.Namespace, config: AgentConfig) -> LiveSlot | None:
    """Return what keeps the newest policy; nothing does where the spool spares the card as well."""
    from quarl_device.actor.live_slot import LiveSlot, live_slot_path
    from quarl_device.paths import state_dir

    if options.spool == "memory":
        return None
    return LiveSlot(live_slot_path(options.state_dir or state_dir(), fleet=config.fleet, device=config.name))


def _agent_config(options: argparse.Namespace, joining: Joining) -> AgentConfig:
    from quarl_device.actor.agent import AgentConfig

    return AgentConfig(
        fleet=joining.fleet,
        name=joining.name,
        env=options.env,
        num_envs=options.envs,
        actor_index=options.index,
        seed=options.seed,
        block_steps=options.block_steps,
        max_steps=options.steps or 0,
        learner_key=joining.learner_key,
        exit_when_gone=options.exit_when_gone,
        connect_timeout_s=_CONNECT_TIMEOUT_S,
        max_offline_s=_MAX_OFFLINE_S if options.max_offline is None else options.max_offline,
        max_offline_blocks=_max_offline_blocks(options),
        max_upload_bytes_per_s=(options.max_upload or 0) * 1024,
        edge_tpu_max_lag_s=COMPILED_LAG_S if options.edge_tpu_max_lag is None else options.edge_tpu_max_lag,
    )


def _max_offline_blocks(options: argparse.Namespace) -> int | None:
    """Return how many blocks may wait; who says for how long the device goes on has no other bound by default."""
    if options.max_offline_blocks is not None or options.max_offline is not None:
        bound: int | None = options.max_offline_blocks
        return bound
    return _MAX_OFFLINE_BLOCKS


def _show_summary(name: str, summary: Summary, *, as_json: bool) -> None:
    if as_json:
        write_result(json.dumps(asdict(summary)) + "\n")
        return
    write_result(
        f"{name}: {summary.steps:,} steps, {summary.episodes:,} episodes, {summary.blocks:,} blocks "
        f"({summary.blocks_pending} not acknowledged, {summary.blocks_dropped} dropped), "
        f"{summary.policies:,} policies; ended: {summary.reason}\n"
    )


def _stop_on_signals(agent: Agent | DeployAgent) -> None:
    def handle(number: int, _: FrameType | None) -> None:
        # The next one of either kind meets the default action and ends the process at once.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        agent.stop(signal.Signals(number).name)
        if agent.connecting:
            raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, handle)


def _die_with_parent() -> None:
    if not end_with_parent(os.getppid()):
        raise UsageError("--die-with-parent: the parent is gone already")


def _show_error(error: QuarlError, *, as_json: bool) -> int:
    # A log on a full disk takes no message, but whoever started this still learns the code.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"quarl-device: error: {error}\n")
    if as_json:
        described = {"code": error.code, "kind": type(error).__name__, "message": error.message, "hint": error.hint}
        with contextlib.suppress(OSError):
            sys.stdout.write(json.dumps({"error": described}) + "\n")
            sys.stdout.flush()
    return error.code
