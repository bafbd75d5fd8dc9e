"""Which TFLite release first had each operator version, and what that means for a runtime.

A file names a version for each operator; a runtime refuses the whole file when it does not have one of them. The table
holds facts of TFLite's own `runtime_version.cc` (LiteRT of 2026-08) for the operators that policies and their near
relatives use. Anything else is answered by "not in the table", never by a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quarl_device.flatbuffer import Operator, Tensor

Release = tuple[int, ...]

# By operator: the release that brought version 1, 2, ...
_SINCE: Mapping[str, str] = {
    "ABS": "1.13 2.4 2.5 2.6 2.12",
    "ADD": "1.5 1.14 2.4 2.6 2.13",
    "ARG_MAX": "1.9 1.14 2.9",
    "AVERAGE_POOL_2D": "1.5 1.14 2.3",
    "BATCH_MATMUL": "2.3 2.3 2.4 2.5",
    "CAST": "1.5 2.7 2.8 2.9 2.12 2.15 2.17",
    "CONCATENATION": "1.5 1.14 2.3 2.14",
    "CONV_2D": "1.5 1.14 1.14 2.3 2.4 2.9 2.11 2.15",
    "DEPTHWISE_CONV_2D": "1.5 1.12 1.14 2.2 2.3 2.3 2.11",
    "DEQUANTIZE": "1.13 1.14 1.15 2.2 2.7 2.18",
    "DIV": "1.6 2.3",
    "ELU": "1.14",
    "EXP": "1.7 2.12",
    "EXPAND_DIMS": "1.10",
    "FULLY_CONNECTED": "1.5 1.10 1.14 1.14 2.0 2.1 2.3 2.3 2.3 2.11 2.15 2.17 2.18 2.21",
    "GATHER": "1.6 1.14 1.15 2.4 2.5 2.13 2.15",
    "GELU": "2.9 2.9",
    "HARD_SWISH": "1.15",
    "L2_NORMALIZATION": "1.5 1.14",
    "LEAKY_RELU": "1.13 2.3",
    "LOGISTIC": "1.14 1.14 2.3",
    "LOG_SOFTMAX": "1.14 1.14",
    "LSTM": "1.7 1.10 1.14 2.3",
    "MAXIMUM": "1.14 1.14 2.3 2.3",
    "MAX_POOL_2D": "1.5 1.14 2.3",
    "MEAN": "1.6 1.14 2.4",
    "MINIMUM": "1.14 1.14 2.3 2.3",
    "MUL": "1.5 1.14 1.15 2.3 2.6 2.11 2.13",
    "NEG": "1.9",
    "PACK": "1.11 1.14 2.3 2.13",
    "PAD": "1.5 1.14 2.4 2.6",
    "PRELU": "1.8",
    "QUANTIZE": "1.14 1.15 2.7",
    "REDUCE_MAX": "1.11 1.14 2.5",
    "REDUCE_MIN": "1.11 1.14 2.5",
    "RELU": "1.5 2.1 2.5",
    "RELU6": "1.5 1.14 2.5",
    "RELU_N1_TO_1": "1.5",
    "RESHAPE": "1.5",
    "RSQRT": "1.10 2.5 2.15",
    "SHAPE": "1.10",
    "SLICE": "1.14 1.14 1.14 2.4 2.5 2.14",
    "SOFTMAX": "1.5 1.14 2.3",
    "SPLIT": "1.5 1.14 1.14 2.3",
    "SQRT": "1.10",
    "SQUARE": "1.12",
    "SQUARED_DIFFERENCE": "1.13 2.5",
    "SQUEEZE": "1.6 2.5",
    "STRIDED_SLICE": "1.6 1.14 2.1 2.2 2.5 2.6 2.14 2.14",
    "SUB": "1.6 1.14 2.3 2.4 2.4",
    "SUM": "1.10 1.15",
    "TANH": "1.14 1.14 2.3",
    "TRANSPOSE": "1.6 1.14 1.15 2.3 2.4 2.12 2.14.4",
    "TRANSPOSE_CONV": "1.9 2.2 2.3 2.13 2.15",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "1.13 1.14 2.3 2.12",
}

# What each distribution has: tflite-runtime's last release, and every version of the table in LiteRT 2.
TARGETS: Mapping[str, tuple[str, Release]] = {
    "tflite-runtime": ("2.14", (2, 14)),
    "ai-edge-litert": ("2", (2, 21)),
}


# Its kernel of the same version refuses int8 to int16 when it is prepared; that of LiteRT 2.3 does not.
_NARROW: Release = (2, 14)


@dataclass(frozen=True, kw_only=True)
class Loadability:
    """Whether a runtime has every operator version of a file, by the table.

    Attributes:
        runtime: its distribution.
        version: the release that is meant.
        loads: true, false, or `None` where the table does not know an operator.
        reason: which operator decides, "" where all are there.
    """

    runtime: str
    version: str
    loads: bool | None
    reason: str


def since(name: str, version: int) -> Release | None:
    """Return the first TFLite release with this version of an operator, `None` where the table does not say."""
    releases = _SINCE.get(name, "").split()
    if not 1 <= version <= len(releases):
        return None
    return tuple(int(part) for part in releases[version - 1].split("."))


def loadability(operators: Sequence[Operator], tensors: Sequence[Tensor] = ()) -> tuple[Loadability, ...]:
    """Return the table's answer for each runtime of `TARGETS`.

    Args:
        operators: of the file.
        tensors: of the file, whose types some kernels go by; without them only versions count.
    """
    return tuple(_judge(operators, tensors, runtime, label, has) for runtime, (label, has) in TARGETS.items())


def _judge(
    operators: Sequence[Operator], tensors: Sequence[Tensor], runtime: str, label: str, has: Release
) -> Loadability:
    unknown = ""
    for operator in operators:
        first = since(operator.name, operator.version)
        where = f"operator {operator.index}: {operator.name} version {operator.version}"
        if first is None and operator.name.upper() != operator.name:
            return Loadability(
                runtime=runtime, version=label, loads=False, reason=f"{where} is custom: it needs a delegate or plugin"
            )
        if first is None:
            unknown = unknown or f"{where} is not in the table"
        elif first[:2] > has:
            needs = ".".join(str(part) for part in first)
            return Loadability(runtime=runtime, version=label, loads=False, reason=f"{where} needs TFLite {needs}")
        elif has <= _NARROW and _widens(operator, tensors):
            reason = f"{where} from int8 to int16 has no kernel there"
            return Loadability(runtime=runtime, version=label, loads=False, reason=reason)
    return Loadability(runtime=runtime, version=label, loads=None if unknown else True, reason=unknown)


def _widens(operator: Operator, tensors: Sequence[Tensor]) -> bool:
    """Whether `operator` turns int8 into int16."""
    if operator.name != "QUANTIZE" or not tensors:
        return False
    return (tensors[operator.inputs[0]].dtype, tensors[operator.outputs[0]].dtype) == ("int8", "int16")
