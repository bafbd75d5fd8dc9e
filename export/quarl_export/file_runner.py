"""Runs a file as a device does: one raw observation at a time in, outputs in their own units out.

Binding, normalising, quantizing and dequantizing are the device's own code (`quarl_device.preprocess`, `heads`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import TENSOR_TYPES, Graph, Quantization, Tensor
from quarl_device.heads import bind_outputs, real_output
from quarl_device.inspect.probe import installed_version, probe
from quarl_device.lint import check_runnable
from quarl_device.preprocess import bind_inputs, to_tensor
from quarl_device.runtime import PolicyRuntime, find_runtime
from quarl_export.graph import output_scale

Float32 = NDArray[np.float32]
RUNTIME = "ai-edge-litert"


@functools.lru_cache(maxsize=1)
def default_runtime() -> PolicyRuntime:
    """Return the first installed runtime; looking through the entry points takes longer than a whole push."""
    return find_runtime()


def run_file(
    model: bytes,
    contract: PolicyContract,
    observations: Mapping[str, NDArray[Any]],
    *,
    runtime: PolicyRuntime | None = None,
) -> dict[str, Float32]:
    """Run `model` on each observation alone.

    Args:
        model: a file of our own, whose ends have the names that `contract` gives them.
        contract: as the file has it.
        observations: per key ``[count, *shape]`` as the environment gives them, ``[count, stack, *shape]`` of stacks.
        runtime: default: the first installed.

    Returns:
        Per role, float32 ``[count, ...]``.

    Raises:
        ModelFileError: the runtime does not take the file, or there is no observation.
        ContractError: the contract does not fit the file's ends.
    """
    names = [spec.tensor for spec in contract.observations]
    roles = dict(contract.head.outputs)
    loaded = (runtime or default_runtime()).load(model, inputs=names, outputs=list(roles.values()))
    ends = ends_of(model)  # only now: the runtime has taken the bytes
    fed = {
        binding.spec.tensor: to_tensor(binding, np.asarray(observations[binding.spec.key]))
        for binding in bind_inputs(contract, ends)
    }
    outputs = bind_outputs(contract, ends)
    count = len(next(iter(fed.values())))
    if not count:
        raise ModelFileError("no observation to run the file on")
    rows: dict[str, list[Float32]] = {role: [] for role in roles}
    for index in range(count):
        results = loaded.run({name: values[index : index + 1] for name, values in fed.items()})
        for output in outputs:
            rows[output.role].append(np.array(real_output(output, results[output.tensor])[0], np.float32))
    return {role: np.stack(values) for role, values in rows.items()}


def check_runs(data: bytes, graph: Graph, *, what: str) -> None:
    """Let a file run in this process only if the lint knows it, or if a child process has run it and lived.

    Args:
        data: the file.
        graph: the same, read.
        what: names it in errors.

    Raises:
        ModelFileError: neither.
    """
    try:
        check_runnable(graph)
    except ModelFileError as refused:
        if not installed_version(RUNTIME):  # pragma: no cover - the distribution depends on it
            raise
        tried = probe(data, RUNTIME)
        if not tried.loads:
            raise ModelFileError(f"{RUNTIME} cannot run {what}: {tried.detail}") from refused


def output_step(model: bytes, name: str) -> float:
    """Return the size of a step of the output `name`, of the integer behind a float end too; 0 where there is none."""
    ends = ends_of(model)
    for index in ends.outputs:
        tensor = ends.tensors[index]
        if tensor.name == name and tensor.quantization is not None:
            return float(tensor.quantization.scales[0])
    return output_scale(model, name) or 0.0


def ends_of(model: bytes) -> Graph:
    """Return a graph that has the inputs and outputs of `model` and nothing else.

    Goldens are run in every push, and the strict reader's way through the whole file takes a millisecond.
    """
    subgraph = schema.Model.GetRootAsModel(model, 0).Subgraphs(0)
    inputs = [_tensor(subgraph, subgraph.Inputs(place)) for place in range(subgraph.InputsLength())]
    outputs = [_tensor(subgraph, subgraph.Outputs(place)) for place in range(subgraph.OutputsLength())]
    return Graph(
        data=b"",
        tensors=(*inputs, *outputs),
        operators=(),
        inputs=tuple(range(len(inputs))),
        outputs=tuple(range(len(inputs), len(inputs) + len(outputs))),
        metadata={},
        description="",
    )


def _tensor(subgraph: Any, index: int) -> Tensor:
    tensor = subgraph.Tensors(index)
    shape = tuple(int(n) for n in tensor.ShapeAsNumpy())
    quantization = tensor.Quantization()
    quantized = quantization is not None and quantization.ScaleLength() > 0
    return Tensor(
        index=int(index),
        name=tensor.Name().decode(),
        shape=shape,
        shape_signature=shape,
        dtype=TENSOR_TYPES.get(tensor.Type(), f"type-{tensor.Type()}"),
        quantization=Quantization(
            scales=quantization.ScaleAsNumpy(), zero_points=quantization.ZeroPointAsNumpy(), axis=0
        )
        if quantized
        else None,
        buffer=0,
        start=0,
        size=0,
        plain=True,
    )
