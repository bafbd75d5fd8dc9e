"""Hold a runtime against the conformance suite: ``python -m quarl_device.testing.conform RUNTIME``.

RUNTIME is a declared name (litert, tflite-runtime) or MODULE:CLASS, a class that takes no arguments, installed or in
the current directory. Each check is a line; the exit code is 0 if all passed, 1 if one did not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from quarl_device.errors import MissingRuntime, QuarlError, UsageError
from quarl_device.output import write_result
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import PolicyRuntime, find_runtime
from quarl_device.testing.runtime_conformance import (
    BUILT_IN_POLICY,
    DEFAULT_TOLERANCE_LSB,
    RUNTIME_CHECKS,
    RuntimeCase,
    case_of,
)

_EXAMPLES = """\
examples:
  python -m quarl_device.testing.conform litert
  python -m quarl_device.testing.conform my_package.runtime:MyRuntime
  python -m quarl_device.testing.conform my_package.runtime:MyRuntime --model policy.tflite --format json
"""


def conformance(runtime: PolicyRuntime, case: RuntimeCase) -> dict[str, str]:
    """Run every check.

    Returns:
        Name of each check to what was wrong, "" where it passed.
    """
    found = {}
    for check in RUNTIME_CHECKS:
        try:
            check(runtime, case)
        # A runtime under test may raise anything; it is what was asked for.
        except Exception as error:
            found[check.__name__] = f"{type(error).__name__}: {error}"
        else:
            found[check.__name__] = ""
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m quarl_device.testing.conform",
        description="Hold a runtime against the conformance suite.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runtime", metavar="RUNTIME", help="a declared name, or MODULE:CLASS")
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="policy file with golden vectors (default: built in)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=DEFAULT_TOLERANCE_LSB, metavar="LSB", help="(default: %(default)s)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(words)
    try:
        runtime = named_runtime(options.runtime)
        case = case_of(read_policy_path(options.model or BUILT_IN_POLICY), tolerance_lsb=options.tolerance)
    except QuarlError as error:
        sys.stderr.write(f"conform: error: {error}\n")
        return error.code
    found = conformance(runtime, case)
    if options.format == "json":
        write_result(json.dumps({"runtime": f"{runtime.name} {runtime.version}", "checks": found}) + "\n")
    else:
        write_result(
            "".join(f"{'FAILED' if wrong else 'ok':7}{name}  {wrong}".rstrip() + "\n" for name, wrong in found.items())
        )
    return 1 if any(found.values()) else 0


def named_runtime(name: str) -> PolicyRuntime:
    """Return a declared runtime, or an instance of MODULE:CLASS.

    Raises:
        UsageError: no such module or class.
        MissingRuntime: it does not work here.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        return find_runtime(name)
    here = str(Path.cwd())
    if not sys.flags.safe_path and here not in sys.path:
        sys.path.append(here)
    try:
        made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"no runtime {name[:80]!r}: {error}", hint="MODULE:CLASS, as `import` takes it") from None
    try:
        runtime: PolicyRuntime = made()
    except Exception as error:
        raise MissingRuntime(f"{name[:80]} cannot be made: {type(error).__name__}: {error}") from error
    return runtime


if __name__ == "__main__":
    sys.exit(main())
