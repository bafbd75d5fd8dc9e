"""`quarl-edge inspect`: what a model file is, what loads it, and what an Edge TPU would make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarl_device.inspect.model import inspect_path
from quarl_device.inspect.text import render
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.extras import require_learner


def inspect(
    model: Annotated[
        Path, typer.Argument(help="A .tflite file, with or without a policy contract.", show_default=False)
    ],
    load: Annotated[bool, typer.Option(help="Load it in the installed runtimes, each in a child process.")] = True,
    edge_tpu: Annotated[
        bool, typer.Option("--edge-tpu", help="Compile it too, if edgetpu_compiler is on the PATH.")
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Say what a model file is: tensors, operators, contract, size, which runtimes load it, and the Edge TPU verdict.

    Examples:
      quarl-edge inspect model.tflite
      quarl-edge inspect model.tflite --format json
      quarl-edge inspect foreign.tflite --edge-tpu
    """
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
