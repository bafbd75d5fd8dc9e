"""Which operators of a file a target runtime does not load; the table is the device's (`quarl_device.inspect`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quarl_device.flatbuffer import Graph
from quarl_device.inspect.op_versions import TARGETS, since

Runtime = Literal["litert", "tflite-2.14"]
RUNTIMES: tuple[Runtime, ...] = ("litert", "tflite-2.14")
_DISTRIBUTIONS: Mapping[Runtime, str] = {"litert": "ai-edge-litert", "tflite-2.14": "tflite-runtime"}


@dataclass(frozen=True, kw_only=True)
class UnknownOperator:
    """An operator that the target does not load.

    Attributes:
        name: of the operator, such as "FULLY_CONNECTED".
        version: that the file needs.
        needs: first TFLite release that has it, "" where no release is known.
    """

    name: str
    version: int
    needs: str

    def __str__(self) -> str:
        told = f"needs TFLite {self.needs}" if self.needs else "of no known release"
        return f"{self.name} version {self.version} ({told})"


def unknown_operators(graph: Graph, runtime: Runtime) -> tuple[UnknownOperator, ...]:
    """Return the operators of `graph` that `runtime` does not load, each version once, custom ones included."""
    _, has = TARGETS[_DISTRIBUTIONS[runtime]]
    found = []
    for name, version in sorted({(operator.name, operator.version) for operator in graph.operators}):
        first = since(name, version)
        if first is None or first[:2] > has:
            needs = "" if first is None else ".".join(str(part) for part in first)
            found.append(UnknownOperator(name=name, version=version, needs=needs))
    return tuple(found)


def is_runtime(name: str, runtime: Runtime) -> bool:
    """Whether `name`, a distribution and its version such as "ai-edge-litert 2.3.0", is `runtime`."""
    return name.split(" ", maxsplit=1)[0] == _DISTRIBUTIONS[runtime]


def runtime_title(runtime: Runtime) -> str:
    """Return how to call `runtime` in a message."""
    distribution = _DISTRIBUTIONS[runtime]
    return f"{distribution} {TARGETS[distribution][0]}"
