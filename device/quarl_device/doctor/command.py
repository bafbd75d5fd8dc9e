"""`quarl-device doctor`: options, and what a person sees."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_device.errors import BoardAtFault
from quarl_device.output import write_result
from quarl_device.runtime_options import delegate_option

if TYPE_CHECKING:
    from quarl_device.doctor.finding import Finding

_EXAMPLES = """\
examples:
  quarl-device doctor
  quarl-device doctor --config /etc/quarl-edge/device.toml
  quarl-device doctor --credentials pi-1
  QUARL_MQTT_PASSWORD=... quarl-device doctor --broker mqtt://pi-2@broker.local --id pi-2
  quarl-device doctor --env my_robot:Arm-v0 --delegate edgetpu:usb --format json

Each line is something that was looked at: ok, warning or problem, and what mends it. The exit code is 0 if there is no
problem, else 59. Nothing is changed. With --credentials the login is the device's own: while an agent of the device
runs here, the broker is not asked.
"""


def add_doctor(commands: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the subcommand `doctor` to a parser's commands, and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="say what is wrong with this board, and what mends it",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--broker", default="", metavar="URL", help="mqtt[s]://[user@]host[:port]")
    parser.add_argument("--credentials", type=Path, metavar="DIR", help="of this device; else QUARL_CREDENTIALS")
    parser.add_argument("--fleet", default="", metavar="F", help="see run")
    parser.add_argument("--id", default="", metavar="NAME", help="this device's name (default: the host's)")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="broker password; else QUARL_MQTT_PASSWORD")
    parser.add_argument("--env", default="", metavar="ID", help="is this environment registered? may be module:Id")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="default: /var/lib/quarl-edge or XDG")
    parser.add_argument("--delegate", type=delegate_option, metavar="D", help="try this one; see run")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(command=_doctor)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    # Imported here, so that --help and errors of usage are quick on a small board.
    from quarl_device.doctor.examine import Questions, examine
    from quarl_device.doctor.finding import worst

    questions = Questions(
        broker=options.broker,
        fleet=options.fleet,
        name=options.id,
        password_file=options.password_file,
        credentials=options.credentials,
        env_id=options.env,
        state=options.state_dir,
        delegate=options.delegate,
    )
    found: list[Finding] = []
    with _quiet():
        for finding in examine(questions):
            found.append(finding)
            # Line by line: a board is slow, and a child process has its deadline.
            if options.format == "text":
                write_result(finding_text(finding))
    level = worst(found)
    if options.format == "json":
        write_result(json.dumps({"level": level, "findings": [asdict(finding) for finding in found]}) + "\n")
    else:
        write_result(verdict_text(found))
    return BoardAtFault.code if level == "problem" else 0


def finding_text(finding: Finding) -> str:
    """Return one finding as lines."""
    line = f"{finding.level:8}{finding.check:13}{finding.found}\n"
    return line + (f"{'':21}mend: {finding.mend}\n" if finding.mend else "")


def verdict_text(found: Sequence[Finding]) -> str:
    """Return the last line."""
    problems, warnings = (sum(finding.level == level for finding in found) for level in ("problem", "warning"))
    return f"{len(found)} findings, of which problems: {problems}, warnings: {warnings}\n"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the link logs of lost connections is a finding here."""
    logger = logging.getLogger("quarl_device")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
