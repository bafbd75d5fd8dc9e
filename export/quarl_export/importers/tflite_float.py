"""A float `.tflite` whose source is gone: its operators read back into layers, through the device's strict reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import ModelFileError, UnsupportedModel
from quarl_device.files import naming, read_capped
from quarl_device.flatbuffer import Graph, read_graph
from quarl_device.policy_file import METADATA_NAME, decode_metadata
from quarl_device.runtime import find_runtime
from quarl_device.wire.limits import MAX_POLICY_BYTES
from quarl_export.file_runner import check_runs
from quarl_export.importers.assemble import assemble
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.source import Arrays, SourceNetwork
from quarl_export.importers.tflite_operators import lower_operators
from quarl_export.ir.draft import Draft
from quarl_export.ir.layers import Shape
from quarl_export.ir.policy_graph import ImportedPolicy


def read_tflite(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in a float32 or float16 `.tflite` file, compared with the file in the TFLite runtime.

    A constant scaling behind an input becomes the normaliser. A policy file of ours brings its contract along; what
    the options say is then not needed.

    Raises:
        ModelFileError: unreadable, damaged, or refused by the runtime.
        UnsupportedModel: quantized, or an operator that is not read.
        MissingRuntime: no TFLite runtime is installed.
        QuarlError: see `assemble`.
    """
    what = f"TFLite file {path.name}"
    data = read_capped(path, cap_bytes=MAX_POLICY_BYTES, error=ModelFileError, what=what)
    with naming(path):
        return import_tflite(data, options=options, name=path.name)


def import_tflite(data: bytes, *, options: ImportOptions, name: str = "", kind: str = "tflite") -> ImportedPolicy:
    """Return the policy in the bytes of a float `.tflite` file. See `read_tflite`.

    Args:
        data: the file.
        options: see `ImportOptions`.
        name: of the file, for provenance.
        kind: of the source, for provenance.
    """
    graph = read_graph(data)
    _check_float(graph)
    content = graph.metadata_bytes(METADATA_NAME)
    contract = decode_metadata(bytes(content))[0] if content is not None else None
    inputs, outputs = _tensor_names(graph) if contract else _signature_names(graph)
    draft = lower_operators(graph, inputs={name: graph.tensors[n] for name, n in inputs.items()}, outputs=outputs)
    check_runs(data, graph, what=name or "the file")
    source = SourceNetwork(
        kind=kind,
        draft=draft,
        dtypes={name: graph.tensors[index].dtype for name, index in inputs.items()},
        run=_Runner(graph, inputs, outputs),
        provenance={"path": name} if name else {},
    )
    return assemble(source, options, known=_checked(contract, draft) if contract else None)


def _check_float(graph: Graph) -> None:
    for tensor in graph.tensors:
        if tensor.dtype in ("int8", "uint8", "int16") and (tensor.quantization is not None or tensor.size):
            raise UnsupportedModel(
                f"the TFLite file is quantized: tensor {tensor.name[:80]!r} is {tensor.dtype}",
                hint="import the float model that it was made of; what was rounded away does not come back",
            )


def _tensor_names(graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    inputs, outputs = ({graph.tensors[n].name: n for n in indices} for indices in (graph.inputs, graph.outputs))
    if len(inputs) != len(graph.inputs) or len(outputs) != len(graph.outputs):
        raise ModelFileError("two inputs or outputs of the TFLite file share a name")
    return inputs, outputs


def _signature_names(graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Return names to tensors of inputs and outputs: those of the only signature, else the tensors' own, shortened."""
    import tflite  # costs 30 ms

    model = tflite.Model.GetRootAsModel(graph.data, 0)
    if model.SignatureDefsLength() == 1:
        signature = model.SignatureDefs(0)
        inputs = [signature.Inputs(n) for n in range(signature.InputsLength())]
        outputs = [signature.Outputs(n) for n in range(signature.OutputsLength())]
        named = [{_text(item.Name()): int(item.TensorIndex()) for item in items} for items in (inputs, outputs)]
        if sorted(named[0].values()) == sorted(graph.inputs) and sorted(named[1].values()) == sorted(graph.outputs):
            return named[0], named[1]
    inputs_by_name, outputs_by_name = _tensor_names(graph)
    return {_short(name): index for name, index in inputs_by_name.items()}, outputs_by_name


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _short(name: str) -> str:
    return name.removeprefix("serving_default_").split(":")[0] or name


def _checked(contract: PolicyContract, draft: Draft) -> PolicyContract:
    wanted = {spec.tensor for spec in contract.observations}
    if set(draft.inputs) != wanted or not set(contract.head.outputs.values()) <= set(draft.outputs):
        raise ModelFileError("the TFLite file's contract names tensors that are not its inputs and outputs")
    return contract


class _Runner:
    """The file in the TFLite runtime, row by row: resizing its batch could make it another model."""

    def __init__(self, graph: Graph, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        self._graph, self._inputs, self._outputs = graph, inputs, outputs

    def __call__(self, given: Arrays) -> dict[str, NDArray[np.float32]]:
        tensors = self._graph.tensors
        names = {name: tensors[index].name for name, index in self._inputs.items()}
        sinks = {name: tensors[index].name for name, index in self._outputs.items()}
        model = find_runtime().load(
            self._graph.data, inputs=list(names.values()), outputs=list(dict.fromkeys(sinks.values()))
        )
        count = len(next(iter(given.values())))
        rows: dict[str, list[NDArray[np.float32]]] = {name: [] for name in sinks}
        for row in range(count):
            feed = {names[name]: self._row(given, name, row, tensors[self._inputs[name]].shape) for name in names}
            found = model.run(feed)
            for name, tensor in sinks.items():
                rows[name].append(np.asarray(found[tensor], np.float32))
        return {name: np.concatenate(values) for name, values in rows.items()}

    def _row(self, given: Arrays, name: str, row: int, shape: Shape) -> NDArray[np.generic]:
        dtype = np.dtype(self._graph.tensors[self._inputs[name]].dtype)
        values: NDArray[np.generic] = (
            given[name][row].reshape(shape).astype(dtype) if name in given else np.zeros(shape, dtype)
        )
        return values
