"""One file laid open: everything that `inspect` says about it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quarl_device.errors import ContractError, ModelFileError
from quarl_device.files import naming, read_capped
from quarl_device.flatbuffer import Graph, read_graph
from quarl_device.inspect.edge_tpu import EdgeTpuVerdict, judge
from quarl_device.inspect.op_versions import TARGETS, Loadability, loadability
from quarl_device.inspect.probe import Probe, probe
from quarl_device.inspect.tensors import Size, describe_operator, describe_tensor, measure, scheme_of
from quarl_device.lint import check_runnable
from quarl_device.policy_file import METADATA_NAME, PolicyFile, assumptions, forced_checks, read_policy
from quarl_device.sources import pointing_at_export

MAX_INSPECT_BYTES = 512 * 1024 * 1024
_NO_CONTRACT = "no policy contract in the file: quarl-edge export writes one"


@dataclass(frozen=True, kw_only=True, eq=False)
class Inspection:
    """What a file is.

    Attributes:
        path: where it came from, "" for bytes.
        sha256: hex digest of the file.
        bytes: its size.
        graph: its graph.
        scheme: see `quarl_device.inspect.tensors.scheme_of`.
        size: parameters, multiplications and memory.
        policy: the policy in it, `None` where the file has no contract or one that does not hold.
        contract_hint: why there is no policy, "" where there is one.
        lint: why this version would not act with the file, "" where it would.
        edge_tpu: the static verdict.
        table: which runtimes load it by the table of operator versions.
        probes: which installed runtimes load it for real.
    """

    path: str
    sha256: str
    bytes: int
    graph: Graph = field(repr=False)
    scheme: str
    size: Size
    policy: PolicyFile | None
    contract_hint: str
    lint: str
    edge_tpu: EdgeTpuVerdict
    table: tuple[Loadability, ...]
    probes: tuple[Probe, ...]

    @property
    def forced(self) -> tuple[str, ...]:
        """Codes of the checks that the file was written in spite of."""
        return () if self.policy is None else forced_checks(self.policy.provenance)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What its source did not say and the export decided."""
        return () if self.policy is None else assumptions(self.policy.provenance)

    @property
    def min_runtime_version(self) -> str:
        """The TFLite release that the converter wrote into the file, "" where it wrote none."""
        content = self.graph.metadata_bytes("min_runtime_version")
        return "" if content is None else bytes(content[:16]).split(b"\0")[0].decode("ascii", "replace")

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        graph = self.graph
        return {
            "path": self.path,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "description": graph.description,
            "min_runtime_version": self.min_runtime_version,
            "scheme": self.scheme,
            **asdict(self.size),
            "contract": None if self.policy is None else self.policy.contract.to_json(),
            "contract_hint": self.contract_hint,
            "forced": list(self.forced),
            "head": None if self.policy is None else self.policy.contract.head.kind,
            "assumed": list(self.assumed),
            "golden_vectors": 0 if self.policy is None else self.policy.golden.rows,
            "provenance": None if self.policy is None else dict(self.policy.provenance),
            "inputs": [describe_tensor(graph.tensors[n]) for n in graph.inputs],
            "outputs": [describe_tensor(graph.tensors[n]) for n in graph.outputs],
            "tensors": [describe_tensor(tensor) for tensor in graph.tensors],
            "ops": [describe_operator(operator, graph) for operator in graph.operators],
            "metadata": sorted(graph.metadata),
            "lint": self.lint,
            "edge_tpu": self.edge_tpu.to_json(),
            "runtimes": self._runtimes(),
        }

    def _runtimes(self) -> list[dict[str, Any]]:
        probed: Mapping[str, Probe] = {each.runtime: each for each in self.probes}
        return [
            {
                "runtime": row.runtime,
                "table_version": row.version,
                "loads_by_table": row.loads,
                "reason": row.reason,
                "installed": probed[row.runtime].version if row.runtime in probed else "",
                "loads_here": probed[row.runtime].loads if row.runtime in probed else None,
                "detail": probed[row.runtime].detail if row.runtime in probed else "not tried",
            }
            for row in self.table
        ]


def inspect_path(path: Path, *, load: bool = True) -> Inspection:
    """Inspect a file.

    Args:
        path: a TFLite file of any origin, with or without a contract.
        load: load it in the runtimes that are installed, each in a child process.

    Raises:
        ModelFileError: missing, a directory, unreadable, over the cap, not TFLite, damaged.
    """
    with pointing_at_export(path):
        data = read_capped(path, cap_bytes=MAX_INSPECT_BYTES, error=ModelFileError, what="model file")
        with naming(path):
            return inspect_bytes(data, path=str(path), load=load)


def inspect_bytes(
    data: bytes, *, path: str = "", load: bool = True, try_runtime: Callable[[bytes, str], Probe] = probe
) -> Inspection:
    """Inspect a file's bytes. See `inspect_path`.

    Raises:
        ModelFileError: not TFLite, or damaged.
    """
    graph = read_graph(data)
    policy, hint = _policy(data, graph)
    return Inspection(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        graph=graph,
        scheme=scheme_of(graph),
        size=measure(graph),
        policy=policy,
        contract_hint=hint,
        lint=_lint(graph),
        edge_tpu=judge(graph),
        table=loadability(graph.operators, graph.tensors),
        probes=tuple(try_runtime(data, runtime) for runtime in TARGETS) if load else (),
    )


def _policy(data: bytes, graph: Graph) -> tuple[PolicyFile | None, str]:
    if METADATA_NAME not in graph.metadata:
        return None, _NO_CONTRACT
    try:
        return read_policy(data), ""
    except (ContractError, ModelFileError) as error:
        return None, f"the contract in the file does not hold: {error}"


def _lint(graph: Graph) -> str:
    try:
        check_runnable(graph)
    except ModelFileError as error:
        return error.message
    return ""
