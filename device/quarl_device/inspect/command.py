"""`quarl-device inspect MODEL`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from quarl_device.output import finite, write_result

_EXAMPLES = """\
examples:
  quarl-device inspect model.tflite
  quarl-device inspect model.tflite --format json
  quarl-device inspect foreign.tflite --no-load

Any TFLite file, with or without a policy contract. It is loaded in a child process, so that a bad file does no harm.
"""


def add_inspect(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `inspect` to a parser's commands."""
    parser = commands.add_parser(
        "inspect",
        help="say what a model file is, what loads it, and what an Edge TPU would make of it",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a .tflite file")
    parser.add_argument("--no-load", action="store_true", help="do not load it in the installed runtimes")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(command=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    from quarl_device.inspect.model import inspect_path
    from quarl_device.inspect.text import render

    inspection = inspect_path(options.model, load=not options.no_load)
    if options.format == "json":
        write_result(json.dumps(finite(inspection.to_json()), allow_nan=False) + "\n")
    else:
        write_result(render(inspection))
    return 0
