"""Act with a policy file: observation in, action out, on the hot path without validation or allocation of inputs.

All is decided at load: `preprocess` says how an observation fills the input tensors, `heads` how outputs become an
action, and `Policy` joins both around the runtime's call into closures that hold for this one contract.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import BARE_KEY, PolicyContract
from quarl_device.drawing import Draw, GaussianHead, draw_index, draw_indices
from quarl_device.errors import ContractError, SelfTestError, UnsupportedSpace
from quarl_device.fillers import Filler
from quarl_device.flatbuffer import Graph
from quarl_device.heads import (
    BoxHead,
    Decide,
    Sample,
    bind_outputs,
    check_head,
    greedy_index,
    greedy_indices,
    real_output,
    sample_index,
)
from quarl_device.hot_path import (
    Act,
    RowByRow,
    compose,
    copies,
    filled_act,
    plain_act,
    plain_batch,
    plain_index,
    plain_row,
    results_of,
)
from quarl_device.lint import check_runnable, takes_batches
from quarl_device.policy_file import GoldenVectors, PolicyFile
from quarl_device.preprocess import bind_inputs, to_tensor
from quarl_device.runtime import LoadedModel, PolicyRuntime, find_runtime, reaches_edge_tpu

Array = NDArray[Any]


class Policy:
    """A loaded policy. One thread at a time; build a new one to change policies and swap the reference.

    An observation is what the environment gives: an array, or a dict of arrays by the contract's keys. An action is
    what its space takes: an `int`, or a fresh float32 array of the space's shape.

    Nothing looks for NaN or Inf here; whoever acts in the world should, as `evaluate` and the actor do. With integer
    ends NaN counts as 0 and Inf as the end of the range (`preprocess`); with float ends the runtime decides what comes
    of them, and an int8 file may act on NaN without a sign of it.

    Attributes:
        contract: what goes in and out.
        sha256: digest of the file.
        runtime_name: name and version of the runtime, such as "ai-edge-litert 2.3.0".
        batch_size: how many observations `act_batch` takes.
        inputs: how each observation key fills its input tensor.
        tensor_shape: shape of the first input without batch.
        model: the loaded model at batch size 1; its inputs are in the order of `inputs`.
        act: one observation to the greedy action of the environment's space.
        act_index: the same, but a discrete action is counted from 0 without the space's `start`, as it travels.
        act_batch: [batch_size, *shape] observations, or a dict of such, to [batch_size] greedy action indices in the
            wire's dtype, or to [batch_size, *shape] box actions. Of stacked frames, it remembers those of each of
            the batch_size environments, apart from those that `act` remembers; see `begin_episodes`.
        stochastic: whether the head has a distribution to sample from.
    """

    def __init__(
        self,
        *,
        file: PolicyFile,
        runtime: PolicyRuntime,
        model: LoadedModel,
        batch_model: LoadedModel,
        stacked: bool = False,
    ) -> None:
        contract = file.contract
        self.contract: PolicyContract = contract
        self.sha256 = file.sha256
        self.runtime_name = f"{runtime.name} {runtime.version}"
        self.batch_size = batch_model.batch_size
        self.model = model
        self.inputs = bind_inputs(contract, file.graph)
        self.tensor_shape = self.inputs[0].shape
        self._outputs = bind_outputs(contract, file.graph)
        self._is_bare = len(self.inputs) == 1 and self.inputs[0].spec.key == BARE_KEY
        self._stacked = stacked
        self._fillers = [Filler(binding, stacked=stacked) for binding in self.inputs]
        self._batch_fillers: list[Filler] = []
        self._results = results_of(self.inputs, self._fillers, model.infer)
        self.stochastic = contract.head.kind in ("logits", "gaussian")
        self.act_index, self.act, self._sample = self._single()
        self.act_batch, self._batch_results = self._batch(batch_model)

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
        stacked: bool = False,
    ) -> Policy:
        """Lint the file, build interpreters, run the golden vectors, and return the policy.

        Args:
            file: a policy file of any origin.
            runtime: which runtime; by default the first that works here.
            batch_size: how many observations `act_batch` takes at a time. A file whose operators hold for one row
                alone (a RESHAPE to constant shape, say) is called once per row.
            num_threads: threads that one call may use.
            golden: answers to check instead of the file's own (a push header's).
            self_test: false skips the golden vectors, for a file whose answers are still to be recorded.
            stacked: whoever calls stacks the frames: where the contract has a stack, observations are whole stacks,
                [stack, *shape], of a batch [stack, batch_size, *shape], oldest frame first. Otherwise the policy
                remembers the frames that it is given one by one.

        Raises:
            ModelFileError: the lint or the runtime refuses the file.
            UnsupportedSpace: a head that cannot act in its space.
            SelfTestError: the answers differ by more than their tolerance.
            ContractError: there are no answers to check, or a tensor does not take its observation.
            MissingRuntime: no runtime is installed.
        """
        check_head(file.contract)
        runtime = runtime or find_runtime()
        check_runnable(file.graph, edge_tpu=reaches_edge_tpu(runtime))
        load = functools.partial(
            runtime.load,
            file.data,
            inputs=[spec.tensor for spec in file.contract.observations],
            outputs=[binding.tensor for binding in bind_outputs(file.contract, file.graph)],
            num_threads=num_threads,
        )
        model = load()
        if self_test:
            run_self_test(file.contract, golden or file.golden, model, file.graph)
        if batch_size == 1:
            batch_model = model
        elif takes_batches(file.graph, batch_size):
            batch_model = load(batch_size=batch_size)
        else:
            batch_model = RowByRow(model, batch_size)
        return cls(file=file, runtime=runtime, model=model, batch_model=batch_model, stacked=stacked)

    def begin_episode(self) -> None:
        """Say that the next observation is an episode's first: stacked frames of the last one are forgotten."""
        for filler in self._fillers:
            filler.begin()

    def begin_episodes(self, starts: NDArray[np.bool_] | None = None) -> None:
        """Say the same of `act_batch`'s environments: of all, or of those whose `starts` [batch_size] is true."""
        for filler in self._batch_fillers:
            filler.begin(starts)

    def sample(self, observation: Any, rng: np.random.Generator) -> Any:
        """Return an action drawn from the policy's distribution, as `act` returns the greedy one.

        Raises:
            UnsupportedSpace: the head has no distribution (q_values, action): explore in another way.
        """
        if self._sample is None:
            raise UnsupportedSpace(f"a {self.contract.head.kind} head has no distribution to sample from")
        return self._sample(self._results(observation), rng)

    def drawing(self, *, log_std: tuple[float, ...] = (), batch: bool = False) -> Draw:
        """Return what draws from the policy's distribution with noise that is given.

        Args:
            log_std: of a gaussian head, in place of the contract's constant one.
            batch: for observations as `act_batch` takes them, instead of one.

        Returns:
            A function of (observation, noise) that returns the action as `act_index` or `act_batch` do, the sample
            that it was drawn as (of a gaussian head, before squashing and scaling: float32 [B, *shape]), and the log
            probability of that sample. The noise is a fraction in [0, 1) per observation for logits, a standard
            normal number per element of a gaussian's action.

        Raises:
            UnsupportedSpace: the head has no distribution.
        """
        contract, output = self.contract, self._outputs[0]
        if not self.stochastic:
            raise UnsupportedSpace(f"a {contract.head.kind} head has no distribution to sample from")
        results, decide = self._batch_results if batch else self._results, draw_index(output)
        if contract.head.kind == "gaussian":
            shape = (self.batch_size, *contract.action.shape) if batch else contract.action.shape
            decide = GaussianHead(contract, self._outputs, shape=shape, log_std=log_std).draw
        elif batch:
            decide = draw_indices(output, self.batch_size, np.dtype(contract.action.dtype))

        def draw(observation: Any, noise: Any) -> tuple[Any, Any, Any]:
            return decide(results(observation), noise)

        return draw

    def _single(self) -> tuple[Act, Act, Sample | None]:
        """Return `act_index`, `act` and what samples."""
        contract, output = self.contract, self._outputs[0]
        if contract.action.kind == "box":
            head = BoxHead(contract, self._outputs, shape=contract.action.shape)
            act = self._joined(head.greedy)
            return act, act, head.sample if contract.head.kind == "gaussian" else None
        n, start = contract.action.n, contract.action.start
        sample = sample_index(output, start) if contract.head.kind == "logits" else None
        row = plain_row(self.inputs, self._fillers)
        if row is not None and output.flat:
            act_index, act = (
                plain_index(self.model.infer, self._fillers[0].buffer, row, n, first) for first in (0, start)
            )
            return act_index, act, sample
        return self._joined(greedy_index(output, n, 0)), self._joined(greedy_index(output, n, start)), sample

    def _joined(self, decide: Decide) -> Act:
        row = plain_row(self.inputs, self._fillers)
        if row is None and self._is_bare:
            return filled_act(self._fillers[0].fill, self._fillers[0].buffer, self.model.infer, decide)
        if row is None:
            return compose(self._results, decide)
        return plain_act(self.model.infer, self._fillers[0].buffer, row, decide)

    def _batch(self, model: LoadedModel) -> tuple[Act, Act]:
        """Return `act_batch`, and what gives the model's results for the same observations."""
        contract, rows = self.contract, model.batch_size
        decide: Decide
        if contract.action.kind == "box":
            decide = BoxHead(contract, self._outputs, shape=(rows, *contract.action.shape)).greedy
        else:
            decide = greedy_indices(self._outputs[0], rows, np.dtype(contract.action.dtype))
        if self._is_bare and self.inputs[0].spec.stack == 1 and copies(self.inputs[0]):
            shape = (rows, *self.inputs[0].shape)
            act, results = (
                plain_batch(model.infer, shape, self.inputs[0], finish) for finish in (decide, lambda results: results)
            )
            return act, results
        self._batch_fillers = [Filler(binding, batch_size=rows, stacked=self._stacked) for binding in self.inputs]
        results = results_of(self.inputs, self._batch_fillers, model.infer)
        return compose(results, decide), results


def run_self_test(
    contract: PolicyContract, golden: GoldenVectors, model: LoadedModel, graph: Graph | None = None
) -> float:
    """Run the golden observations and return the largest difference to the recorded answers, in LSB.

    Args:
        contract: of the file.
        golden: observations and answers.
        model: loaded at batch size 1.
        graph: of the file; without it all inputs and outputs are taken to be float32.

    Raises:
        ContractError: there are no recorded answers, or of other shapes.
        SelfTestError: a difference over the tolerance, NaN or Inf.
    """
    if not golden.outputs:
        raise ContractError("the policy file carries no golden outputs", hint="a push brings them in its header")
    worst = 0.0
    outputs = bind_outputs(contract, graph)
    inputs = {
        binding.spec.tensor: to_tensor(binding, golden.observations[binding.spec.key])
        for binding in bind_inputs(contract, graph)
    }
    for row in range(golden.rows):
        results = model.run({name: array[row : row + 1] for name, array in inputs.items()})
        for binding in outputs:
            role = binding.role
            found, wanted = real_output(binding, results[binding.tensor]).ravel(), golden.outputs[role][row].ravel()
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
