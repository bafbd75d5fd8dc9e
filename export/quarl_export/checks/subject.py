"""What is checked: a policy, how its file was made, the file, and observations to judge it on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.flatbuffer import Graph, read_graph
from quarl_export.file_runner import output_step, run_file
from quarl_export.int8_reference import Int8Network
from quarl_export.ir import ImportedPolicy, run_reference
from quarl_export.ir.reference import normalize
from quarl_export.schemes import Ranges, SchemeOptions, quantization

Float32 = NDArray[np.float32]
Observations = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A file before it is written, and all that it is judged by.

    Attributes:
        source: the network in float, as it was imported.
        policy: the same as it was converted: with a normaliser that the source may not have.
        options: how.
        ranges: of every site; `None` for a scheme that takes none.
        model: the bytes; empty before the conversion.
        contract: as the file has it.
        observations: held out from calibration, raw, per key.
        judged_on: what the observations are, for messages.
        recorded: whether they are real ones; drawn ones say nothing of how often a range is left.
        judged_by_returns: the file is a run's own, whose returns it was kept for: what observations say of ranges and
            actions is told, but fails nobody.
        unset: sites whose ranges training has not set yet.
        visited: per observation key, the share of each dimension's bounds that calibration has visited.
        min_weight_range: kernels below were quantized as if they reached it.
    """

    source: ImportedPolicy
    policy: ImportedPolicy
    options: SchemeOptions
    ranges: Ranges | None = None
    model: bytes = field(default=b"", repr=False)
    contract: PolicyContract
    observations: Observations = field(repr=False)
    judged_on: str
    recorded: bool
    judged_by_returns: bool = False
    unset: frozenset[str] = frozenset()
    visited: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    min_weight_range: float = 1e-6

    @property
    def binding(self) -> bool:
        """Whether a check that rests on observations may fail."""
        return self.recorded and not self.judged_by_returns

    @property
    def count(self) -> int:
        """Number of observations."""
        return len(next(iter(self.observations.values())))

    @cached_property
    def graph(self) -> Graph:
        """The file, read as a device reads it."""
        return read_graph(self.model)

    @cached_property
    def inputs(self) -> dict[str, Float32]:
        """Observations behind the normaliser, per key."""
        return normalize(self.policy, self.observations)

    @cached_property
    def network(self) -> Int8Network | None:
        """What an int8 file must compute, `None` for other schemes."""
        if self.options.scheme != "int8" or self.ranges is None:
            return None
        options = dataclasses.replace(quantization(self.options), min_weight_range=self.min_weight_range)
        return Int8Network(self.policy, self.ranges, options=options)

    @cached_property
    def float_outputs(self) -> dict[str, Float32]:
        """What the float policy gives, by role."""
        return run_reference(self.source, self.observations)

    @cached_property
    def file_outputs(self) -> dict[str, Float32]:
        """What the file gives in the runtime, by role."""
        return run_file(self.model, self.contract, self.observations)

    @cached_property
    def steps(self) -> dict[str, float]:
        """Size of an output step by role, 0 for a float output."""
        return {role: output_step(self.model, tensor) for role, tensor in self.contract.head.outputs.items()}
