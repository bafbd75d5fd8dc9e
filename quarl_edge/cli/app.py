"""The subcommands put together, and every way in which one can end as an exit code."""

from __future__ import annotations

import errno
import sys
from typing import Annotated, Any

import typer

from quarl_device.errors import QuarlError, UsageError
from quarl_edge import __version__
from quarl_edge.cli.bench import bench
from quarl_edge.cli.bench_calibration import calibration
from quarl_edge.cli.bench_learn import actors, learn
from quarl_edge.cli.bench_memory import memory
from quarl_edge.cli.bench_policy import act, push, schemes
from quarl_edge.cli.bench_qat import qat
from quarl_edge.cli.bench_soak import soak
from quarl_edge.cli.bench_solve import solve
from quarl_edge.cli.bench_stream import stream
from quarl_edge.cli.broker import broker
from quarl_edge.cli.compare import compare
from quarl_edge.cli.demo import demo
from quarl_edge.cli.deploy import deploy
from quarl_edge.cli.enroll import enroll, revoke
from quarl_edge.cli.evaluate import evaluate
from quarl_edge.cli.export import export
from quarl_edge.cli.inspect import inspect
from quarl_edge.cli.output import Format, keep_examples, log_for_people, write_error
from quarl_edge.cli.plot import plot
from quarl_edge.cli.runs import runs
from quarl_edge.cli.sign import sign
from quarl_edge.cli.top import top
from quarl_edge.cli.train import train

# The base of all errors of the parser that typer brings, whichever it is.
_PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="quarl-edge",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, train, export, sign, deploy, evaluate, inspect, compare, plot, top, enroll, revoke):
    app.command(help=keep_examples(command))(command)
for figure in (solve, learn, actors, push, act, schemes, calibration, qat, memory, soak, stream):
    bench.command(help=keep_examples(figure))(figure)
app.add_typer(bench, name="bench")
app.add_typer(broker, name="broker")
app.add_typer(runs, name="runs")


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"quarl-edge {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train int8 policies in TensorFlow, act with them on a Raspberry Pi, over MQTT.

    Start with: quarl-edge demo
    """


def run(words: list[str]) -> int:
    """Parse and run one command.

    Args:
        words: the command line without the program's name.

    Returns:
        The exit code.
    """
    log_for_people()
    output = _format_of(words)
    try:
        # Not standalone: the parser would write its errors itself, on several lines and never as JSON.
        ended = app(args=words, prog_name="quarl-edge", standalone_mode=False)
    except QuarlError as error:
        return _failed(error, output)
    except _PARSER_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{error}\n")
            return UsageError.code
        return _failed(_wrong_usage(error), output)
    except OSError as error:
        return _failed(_fault_of_the_system(error), output)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return ended if isinstance(ended, int) else 0


def _failed(error: QuarlError, output: Format) -> int:
    write_error(error, output)
    return error.code


def _wrong_usage(error: Any) -> QuarlError:
    """Return the parser's error as one line of ours."""
    text = " ".join(error.format_message().split()).rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "quarl-edge")
    return UsageError(text[:1].lower() + text[1:], hint=f"{command} --help")


def _fault_of_the_system(error: OSError) -> QuarlError:
    """Return what no part foresaw (a disk that is full, a directory that is gone) as one line."""
    what = error.strerror or str(error) or type(error).__name__
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        shown = str(error.filename)
        return UsageError(f"{shown if len(shown) < 80 else shown[:77] + '...'}: {what}", hint="give another path")
    return QuarlError(what if error.filename is None else f"{error.filename}: {what}")


def _format_of(words: list[str]) -> Format:
    """Find `--format` without parsing, since parsing may be what failed."""
    joined = " ".join(words)
    return Format.JSON if "--format json" in joined or "--format=json" in joined else Format.TEXT
