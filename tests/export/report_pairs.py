"""The committed pairs of one network, and their comparisons, each made once."""

from __future__ import annotations

import functools
from pathlib import Path

from quarl_export.reports import Comparison, compare_files

DATA = Path(__file__).parents[1] / "data"
PAIRS = ("cartpole", "dueling", "pixels", "arm", "qat")


def pair(name: str) -> tuple[Path, Path]:
    """Paths of the float and the int8 file."""
    int8 = DATA / "cartpole.tflite" if name == "cartpole" else DATA / "reports" / f"{name}_int8.tflite"
    return DATA / "reports" / f"{name}_float.tflite", int8


@functools.cache
def compared(name: str) -> Comparison:
    """The pair compared on its default observations."""
    return compare_files(*pair(name), rows=128)
