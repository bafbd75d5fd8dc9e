"""One of the two files that are compared: its bytes, its graph, and what goes in and out by the contract."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl_device.contract import ObservationSpec, PolicyContract
from quarl_device.errors import ModelFileError
from quarl_device.files import naming, read_capped
from quarl_device.flatbuffer import Graph, read_graph
from quarl_device.inspect.tensors import scheme_of
from quarl_device.policy_file import METADATA_NAME, GoldenVectors, forced_checks, read_policy
from quarl_device.sources import pointing_at_export
from quarl_device.wire.limits import MAX_POLICY_BYTES
from quarl_export.file_runner import check_runs
from quarl_export.layer_scopes import source_layers


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """A file to compare.

    Attributes:
        path: where it came from.
        data: its bytes.
        graph: its graph.
        sha256: hex digest.
        scheme: see `quarl_device.inspect.tensors.scheme_of`.
        contract: `None` where the file has none.
        golden: its golden vectors, `None` likewise.
        observations: the contract's, else one per input tensor ("input_0", ...).
        inputs: per observation the index of its input tensor.
        forced: codes of the checks that the file was written in spite of.
        centered_q: the mean over actions was taken out of its Q values: see `quarl_export.centering`.
        source_layers: names of its source's layers, as `--keep-float` takes them; empty where it does not say.
        cut_share: of a tensor's values, how many its range leaves out on purpose (`--range percentile`), 0 for none.
    """

    path: str
    data: bytes = field(repr=False)
    graph: Graph = field(repr=False)
    sha256: str
    scheme: str
    contract: PolicyContract | None
    golden: GoldenVectors | None
    observations: tuple[ObservationSpec, ...]
    inputs: tuple[int, ...]
    forced: tuple[str, ...] = ()
    centered_q: bool = False
    source_layers: tuple[str, ...] = ()
    cut_share: float = 0.0


def read_side(path: Path) -> Side:
    """Read a file and make sure that it can be run.

    Raises:
        ModelFileError: missing, not TFLite, damaged, or the runtime cannot run it.
        ContractError: it has a contract that does not hold.
    """
    with pointing_at_export(path):
        data = read_capped(path, cap_bytes=MAX_POLICY_BYTES, error=ModelFileError, what="model file")
        with naming(path):
            return side_of(data, path=str(path))


def side_of(data: bytes, *, path: str = "") -> Side:
    """Lay a file's bytes open; raises as `read_side`."""
    graph = read_graph(data)
    check_runs(data, graph, what="the model")
    contract, golden = None, None
    forced: tuple[str, ...] = ()
    made: Mapping[str, Any] = {}
    if METADATA_NAME in graph.metadata:
        policy = read_policy(data)
        contract, golden, forced = policy.contract, policy.golden, forced_checks(policy.provenance)
        said = policy.provenance.get("export")
        made = said if isinstance(said, Mapping) else {}
    if contract is None:
        inputs = graph.inputs
        specs = tuple(_spec_of(graph, index, place) for place, index in enumerate(inputs))
    else:
        by_name = {graph.tensors[index].name: index for index in graph.inputs}
        specs = contract.observations
        inputs = tuple(by_name[spec.tensor] for spec in specs)
    return Side(
        path=path,
        data=data,
        graph=graph,
        sha256=hashlib.sha256(data).hexdigest(),
        scheme=scheme_of(graph),
        contract=contract,
        golden=golden,
        observations=specs,
        inputs=inputs,
        forced=forced,
        centered_q=made.get("center_q") is True,
        source_layers=source_layers(made),
        cut_share=_cut_share(made.get("ranges")),
    )


def _cut_share(ranges: Any) -> float:
    """Return what a rule for ranges leaves out at both ends together; provenance is what a file says, so any value."""
    percentile = ranges.get("percentile") if isinstance(ranges, Mapping) else None
    if not isinstance(percentile, (int, float)) or not 50.0 < percentile <= 100.0:
        return 0.0
    return 2.0 * (100.0 - percentile) / 100.0


def _spec_of(graph: Graph, index: int, place: int) -> ObservationSpec:
    tensor = graph.tensors[index]
    if not tensor.shape or tensor.shape[0] != 1:
        raise ModelFileError(
            f"input {tensor.name!r} has shape {list(tensor.shape)}, expected batch size 1 in front",
            hint="convert with batch size 1",
        )
    return ObservationSpec(key=f"input_{place}", shape=tensor.shape[1:], dtype="float32")
