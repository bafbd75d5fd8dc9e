"""`quarl-edge export`: a run's policy as one verified int8 file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarl_device.errors import LearnerError
from quarl_edge.cli.interrupts import quit_at_interrupt
from quarl_edge.cli.output import Format, check_target, hint_where_none, write_json, write_table
from quarl_edge.extras import require_learner
from quarl_edge.runs import DEFAULT_ROOT, latest_policy


def export(
    model: Annotated[Path, typer.Argument(help="Where to write, such as model.tflite.", show_default=False)],
    source: Annotated[
        Path | None, typer.Option("--from", help="A run, or a policy checkpoint. Default: the latest run.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where runs are kept.")] = DEFAULT_ROOT,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Write the latest run's policy as one int8 TFLite file with its contract and golden vectors inside.

    The file is read back and checked in the TFLite runtime before the command ends well.

    Examples:
      quarl-edge export model.tflite
      quarl-edge export model.tflite --from runs/CartPole-v1-dqn-20260101T120000Z-s0
    """
    check_target(model)
    policy = latest_policy(source=source, root=runs)
    require_learner("export")
    with quit_at_interrupt():
        from quarl_export.export import export_policy

    with hint_where_none(
        f"another run's: quarl-edge export {model} --from RUN; a new one: quarl-edge demo", LearnerError
    ):
        report = export_policy(policy, model)
    if output is Format.JSON:
        write_json(
            {
                "model": str(report.model),
                "bytes": report.bytes,
                "sha256": report.sha256,
                "scheme": report.scheme,
                "env": report.env,
                "golden_vectors": report.golden_vectors,
                "max_lsb_error": report.max_lsb_error,
                "from": str(policy),
            }
        )
        return
    rows = [
        ("environment", report.env),
        ("scheme", report.scheme),
        ("size", f"{report.bytes:,} bytes"),
        (
            "golden vectors",
            f"{report.golden_vectors}, max error {report.max_lsb_error} LSB against the fake-quant network",
        ),
        ("from", str(policy)),
    ]
    next_one = f"quarl-edge evaluate {report.model}"
    write_table(str(report.model), rows, [next_one], below=[f"sha256 {report.sha256}"])
