"""The command `quarl-edge`, one module per subcommand."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quarl_device.errors import QuarlError
from quarl_edge import __version__
from quarl_edge.cli.bench import bench
from quarl_edge.cli.compare import compare
from quarl_edge.cli.demo import demo
from quarl_edge.cli.evaluate import evaluate
from quarl_edge.cli.export import export
from quarl_edge.cli.inspect import inspect
from quarl_edge.cli.output import Format, keep_examples, write_error
from quarl_edge.cli.train import train

app = typer.Typer(
    name="quarl-edge",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, train, export, evaluate, inspect, compare):
    app.command(help=keep_examples(command))(command)
app.add_typer(bench, name="bench")


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


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; `None` for those of this process.

    Returns:
        The exit code: 0 done, 1 ran and failed, 2 wrong usage, or the error's own (see `quarl_device.errors`).
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        app(args=words, prog_name="quarl-edge")
    except QuarlError as error:
        write_error(error, _format_of(words))
        return error.code
    except KeyboardInterrupt:
        sys.stderr.write("quarl-edge: interrupted\n")
        return 130
    except SystemExit as ended:
        # Wrong usage has been explained by the parser itself.
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _format_of(words: list[str]) -> Format:
    """Find `--format` without parsing, since parsing may be what failed."""
    joined = " ".join(words)
    return Format.JSON if "--format json" in joined or "--format=json" in joined else Format.TEXT


if __name__ == "__main__":
    sys.exit(main())
