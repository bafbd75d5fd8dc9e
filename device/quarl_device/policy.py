"""Act with a policy file: observation in, action out, on the hot path without validation or allocation of inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ObservationSpec, PolicyContract
from quarl_device.errors import ContractError, SelfTestError, UnsupportedSpace
from quarl_device.lint import check_runnable
from quarl_device.policy_file import GoldenVectors, PolicyFile
from quarl_device.runtime import Infer, LoadedModel, PolicyRuntime, find_runtime

Act = Callable[[NDArray[Any]], int]


class Policy:
    """A loaded policy. One thread at a time; build a new one to change policies and swap the reference.

    Attributes:
        contract: what goes in and out.
        sha256: digest of the file.
        runtime_name: name and version of the runtime, such as "ai-edge-litert 2.3.0".
        batch_size: how many observations `act_batch` takes.
        tensor_shape: shape of the model's input without batch.
        model: the loaded model at batch size 1.
        act: one observation as the environment gives it, to the greedy action of the environment's space.
        act_index: the same, counted from 0 without the space's `start`, as it travels on the wire.
        act_batch: [batch_size, *shape] observations to [batch_size] greedy action indices in the wire's dtype.
    """

    def __init__(
        self, *, file: PolicyFile, runtime: PolicyRuntime, model: LoadedModel, batch_model: LoadedModel
    ) -> None:
        contract = file.contract
        spec = contract.observations[0]
        self.tensor_shape = shape = file.graph.tensors[file.graph.inputs[0]].shape[1:]
        self.contract: PolicyContract = contract
        self.sha256 = file.sha256
        self.runtime_name = f"{runtime.name} {runtime.version}"
        self.batch_size = batch_model.batch_size
        self.model = model
        self.act_index: Act = _act(model.infer, shape, spec, contract.action.n, 0)
        self.act: Act = _act(model.infer, shape, spec, contract.action.n, contract.action.start)
        self.act_batch: Callable[[NDArray[Any]], NDArray[Any]] = _act_batch(
            batch_model.infer, (self.batch_size, *shape), np.dtype(contract.action.dtype)
        )

    @classmethod
    def load(
        cls,
        file: PolicyFile,
        *,
        runtime: PolicyRuntime | None = None,
        batch_size: int = 1,
        num_threads: int = 1,
        golden: GoldenVectors | None = None,
        self_test: bool = True,
    ) -> Policy:
        """Lint the file, build interpreters, run the golden vectors, and return the policy.

        Args:
            file: a policy file of any origin.
            runtime: which runtime; by default the first that works here.
            batch_size: how many observations `act_batch` takes at a time.
            num_threads: threads that one call may use.
            golden: answers to check instead of the file's own (a push header's).
            self_test: false skips the golden vectors, for a file whose answers are still to be recorded.

        Raises:
            ModelFileError: the lint or the runtime refuses the file.
            UnsupportedSpace: observations or actions that this version does not act on.
            SelfTestError: the answers differ by more than their tolerance.
            ContractError: there are no answers to check.
            MissingRuntime: no runtime is installed.
        """
        _check_supported(file.contract)
        _check_layout(file)
        check_runnable(file.graph)
        runtime = runtime or find_runtime()
        load = functools.partial(
            runtime.load,
            file.data,
            inputs=[file.contract.observations[0].tensor],
            outputs=list(file.contract.head.outputs.values()),
            num_threads=num_threads,
        )
        model = load()
        if self_test:
            run_self_test(file.contract, golden or file.golden, model)
        batch_model = model if batch_size == 1 else load(batch_size=batch_size)
        return cls(file=file, runtime=runtime, model=model, batch_model=batch_model)


def run_self_test(contract: PolicyContract, golden: GoldenVectors, model: LoadedModel) -> float:
    """Run the golden observations and return the largest difference to the recorded answers, in LSB.

    Raises:
        ContractError: there are no recorded answers, or of other shapes.
        SelfTestError: a difference over the tolerance, NaN or Inf.
    """
    if not golden.outputs:
        raise ContractError("the policy file carries no golden outputs", hint="a push brings them in its header")
    worst = 0.0
    for row in range(golden.rows):
        outputs = model.run(_golden_inputs(contract, golden, row))
        for role, name in contract.head.outputs.items():
            found, wanted = outputs[name].ravel(), golden.outputs[role][row].ravel()
            if found.shape != wanted.shape:
                raise ContractError(f"golden output {role!r} has {wanted.size} elements, the file gives {found.size}")
            difference = float(np.abs(found - wanted).max()) / golden.lsb[role]
            # A NaN compares false with everything, so ask whether it is inside, not whether it is outside.
            worst = worst if difference <= worst else difference
    # Recorded floats and steps are rounded: half a percent of a step is not a step.
    if not worst <= golden.tolerance_lsb + 0.005:
        raise SelfTestError(
            f"golden self-test failed: outputs differ by up to {worst:.2f} LSB, allowed are {golden.tolerance_lsb}",
            hint="the file is damaged, or this runtime computes otherwise than the one that recorded it",
        )
    return worst


def _golden_inputs(contract: PolicyContract, golden: GoldenVectors, row: int) -> dict[str, NDArray[Any]]:
    inputs = {}
    for spec in contract.observations:
        array = golden.observations[spec.key][row]
        inputs[spec.tensor] = array.astype(np.float32).reshape(1, *spec.shape)
    return inputs


def _check_supported(contract: PolicyContract) -> None:
    head, keys = contract.head.kind, [spec.key for spec in contract.observations]
    if contract.action.kind != "discrete" or head not in ("q_values", "logits"):
        raise UnsupportedSpace(
            f"this version acts on discrete actions with q_values or logits; the policy has a {contract.action.kind} "
            f"action and a {head} head"
        )
    if len(keys) != 1:
        raise UnsupportedSpace(f"this version acts on one observation array; the policy has the keys {', '.join(keys)}")
    spec = contract.observations[0]
    if spec.stack != 1:
        raise UnsupportedSpace(f"this version does not stack frames; observation {spec.key!r} wants {spec.stack}")
    if contract.normalizer.where == "device":
        raise UnsupportedSpace("this version normalises in the graph only; the policy wants it done on the device")


def _check_layout(file: PolicyFile) -> None:
    """Refuse tensors that the hot path does not fill and read: one float32 input, float32 [1, n] out."""
    tensors = file.graph.tensors
    [source] = (tensors[n] for n in file.graph.inputs)
    sinks = [tensors[n] for n in file.graph.outputs if tensors[n].name in file.contract.head.outputs.values()]
    if source.dtype != "float32" or any(sink.dtype != "float32" or len(sink.shape) != 2 for sink in sinks):
        found = ", ".join(f"{t.name!r} {t.dtype}{list(t.shape)}" for t in (source, *sinks))
        raise UnsupportedSpace(f"this version acts with float32 inputs and flat float32 outputs; the file has {found}")


def _act(infer: Infer, shape: tuple[int, ...], spec: ObservationSpec, n: int, start: int) -> Act:
    """Return the hot path for one observation: fill a kept buffer, run, take the largest of few in Python."""
    buffer = np.zeros((1, *shape), np.float32)
    # A view in the observation's own shape, so that assignment casts and copies without reshaping.
    row = buffer.reshape(spec.shape)

    if n == 2:

        def act_two(observation: NDArray[Any]) -> int:
            row[...] = observation
            first, second = infer(buffer).tolist()[0]
            return start + 1 if second > first else start

        return act_two

    if n == 3:

        def act_three(observation: NDArray[Any]) -> int:
            row[...] = observation
            first, second, third = infer(buffer).tolist()[0]
            if third > first:
                return start + 2 if third > second else start + 1
            return start + 1 if second > first else start

        return act_three

    def act(observation: NDArray[Any]) -> int:
        row[...] = observation
        values: list[float] = infer(buffer).tolist()[0]
        return start + values.index(max(values))

    def act_many(observation: NDArray[Any]) -> int:
        row[...] = observation
        return start + int(infer(buffer).argmax())

    return act if n <= 32 else act_many


def _act_batch(infer: Infer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    buffer = np.zeros(shape, np.float32)

    def act_batch(observations: NDArray[Any]) -> NDArray[Any]:
        buffer[...] = observations.reshape(shape)
        actions: NDArray[Any] = infer(buffer).argmax(axis=1).astype(dtype)
        return actions

    return act_batch
