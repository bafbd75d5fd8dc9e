"""`quarl-edge compare`: a float and a quantized file of one policy, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.extras import require_learner


def compare(
    reference: Annotated[Path, typer.Argument(metavar="FLOAT", help="The float file.", show_default=False)],
    quantized: Annotated[Path, typer.Argument(metavar="INT8", help="The quantized file.", show_default=False)],
    observations: Annotated[
        Path | None, typer.Option(help="Recorded observations: an .npz with one array per key, [rows, *shape].")
    ] = None,
    env: Annotated[str, typer.Option(help="Play this gymnasium id with the float file instead.")] = "",
    rows: Annotated[int, typer.Option(help="Observations, at most.", min=1, max=100_000)] = 512,
    seed: Annotated[int, typer.Option(help="Of what is random.", min=0, max=2**31 - 1)] = 0,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page into this directory.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Compare a float and a quantized file of one policy: action agreement, error layer by layer, saturation.

    Layers are matched by structure, so any two exports of one network do, trained quantization-aware or not. Without
    --observations or --env: the file's golden observations and random ones within the contract's bounds.

    Examples:
      quarl-edge compare float.tflite model.tflite --env CartPole-v1
      quarl-edge compare float.tflite model.tflite --observations recorded.npz --report report
    """
    require_learner("compare")
    from quarl_export.reports import compare_files, write_report
    from quarl_export.reports.text import render_text

    comparison = compare_files(reference, quantized, observations=observations, env_id=env, rows=rows, seed=seed)
    page = write_report(comparison, report) if report is not None else None
    if output is Format.JSON:
        write_json({**comparison.to_json(), "report": None if page is None else str(page)})
        return
    write_line(render_text(comparison).rstrip("\n"))
    if page is not None:
        write_line(f"\nreport: {page}")
