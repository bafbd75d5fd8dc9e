"""A runtime with a delegate behind the same seam, used only once a child process has survived it.

A delegate's library is native code that talks to a device: it may be missing, find no device, hang on one, or die of a
TFLite that it was not built for (tensorflow #62371, pycoral #85). None of that may end an actor that could act on its
CPU, so everything is tried in a child process first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quarl_device.delegate_spec import EDGE_TPU_OPERATOR, DelegateSpec
from quarl_device.errors import MissingDelegate, ModelFileError, UsageError
from quarl_device.inspect.probe import Probe, probe
from quarl_device.runtime.litert import InterpreterModel, InterpreterRuntime
from quarl_device.runtime.protocol import LoadedModel, PolicyRuntime, reaches_edge_tpu

PROBE_DEADLINE_S = 30.0
TINY_MODEL = Path(__file__).parents[1] / "actor" / "bench_cartpole.tflite"
_LOG = logging.getLogger(__name__)
_MARK = EDGE_TPU_OPERATOR.encode()


@dataclass(frozen=True, kw_only=True)
class DelegateFault:
    """Why a delegate is not used.

    Attributes:
        found: what happened.
        hint: what mends it.
    """

    found: str
    hint: str


def fault_of(answer: Probe, spec: DelegateSpec) -> DelegateFault | None:
    """Return what a child's answer means, `None` where the delegate works."""
    if answer.loads:
        return None
    detail = answer.detail
    found = f"{spec} through {spec.library} does not work with {answer.runtime} {answer.version}: {detail}"
    if answer.loads is None:
        hint = f"quarl-device bench without --delegate says whether {answer.runtime} works at all"
    elif detail.startswith("OSError"):
        hint = "sudo apt-get install libedgetpu1-std, or --delegate edgetpu=/path/of/libedgetpu.so.1"
    elif "Failed to load delegate" in detail:
        hint = (
            "is the Coral plugged in (lsusb shows 1a6e:089a or 18d1:9302; ls /dev/apex_*), and may this user open it "
            "(groups: plugdev or apex)?"
        )
    elif "died of" in detail:
        hint = "library and runtime do not fit each other: install a libedgetpu built for this TFLite version"
    elif "gave no answer" in detail:
        hint = "unplug the Coral and plug it in again; does another process use it?"
    else:
        hint = "does another process use the Coral, and is the library built for this TFLite version?"
    return DelegateFault(found=found, hint=hint)


def probe_delegate(runtime: str, spec: DelegateSpec, *, deadline_s: float = PROBE_DEADLINE_S) -> DelegateFault | None:
    """Load a delegate in a child process, build an interpreter of a tiny model with it, run it.

    Args:
        runtime: a distribution of `inspect.probe.MODULES`.
        spec: the delegate.
        deadline_s: after so many seconds the child is killed.

    Returns:
        What is wrong, `None` where all went well.
    """
    return fault_of(probe(TINY_MODEL.read_bytes(), runtime, delegate=spec, deadline_s=deadline_s), spec)


class DelegatedRuntime:
    """LiteRT or tflite-runtime with an Edge TPU, for files compiled for it; all others stay on the CPU.

    Args:
        inner: the runtime below.
        spec: a delegate that was probed.
        deadline_s: of a child process that tries the first compiled file.

    Attributes:
        name: of the runtime below.
        version: its version, and the delegate.
        edge_tpu: compiled files may come.
    """

    edge_tpu = True

    def __init__(self, inner: InterpreterRuntime, spec: DelegateSpec, *, deadline_s: float = PROBE_DEADLINE_S) -> None:
        self.name, self.version = inner.name, f"{inner.version} with {spec}"
        self._inner, self._spec, self._deadline_s = inner, spec, deadline_s
        self._tried = self._told = False

    def load(
        self,
        model: bytes,
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        batch_size: int = 1,
        num_threads: int = 1,
    ) -> InterpreterModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`."""
        compiled = _MARK in model
        if compiled:
            self._try(model)
        elif not self._told:
            self._told = True
            _LOG.warning("%s is not used: the file is not compiled for it and runs on the CPU", self._spec)
        return self._inner.load(
            model,
            inputs=inputs,
            outputs=outputs,
            batch_size=batch_size,
            num_threads=num_threads,
            delegate=self._spec if compiled else None,
        )

    def _try(self, model: bytes) -> None:
        """Let a child run the first compiled file: the tiny model of `probe_delegate` never reaches the device."""
        if self._tried:
            return
        answer = probe(model, self.name, delegate=self._spec, deadline_s=self._deadline_s)
        fault = fault_of(answer, self._spec)
        if fault is not None:
            raise ModelFileError(f"the compiled file cannot run here: {fault.found}", hint=fault.hint)
        self._tried = True


class ThreadedRuntime:
    """A runtime whose models may use several threads, whatever their loader asks for.

    Args:
        inner: the runtime below.
        num_threads: of one call, at least.

    Attributes:
        name: of the runtime below.
        version: its version, and how many threads.
        edge_tpu: whether compiled files may come.
    """

    def __init__(self, inner: PolicyRuntime, num_threads: int) -> None:
        self.name, self.version = inner.name, f"{inner.version}, {num_threads} threads"
        self.edge_tpu = reaches_edge_tpu(inner)
        self._inner, self._num_threads = inner, num_threads

    def load(
        self,
        model: bytes,
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        batch_size: int = 1,
        num_threads: int = 1,
    ) -> LoadedModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`."""
        threads = max(num_threads, self._num_threads)
        return self._inner.load(model, inputs=inputs, outputs=outputs, batch_size=batch_size, num_threads=threads)


def with_delegate(
    runtime: PolicyRuntime,
    spec: DelegateSpec | None,
    *,
    required: bool = False,
    deadline_s: float = PROBE_DEADLINE_S,
    warn: Callable[[str], None] = _LOG.warning,
) -> PolicyRuntime:
    """Return `runtime` with a delegate, or as it is where the delegate does not work, which is said once.

    Args:
        runtime: the runtime below.
        spec: `None` for the CPU.
        required: raise instead of falling back.
        deadline_s: of the child process that tries it.
        warn: is given one line where the CPU is used instead.

    Raises:
        UsageError: this runtime takes no delegates.
        MissingDelegate: it does not work, and is required.
    """
    if spec is None:
        return runtime
    if not isinstance(runtime, InterpreterRuntime):
        raise UsageError(f"{runtime.name} takes no delegates", hint="--runtime litert or tflite-runtime")
    fault = probe_delegate(runtime.name, spec, deadline_s=deadline_s)
    if fault is None:
        return DelegatedRuntime(runtime, spec, deadline_s=deadline_s)
    if required:
        raise MissingDelegate(fault.found, hint=fault.hint)
    warn(f"{fault.found}; the CPU is used instead ({fault.hint})")
    return runtime
