"""What became of the pushes that were to be compiled for the Edge TPU; for results, which import nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class EdgeTpuCounters:
    """What became of the pushes that were due.

    Attributes:
        compiled: compiled files that hold.
        failures: pushes that came to none.
        overtaken: pushes that a newer one replaced before the compiler was free.
        published: compiled pushes that went out.
        last_failure: why the last of them failed, "" where none did.
    """

    compiled: int = 0
    failures: int = 0
    overtaken: int = 0
    published: int = 0
    last_failure: str = ""
