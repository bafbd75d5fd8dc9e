"""`quarl-device install`, and `python -m quarl_device.install`: options, and what a person sees."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from quarl_device.arguments import at_least, between
from quarl_device.errors import BoardUnfit, QuarlError, UsageError
from quarl_device.install import switch
from quarl_device.install.facts import read_facts
from quarl_device.install.host import Host
from quarl_device.install.installing import StepFailed, install, running_release
from quarl_device.install.interruption import SIGNALS
from quarl_device.install.lock import only_one
from quarl_device.install.real_host import RealHost
from quarl_device.install.removing import remove
from quarl_device.install.report import Result, Tell, json_teller, text_teller, write_result_line
from quarl_device.install.wanted import START_TIMEOUT_S, Order

_INTERRUPTED = 130
_EXTRA = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_EXAMPLES = """\
examples:
  sudo quarl-device install bundle --dry-run
  sudo quarl-device install bundle --memory-mib 512
  sudo quarl-device install bundle --coral
  sudo env PYTHONPATH=bundle/quarl_edge_device-0.1.0-py3-none-any.whl python3 -P -m quarl_device.install bundle
  sudo quarl-device install --remove
  sudo quarl-device install --remove --purge

A bundle is a directory that `quarl-edge deploy` makes. A release is made beside the running one and tried; then it is
switched to, and the agent started. A step that fails is said, and what was there before it is put back. The same bundle
twice changes nothing. --purge also takes the state: spool, policies, the system user.
"""


def add_install(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `install` to a parser's commands."""
    parser = commands.add_parser(
        "install",
        help="put an agent onto this board from a bundle, or take it away",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.set_defaults(command=run)


def main(words: Sequence[str]) -> int:
    """Run `python -m quarl_device.install`; returns the exit code."""
    parser = _Parser(
        prog="quarl_device.install",
        description="Put an agent onto this board from a bundle, or take it away.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    try:
        return run(parser.parse_args(words))
    except UsageError as error:
        sys.stderr.write(f"quarl-device install: error: {error}\n")
        return error.code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("bundle", type=Path, nargs="?", metavar="BUNDLE", help="directory with bundle.json")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    parser.add_argument("--remove", action="store_true", help="take the agent away")
    parser.add_argument("--purge", action="store_true", help="with --remove: its state too")
    parser.add_argument("--coral", action="store_true", help="let the agent reach an Edge TPU")
    parser.add_argument("--memory-mib", type=between(64, 2**20), default=0, metavar="N", help="limit of its memory")
    parser.add_argument(
        "--start-timeout", type=at_least(1), default=START_TIMEOUT_S, metavar="S",
        help="until it must be ready (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--extras", type=_extras, default=(), metavar="X,Y", help="of the device package: box2d, ...")
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="stands for the board's root")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--recover", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; returns the exit code.

    Raises:
        UsageError: options that do not go together.
    """
    _check(options)
    # What is made must be readable for the agent's user, whatever the mask of who runs this.
    os.umask(0o022)
    as_json = options.format == "json"
    tell = json_teller(_write) if as_json else text_teller(_write)
    host = RealHost(options.root)
    if options.recover:
        with contextlib.suppress(BoardUnfit), only_one(host, wait_s=0.0):
            recover_cut_off(host, tell)
        return 0
    facts = read_facts(host)
    _undo_on_signals()

    def work() -> Result:
        if options.remove:
            return remove(host, facts, purge=options.purge, dry_run=options.dry_run, tell=tell)
        order = Order(
            coral=options.coral,
            memory_mib=options.memory_mib,
            start_timeout_s=options.start_timeout,
            extras=options.extras,
        )
        return install(options.bundle, host, facts, order, dry_run=options.dry_run, tell=tell)

    result = _result_of(work, host, supervised_by=facts.supervised_by, dry_run=options.dry_run)
    write_result_line(_write, result, as_json=as_json)
    return result.code


def _result_of(work: Callable[[], Result], host: RealHost, *, supervised_by: str, dry_run: bool) -> Result:
    step: str | None = None
    try:
        if dry_run:
            return work()
        with only_one(host):
            return work()
    except StepFailed as failed:
        step, code, error = failed.step, failed.cause.code, str(failed.cause)
    except QuarlError as refused:
        code, error = refused.code, str(refused)
    except KeyboardInterrupt:
        code, error = _INTERRUPTED, "interrupted"
    return Result(
        result="failed",
        previous=running_release(host),
        step=step,
        code=code,
        error=error,
        supervised_by=supervised_by,
    )


def recover_cut_off(host: Host, tell: Tell) -> int:
    """Undo what was cut off, before the service starts on it; of an installation at work it is its own affair.

    Of systemd, which is in the middle of starting the service, nothing is asked. A first installation that got as far
    as its service has nothing to go back to, and what there is of it begins to act.
    """
    before = switch.opened(host)
    if before is not None and before.before:
        switch.put_back(host, before)
        tell("recover", "done", f"an installation was cut off: release {before.before} is current again")
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.recover or (options.remove and options.bundle is None):
        return
    if options.remove:
        raise UsageError("--remove takes no bundle", hint="sudo quarl-device install --remove")
    if options.purge:
        raise UsageError("--purge: of use with --remove alone", hint="sudo quarl-device install --remove --purge")
    if options.bundle is None:
        raise UsageError("which bundle?", hint="sudo quarl-device install BUNDLE; quarl-edge deploy makes one")


def _extras(text: str) -> tuple[str, ...]:
    names = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    for name in names:
        if not _EXTRA.fullmatch(name):
            raise argparse.ArgumentTypeError(f"expected names of extras with commas between them, found {text[:40]!r}")
    return names


def _undo_on_signals() -> None:
    """Have the first signal undo what is under way; another one would ask for no more than that."""

    def handle(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, handle)


def _write(line: str) -> None:
    try:
        sys.stdout.write(line)
        sys.stdout.flush()
    except OSError:
        # Whoever listened is gone, which is no reason to stop halfway; nor is what Python would say of it at its exit.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
