"""The choices and options of `quarl-edge export`, as typer reads them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quarl_edge.cli.output import Format


class Scheme(StrEnum):
    """Values of `--scheme`."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    DYNAMIC = "dynamic"
    INT8 = "int8"
    INT16X8 = "int16x8"


class Io(StrEnum):
    """Values of `--io`."""

    FLOAT32 = "float32"
    INT8 = "int8"
    UINT8 = "uint8"


class Runtime(StrEnum):
    """Values of `--runtime`."""

    LITERT = "litert"
    TFLITE_2_14 = "tflite-2.14"


class RangeKind(StrEnum):
    """Values of `--range`."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    BOUNDS = "bounds"


class HeadOutputName(StrEnum):
    """Values of `--head-output`."""

    INT8 = "int8"
    FLOAT32 = "float32"
    INT16 = "int16"


Target = Annotated[Path, typer.Argument(help="Where to write, such as model.tflite.", show_default=False)]
Source = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="A run, a policy checkpoint, a Keras model (.keras, .h5, SavedModel), a float .tflite, or a "
        "Stable-Baselines3 .zip. Default: the latest run.",
    ),
]
SchemeOption = Annotated[Scheme, typer.Option("--scheme", help="How numbers are kept.")]
PerChannel = Annotated[
    bool, typer.Option("--per-channel/--per-tensor", help="Scales of dense weights: one per unit, or one.")
]
WeightBits = Annotated[
    int | None, typer.Option(help="Of int8 weights, stored in int8; default: as trained, or 8.", min=2, max=8)
]
ActivationBits = Annotated[
    int | None, typer.Option(help="Of ReLU layers, fewer need LiteRT; default: as trained, or 8.", min=2, max=8)
]
HeadOutput = Annotated[
    HeadOutputName | None,
    typer.Option(help="Q values of an int8 file; int16 needs LiteRT; default: as trained, or int8."),
]
IoOption = Annotated[Io, typer.Option("--io", help="Inputs and outputs; int8 and uint8 are for Coral.")]
RuntimeOption = Annotated[Runtime, typer.Option("--runtime", help="What must load the file.")]
Calibrate = Annotated[
    str, typer.Option(help="Find ranges with an npz of observations, a run's experience, or by playing: env.")
]
RangeOption = Annotated[
    RangeKind | None,
    typer.Option("--range", help="Ranges from data; bounds are the space's own; default: minmax."),
]
Percentile = Annotated[float | None, typer.Option(help="Of --range percentile; default: 99.9.")]
Steps = Annotated[int | None, typer.Option(help="Of playing for observations; default: 16384.", min=2, max=100_000)]
# Start seeds of the comparison lie beyond those that calibration plays, and gymnasium takes them.
Seed = Annotated[int | None, typer.Option(help="Of playing; default: 0.", min=0, max=2_000_000_000)]
Episodes = Annotated[
    int,
    typer.Option(
        help="Greedy episodes to compare the file's returns with the float policy's; 0: none.", min=0, max=10_000
    ),
]
KeepFloat = Annotated[list[str] | None, typer.Option(help="A layer to keep in float; may be given often.")]
CenterQ = Annotated[
    bool, typer.Option("--center-q", help="Take the mean over actions out of Q values: finer steps, same actions.")
]
ReportInto = Annotated[
    Path | None, typer.Option("--report", help="Write an HTML page against float into this directory.")
]
EdgeTpu = Annotated[
    bool, typer.Option("--edge-tpu", help="Compile it for a Coral, if edgetpu_compiler is on the PATH.")
]
Force = Annotated[bool, typer.Option("--force", help="Write a file whose checks fail, and mark it.")]
Runs = Annotated[Path, typer.Option(help="Where runs are kept.")]
Output = Annotated[Format, typer.Option("--format", help="text or json.")]
