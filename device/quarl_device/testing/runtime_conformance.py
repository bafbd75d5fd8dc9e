"""What every `PolicyRuntime` must do, as plain functions that raise AssertionError.

A runtime of one's own is held against it by one command (`quarl_device.testing.conform`)::

    python -m quarl_device.testing.conform my_package.runtime:MyRuntime

or by tests::

    @pytest.mark.parametrize("check", RUNTIME_CHECKS, ids=lambda check: check.__name__)
    def test_conforms(check):
        check(MyRuntime(), built_in_case())
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_device.policy_file import PolicyFile, read_policy_path
from quarl_device.runtime.protocol import LoadedModel, PolicyRuntime

DEFAULT_TOLERANCE_LSB = 3.0
BUILT_IN_POLICY = Path(__file__).parents[1] / "actor" / "bench_cartpole.tflite"
_DEADLINE_S = 30.0


@dataclass(frozen=True, kw_only=True, eq=False)
class RuntimeCase:
    """A model with known answers.

    Attributes:
        model: a TFLite file with one float32 input and one float32 output.
        source: name of its input tensor.
        sink: name of its output tensor.
        observations: float32 [G, *shape], at least two different rows.
        answers: float32 [G, n].
        tolerance: largest allowed difference, in output units.
    """

    model: bytes
    source: str
    sink: str
    observations: NDArray[np.float32]
    answers: NDArray[np.float32]
    tolerance: float

    def load(self, runtime: PolicyRuntime, batch_size: int = 1) -> LoadedModel:
        """Load the model."""
        return runtime.load(self.model, inputs=[self.source], outputs=[self.sink], batch_size=batch_size)


def case_of(file: PolicyFile, *, tolerance_lsb: float = DEFAULT_TOLERANCE_LSB) -> RuntimeCase:
    """Return a policy file's golden vectors as a case.

    Args:
        file: with one float32 observation key and one float32 output.
        tolerance_lsb: largest allowed difference, in steps of the output: kernels of int8 round differently.
    """
    [spec] = file.contract.observations
    [(role, sink)] = file.contract.head.outputs.items()
    return RuntimeCase(
        model=file.data,
        source=spec.tensor,
        sink=sink,
        observations=file.golden.observations[spec.key],
        answers=file.golden.outputs[role],
        tolerance=file.golden.lsb[role] * (tolerance_lsb + 0.01),
    )


def built_in_case() -> RuntimeCase:
    """Return the case of the int8 policy for CartPole-v1 that comes with the package."""
    return case_of(read_policy_path(BUILT_IN_POLICY))


RuntimeCheck = Callable[[PolicyRuntime, RuntimeCase], None]


def check_names_itself(runtime: PolicyRuntime, case: RuntimeCase) -> None:
    """It has the protocol's attributes, and a name and version to report."""
    del case
    _require(isinstance(runtime, PolicyRuntime), "it has not all attributes of PolicyRuntime")
    _require(bool(runtime.name) and bool(runtime.version), "its name or version is empty")


def check_answers(runtime: PolicyRuntime, case: RuntimeCase) -> None:
    """It gives the known answers, through `infer` and through `run`."""
    model = case.load(runtime)
    for observation, answer in zip(case.observations, case.answers, strict=True):
        _close(model.infer(observation[None]), answer[None], case)
        _close(model.run({case.source: observation[None]})[case.sink], answer[None], case)


def check_batches(runtime: PolicyRuntime, case: RuntimeCase) -> None:
    """A batch gives the answers of its rows, in order."""
    model = case.load(runtime, len(case.observations))
    _require(model.batch_size == len(case.observations), f"batch_size is {model.batch_size}")
    _close(model.infer(case.observations), case.answers, case)


def check_results_are_fresh(runtime: PolicyRuntime, case: RuntimeCase) -> None:
    """A result stays as it is when the next call runs, and the input is left alone."""
    model = case.load(runtime)
    first_input = case.observations[:1].copy()
    first = model.infer(first_input)
    kept = np.array(first)
    model.infer(case.observations[1:2])
    _require(np.array_equal(first, kept), "an earlier result changed")
    _require(np.array_equal(first_input, case.observations[:1]), "the input changed")


def check_repeats(runtime: PolicyRuntime, case: RuntimeCase) -> None:
    """The same input gives the same bits, in one model and in two."""
    one, two = case.load(runtime), case.load(runtime)
    results = [model.infer(case.observations[:1]).tobytes() for model in (one, two, one)]
    _require(len(set(results)) == 1, "the same input gave different results")


def check_refuses(runtime: PolicyRuntime, case: RuntimeCase) -> None:
    """What is no model, a tensor that the model lacks, and a wrong array are refused with a ModelFileError."""
    for data in (b"", b"not a model", b"\0" * 64):
        load = functools.partial(runtime.load, data, inputs=[case.source], outputs=[case.sink])
        _refuses(load, f"loading {data[:16]!r}")
    _refuses(lambda: runtime.load(case.model, inputs=["no such"], outputs=[case.sink]), "an unknown input")
    _refuses(lambda: runtime.load(case.model, inputs=[case.source], outputs=["no such"]), "an unknown output")
    _refuses(lambda: runtime.load(case.model, inputs=[case.source], outputs=[case.sink], batch_size=0), "batch size 0")
    model = case.load(runtime)
    _refuses(lambda: model.run({}), "a missing input")
    _refuses(lambda: model.run({case.source: case.observations[:2]}), "a batch of 2 for 1")
    _refuses(lambda: model.run({case.source: case.observations[:1].astype(np.float64)}), "a float64 input")


def check_threads(runtime: PolicyRuntime, case: RuntimeCase) -> None:
    """Two models run in two threads at once."""
    wrong: list[str] = []

    def work(row: int) -> None:
        model = case.load(runtime)
        for _ in range(200):
            if np.abs(model.infer(case.observations[row : row + 1]) - case.answers[row]).max() > case.tolerance:
                wrong.append(f"row {row}")
                return

    threads = [threading.Thread(target=work, args=(row,), daemon=True) for row in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_DEADLINE_S)
    _require(not any(thread.is_alive() for thread in threads), "a thread did not end in time")
    _require(not wrong, f"wrong answers in threads: {wrong}")


RUNTIME_CHECKS: tuple[RuntimeCheck, ...] = (
    check_names_itself,
    check_answers,
    check_batches,
    check_results_are_fresh,
    check_repeats,
    check_refuses,
    check_threads,
)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _close(found: Any, wanted: NDArray[np.float32], case: RuntimeCase) -> None:
    _require(isinstance(found, np.ndarray) and found.dtype == np.float32, f"a result is no float32 array: {found!r}")
    _require(found.shape == wanted.shape, f"a result has shape {found.shape}, expected {wanted.shape}")
    worst = float(np.abs(found - wanted).max())
    _require(worst <= case.tolerance, f"a result differs by {worst}, allowed are {case.tolerance}")


def _refuses(call: Callable[[], Any], what: str) -> None:
    try:
        call()
    except ModelFileError:
        return
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}, expected ModelFileError") from error
    raise AssertionError(f"{what} was accepted")
