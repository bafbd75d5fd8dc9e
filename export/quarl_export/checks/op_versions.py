"""Which operator versions a target runtime loads.

From TensorFlow's own table of the runtime that each version appeared in (`tools/versioning/runtime_version.cc`); only
versions that appeared after a target's release matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quarl_device.flatbuffer import Graph

Runtime = Literal["litert", "tflite-2.14"]
RUNTIMES: tuple[Runtime, ...] = ("litert", "tflite-2.14")

# Highest version that each target knows; an operator that is not named here is not used by policies.
_TFLITE_2_14: Mapping[str, int] = {
    "ADD": 5, "AVERAGE_POOL_2D": 3, "CONCATENATION": 4, "CONV_2D": 7, "DEPTHWISE_CONV_2D": 7, "DEQUANTIZE": 5,
    "ELU": 1, "FULLY_CONNECTED": 10, "GELU": 2, "LEAKY_RELU": 2, "LOGISTIC": 3, "LOG_SOFTMAX": 2, "MAXIMUM": 4,
    "MAX_POOL_2D": 3, "MEAN": 3, "MINIMUM": 4, "MUL": 7, "QUANTIZE": 3, "RELU": 3, "RELU6": 3, "RESHAPE": 1,
    "RSQRT": 2, "SOFTMAX": 3, "SQUARED_DIFFERENCE": 2, "SUB": 5, "SUM": 2, "TANH": 3, "TRANSPOSE": 6,
}  # fmt: skip
_LITERT: Mapping[str, int] = {
    **_TFLITE_2_14, "CONCATENATION": 5, "CONV_2D": 8, "DEQUANTIZE": 7, "FULLY_CONNECTED": 14, "QUANTIZE": 6, "RSQRT": 3,
    "TRANSPOSE": 7,
}  # fmt: skip
_KNOWN: Mapping[Runtime, Mapping[str, int]] = {"litert": _LITERT, "tflite-2.14": _TFLITE_2_14}
_NAMES: Mapping[Runtime, str] = {"litert": "LiteRT 2", "tflite-2.14": "tflite-runtime 2.14"}


@dataclass(frozen=True, kw_only=True)
class UnknownOperator:
    """An operator that the target does not load.

    Attributes:
        name: of the operator, such as "FULLY_CONNECTED".
        version: that the file needs.
        known: highest version that the target has, 0 for none.
    """

    name: str
    version: int
    known: int

    def __str__(self) -> str:
        limit = f"it knows up to {self.known}" if self.known else "which it does not have"
        return f"{self.name} version {self.version} ({limit})"


def unknown_operators(graph: Graph, runtime: Runtime) -> tuple[UnknownOperator, ...]:
    """Return the operators of `graph` that `runtime` does not load, each version once, custom ones included."""
    known = _KNOWN[runtime]
    used = sorted({(operator.name, operator.version) for operator in graph.operators})
    return tuple(
        UnknownOperator(name=name, version=version, known=known.get(name, 0))
        for name, version in used
        if version > known.get(name, 0)
    )


def runtime_title(runtime: Runtime) -> str:
    """Return how to call `runtime` in a message."""
    return _NAMES[runtime]
