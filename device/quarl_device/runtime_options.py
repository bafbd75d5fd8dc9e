"""Options of commands that load policies: the runtime, its threads, its delegate."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from quarl_device.arguments import between
from quarl_device.delegate_spec import FORMS, LIBRARY_VARIABLE, DelegateSpec, parse_delegate
from quarl_device.errors import UsageError

if TYPE_CHECKING:
    from quarl_device.runtime import PolicyRuntime

_MAX_THREADS = 64


def add_runtime_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `chosen_runtime` reads."""
    parser.add_argument("--runtime", metavar="NAME", help="TFLite runtime: litert or tflite-runtime")
    parser.add_argument(
        "--threads", type=between(1, _MAX_THREADS), default=1, metavar="N", help="of one policy call (default: 1)"
    )
    parser.add_argument(
        "--delegate",
        type=delegate_option,
        metavar="D",
        help=f"where files compiled for it run: {FORMS}; the library also from {LIBRARY_VARIABLE} (default: cpu)",
    )
    parser.add_argument(
        "--delegate-required", action="store_true", help="an error where the delegate does not work, not the CPU"
    )


def chosen_runtime(options: argparse.Namespace) -> PolicyRuntime:
    """Return the runtime that was asked for, its delegate tried.

    Raises:
        UsageError: no such runtime, one that takes no delegates, or a delegate that is required but not named.
        MissingRuntime: no runtime works here.
        MissingDelegate: the delegate does not work, and is required.
    """
    if options.delegate_required and options.delegate is None:
        raise UsageError("--delegate-required goes with a --delegate other than cpu", hint="--delegate edgetpu")
    # Imported here, so that --help and errors of usage are quick on a small board.
    from quarl_device.runtime import find_runtime

    runtime = find_runtime(options.runtime)
    if options.delegate is None and options.threads == 1:
        return runtime
    from quarl_device.runtime.delegated import ThreadedRuntime, with_delegate

    runtime = with_delegate(runtime, options.delegate, required=options.delegate_required)
    return runtime if options.threads == 1 else ThreadedRuntime(runtime, options.threads)


def delegate_option(text: str) -> DelegateSpec | None:
    """Parse `--delegate` for argparse; raises ArgumentTypeError."""
    try:
        return parse_delegate(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from None
