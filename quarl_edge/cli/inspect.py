"""`quarl-edge inspect`: what a model file is, what loads it, and what an Edge TPU would make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarl_device.errors import UsageError
from quarl_device.inspect.model import inspect_path
from quarl_device.inspect.text import render
from quarl_edge.cli import source_options as said
from quarl_edge.cli.early import look_at_source
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.cli.source_options import SourceWishes, Squash
from quarl_edge.extras import require_learner


def inspect(
    model: Annotated[
        Path,
        typer.Argument(
            help="A .tflite file, with or without a policy contract; or what export reads: a Keras model, a "
            "Stable-Baselines3 zip, a run.",
            show_default=False,
        ),
    ],
    load: Annotated[bool, typer.Option(help="Load it in the installed runtimes, each in a child process.")] = True,
    edge_tpu: Annotated[
        bool, typer.Option("--edge-tpu", help="Compile it too, if edgetpu_compiler is on the PATH.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="List a float .tflite's layers as --keep-float of export takes them.")
    ] = False,
    env: said.Environment = "",
    wrappers: said.Wrappers = None,
    vecnormalize: said.VecNormalize = None,
    head: said.Head = None,
    inputs: said.Inputs = None,
    outputs: said.Outputs = None,
    signature: said.Signature = "",
    stack: said.Stack = None,
    stack_fill: said.StackFill = "",
    action_units: said.Units = None,
    squash: said.SquashOption = Squash.NONE,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Say what a model file is: tensors, operators, contract, size, which runtimes load it, and the Edge TPU verdict.

    Of a source that export reads: its layers by the names that --keep-float takes, and which of them need it.

    Examples:
      quarl-edge inspect model.tflite
      quarl-edge inspect model.tflite --format json
      quarl-edge inspect foreign.tflite --edge-tpu
      quarl-edge inspect policy.keras
      quarl-edge inspect float.tflite --layers
      quarl-edge inspect saved_model --signature act --output q_values=q1
    """
    wishes = SourceWishes.read(
        env=env, wrappers=wrappers, head=head, inputs=inputs, outputs=outputs, signature=signature, stack=stack,
        stack_fill=stack_fill, action_units=action_units, squash=squash, vecnormalize=vecnormalize,
    )  # fmt: skip
    if layers or (model.exists() and not _is_tflite(model)):
        _inspect_source(model, output, wishes)
        return
    if wishes != SourceWishes() and model.exists():
        raise UsageError(
            f"{model} is looked at as it is; what a source cannot say is asked for with its layers alone",
            hint="add --layers, or leave the options of a source out",
        )
    inspection = inspect_path(model, load=load)
    compiled = compile_where_possible(model) if edge_tpu else None
    if output is Format.JSON:
        data = inspection.to_json()
        if edge_tpu:
            data["edge_tpu"]["compiler"] = compiled[0] if compiled else None
        write_json(data)
        return
    write_line(render(inspection).rstrip("\n"))
    if edge_tpu:
        write_line(compiled[1] if compiled else "edgetpu_compiler is not on the PATH: this is the static check alone")


def _is_tflite(path: Path) -> bool:
    """Return whether a file is a flatbuffer of TFLite, or nothing that could be something else: empty, unreadable."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError:
        return True
    return not head or head[4:8] == b"TFL3"


def _inspect_source(path: Path, output: Format, wishes: SourceWishes) -> None:
    require_learner("inspect of anything but a .tflite")
    look_at_source(path, wishes)
    from quarl_export.describe import describe, describe_text
    from quarl_export.importers import import_policy

    policy = import_policy(path, options=wishes.options())
    description = {"path": str(path), **describe(policy)}
    if output is Format.JSON:
        write_json(description)
        return
    write_line(f"{path}\n{describe_text(description)}")


def compile_where_possible(model: Path) -> tuple[dict[str, object], str] | None:
    """Return what `edgetpu_compiler` says of `model`, as JSON and as text; `None` where it is not on the PATH."""
    require_learner("inspect --edge-tpu")
    from quarl_export.edgetpu import compile_for_edgetpu, find_compiler

    if find_compiler() is None:
        return None
    report = compile_for_edgetpu(model)
    if not report.compiled:
        return report.to_json(), f"edgetpu_compiler {report.version}: refused: {report.failure}"
    lines = [
        f"edgetpu_compiler {report.version}: {report.model}",
        f"  {report.on_tpu} operators on the Edge TPU, {report.on_cpu} on the CPU, {report.subgraphs} piece(s)",
        f"  {report.on_chip_bytes:,} bytes of parameters on the chip, {report.off_chip_bytes:,} sent at every call",
        *(f"  ! {row.count} × {row.op}: {row.status}" for row in report.unmapped),
    ]
    return report.to_json(), "\n".join(lines)
