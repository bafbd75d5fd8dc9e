"""The command `quarl-device spool`: what waits on this device's disk, and giving it up."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_device.errors import UsageError
from quarl_device.output import write_result

if TYPE_CHECKING:
    from quarl_device.spool.stock import SpoolStock

_EXAMPLES = """\
examples:
  quarl-device spool ls
  quarl-device spool ls --state-dir /var/lib/quarl-edge --format json
  quarl-device spool discard default.pi-1 --boot 0123456789abcdef
  quarl-device spool discard default.pi-1 --all

A spool is named <fleet>.<device>; a boot id names one start of an actor. What is discarded is lost: the next start of
that actor tells its learner how many blocks and steps that were. Their disk space is free at once. Nothing is asked. A
spool that an agent uses is left alone (code 53).
"""


def add_spool(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `spool` to a parser's commands."""
    parser = commands.add_parser(
        "spool",
        help="show what waits on this device's disk for a learner, or give it up",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="what every spool holds, life by life")
    listing.set_defaults(command=_list)
    discarding = actions.add_parser("discard", help="give up the blocks of a spool, of one life or of all")
    discarding.add_argument("spool", metavar="SPOOL", help="its name: <fleet>.<device>")
    which = discarding.add_mutually_exclusive_group(required=True)
    which.add_argument("--boot", metavar="ID", help="of this life alone")
    which.add_argument("--all", action="store_true", help="of all lives, and files that were set aside")
    discarding.set_defaults(command=_discard)
    for action in (listing, discarding):
        action.add_argument("--state-dir", type=Path, metavar="DIR", help="default: /var/lib/quarl-edge or XDG")
        action.add_argument("--format", choices=("text", "json"), default="text")


def _list(options: argparse.Namespace) -> int:
    from quarl_device.spool.stock import list_spools

    stocks = list_spools(_directory(options))
    if options.format == "json":
        write_result(json.dumps({"spools": [asdict(stock) for stock in stocks]}) + "\n")
    else:
        write_result("".join(map(_lines, stocks)) or f"no spools in {_directory(options)}\n")
    return 0


def _discard(options: argparse.Namespace) -> int:
    from quarl_device.spool.stock import discard

    if options.spool in ("", ".", "..") or "/" in options.spool:
        raise UsageError(f"{options.spool[:80]!r} is no name of a spool", hint="quarl-device spool ls")
    stock = discard(_directory(options) / options.spool, boot_id=options.boot or "")
    if options.format == "json":
        write_result(json.dumps({"discarded": asdict(stock)}) + "\n")
    else:
        blocks, steps = sum(life.blocks for life in stock.lives), sum(life.steps for life in stock.lives)
        size_kib = sum(life.size_bytes for life in stock.lives) / 1024
        write_result(
            f"{stock.name}: {blocks:,} blocks ({steps:,} steps, {size_kib:,.0f} KiB) of {len(stock.lives)} lives are "
            "given up\n"
        )
    return 0


def _directory(options: argparse.Namespace) -> Path:
    from quarl_device.paths import state_dir
    from quarl_device.spool.directory import spools_of

    return spools_of(options.state_dir or state_dir())


def _lines(stock: SpoolStock) -> str:
    lines = [f"{stock.name}{' (in use)' if stock.in_use else ''}{'' if stock.lives else ': empty'}"]
    for life in stock.lives:
        lost = f", {life.lost_blocks:,} blocks lost ({life.lost_steps:,} steps)" if life.lost_blocks else ""
        lines.append(
            f"  {life.boot_id}  {life.blocks:,} blocks, {life.steps:,} steps, {life.size_bytes / 1024:,.0f} KiB{lost}"
        )
    lines += [f"  set aside: {name}" for name in stock.aside]
    return "\n".join(lines) + "\n"
