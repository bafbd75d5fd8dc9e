"""The commands `quarl-device activate` and `quarl-device status`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_device.output import write_result
from quarl_device.runtime_options import add_runtime_options, chosen_runtime

if TYPE_CHECKING:
    from quarl_device.deploy.slots import Slots

_ACTIVATE_EXAMPLES = """\
examples:
  quarl-device activate model.qpol
  quarl-device activate model.qpol --learner-key learner.pub
  quarl-device activate older.qpol --allow-older
  quarl-device activate compiled.qpol --delegate edgetpu
  quarl-device activate model.qpol --state-dir /var/lib/quarl-edge --format json

The file is verified and self-tested here, then handed to the agent, which takes it within a second, or at its next
start, and does both again. It acts from the end of the episode on, first on probation. What does not hold is refused
with its code, and nothing changes. `quarl-edge sign` makes such a file.
"""
_STATUS_EXAMPLES = """\
examples:
  quarl-device status
  quarl-device status --format json
  quarl-device status --config /etc/quarl-edge/device.toml
  quarl-device status --state-dir /var/lib/quarl-edge

Reads what lies on the disk, and works while nothing runs. Counters are as of the last half minute.
"""


def add_deploy(commands: argparse._SubParsersAction[Any]) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Add `activate` and `status` to a parser's commands, and return their parsers."""
    activate = commands.add_parser(
        "activate",
        help="hand a signed policy file to the agent of this device (run --mode deploy)",
        epilog=_ACTIVATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    activate.add_argument("model", type=Path, metavar="FILE", help="signed policy file (.qpol)")
    activate.add_argument("--learner-key", type=Path, metavar="FILE", help="public key; kept at its first use")
    activate.add_argument("--allow-older", action="store_true", help="go back to an older version")
    add_runtime_options(activate)
    activate.set_defaults(command=_activate)
    status = commands.add_parser(
        "status",
        help="show how this device stands in deploy mode",
        epilog=_STATUS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    status.set_defaults(command=_status)
    for command in (activate, status):
        command.add_argument(
            "--state-dir", "--state", type=Path, metavar="DIR", help="default: /var/lib/quarl-edge or XDG"
        )
        command.add_argument("--format", choices=("text", "json"), default="text")
    return activate, status


def _activate(options: argparse.Namespace) -> int:
    from quarl_device.deploy.activation import hand_over
    from quarl_device.deploy.signed import read_signed

    slots = _slots(options)
    data = read_signed(options.model)
    slots.make()
    key = slots.trusted_key(options.learner_key)
    handed = hand_over(data, slots, key, chosen_runtime(options), allow_older=options.allow_older)
    if options.format == "json":
        write_result(json.dumps(asdict(handed)) + "\n")
    elif handed.already:
        write_result(f"version {handed.name} is current already\n")
    else:
        when = "within a second" if handed.running else "when it starts: quarl-device run --mode deploy"
        write_result(f"version {handed.name} is handed over; the agent takes it {when}\nnext: quarl-device status\n")
    return 0


def _status(options: argparse.Namespace) -> int:
    from quarl_device.deploy.status import as_text, look

    status = look(_slots(options))
    write_result(json.dumps(status) + "\n" if options.format == "json" else as_text(status))
    return 0


def _slots(options: argparse.Namespace) -> Slots:
    from quarl_device.deploy.slots import Slots
    from quarl_device.paths import state_dir

    return Slots(options.state_dir or state_dir())
