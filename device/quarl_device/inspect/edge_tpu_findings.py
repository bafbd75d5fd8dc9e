"""What can be said about a file and the Edge TPU: codes, and one finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "hint"]

CODES: Mapping[str, str] = {
    "E01": "operator that the Edge TPU does not have",
    "E02": "operator over a limit of the Edge TPU",
    "E03": "float tensor inside the model",
    "E04": "16-bit, 4-bit or other tensor that is not 8-bit",
    "E05": "shape that is not constant",
    "E06": "batch size that is not 1",
    "E07": "weights that are not constant",
    "E08": "more than three innermost dimensions over 1",
    "E09": "no operator that the Edge TPU could run",
    "E20": "float input or output: converted on the CPU",
    "E21": "parameters over the on-chip memory",
    "E22": "per-channel dense weights, which are not documented",
    "E23": "limit that a static check cannot see",
    "E24": "batch that is free in the file",
    "E30": "small dense policy: the CPU will be faster",
    "E31": "compiled for the Edge TPU already",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that does not fit, or that is good to know.

    Attributes:
        code: a key of `CODES`.
        severity: "error": the operator stays on the CPU; "warning": it may, or it costs; "hint": good to know.
        operator: its index, `None` where the finding is not about one.
        op: its name, "" likewise.
        tensor: a tensor's name, "" likewise.
        message: what was found and what is needed.
        mend: what to do.
    """

    code: str
    severity: Severity
    message: str
    mend: str = ""
    operator: int | None = None
    op: str = ""
    tensor: str = ""
