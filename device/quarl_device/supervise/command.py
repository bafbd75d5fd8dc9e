"""`quarl-device supervise`: its options, and signals."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quarl_device.errors import UsageError
from quarl_device.output import write_result
from quarl_device.supervise.rules import LIMIT_S, LIMIT_STARTS

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXAMPLES = f"""\
examples:
  quarl-device supervise --config /etc/quarl-edge/device.toml
  sudo runuser -u quarl-edge -- /opt/quarl-edge/current/bin/quarl-device supervise --config /etc/quarl-edge/device.toml

Runs `quarl-device run --config FILE`, and starts it again when it ends: after 1 s, then 2, 4, ... 30 s. {LIMIT_STARTS}
starts within {LIMIT_S // 60} minutes are too many: then it ends, with the agent's code. So it does at once where the
agent's usage is wrong (code 2). Ctrl-C and SIGTERM are passed on, and end both. With systemd, `quarl-device install`
makes a service that does the same.
"""


def add_supervise(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `supervise` to a parser's commands."""
    parser = commands.add_parser(
        "supervise",
        help="run the agent, start it again when it ends: where no systemd does",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="device.toml of the agent")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the summary at the end")
    parser.set_defaults(command=_supervise)


def _supervise(options: argparse.Namespace) -> int:
    from quarl_device.supervise.supervisor import Supervisor

    if not options.config.is_file():
        raise UsageError(f"no such file: {options.config}", hint="sudo quarl-device install BUNDLE puts one there")
    logging.basicConfig(level=logging.INFO, format="quarl-device supervise: %(message)s", stream=sys.stderr)
    supervisor = Supervisor([sys.executable, "-P", "-m", "quarl_device.cli", "run", "--config", str(options.config)])
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: supervisor.ask(number))
    ended = supervisor.run()
    if options.format == "json":
        write_result(json.dumps(asdict(ended)) + "\n")
    else:
        write_result(f"ended with code {ended.code} after {ended.starts} starts: {ended.reason}\n")
    return ended.code
