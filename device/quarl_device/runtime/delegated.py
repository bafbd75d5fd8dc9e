"""A runtime with a delegate behind the same seam, used only once a child process has survived it.

A delegate's library is native code that talks to a device: it may be missing, find no device, hang on one, or die of a
TFLite that it was not built for (tensorflow #62371, pycoral #85). None of that may end an actor that could act on its
CPU, so everything is tried in a child process first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from quarl_device.delegate_spec import EDGE_TPU_OPERATOR, DelegateSpec
from quarl_device.errors import MissingDelegate, ModelFileError, UsageError
from quarl_device.inspect.delegate_probe import PROBE_DEADLINE_S, fault_of, probe_delegate
from quarl_device.inspect.probe import probe
from quarl_device.runtime.litert import InterpreterRuntime
from quarl_device.runtime.protocol import LoadedModel, PolicyRuntime
from quarl_device.runtime.wrapping import WrappedRuntime

_LOG = logging.getLogger(__name__)
_MARK = EDGE_TPU_OPERATOR.encode()


class DelegatedRuntime(WrappedRuntime):
    """LiteRT or tflite-runtime with an Edge TPU, for files compiled for it; all others stay on the CPU.

    Args:
        inner: the runtime below.
        spec: a delegate that was probed.
        deadline_s: of a child process that tries the first compiled file.
    """

    def __init__(self, inner: InterpreterRuntime, spec: DelegateSpec, *, deadline_s: float = PROBE_DEADLINE_S) -> None:
        super().__init__(inner, version=f"{inner.version} with {spec}")
        self.edge_tpu = True
        self._spec, self._deadline_s = spec, deadline_s
        self._tried = self._told = False

    def load(self, model: bytes, **wishes: Any) -> LoadedModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`."""
        if _MARK in model:
            self._try(model)
            return super().load(model, delegate=self._spec, **wishes)
        if not self._told:
            self._told = True
            _LOG.warning("%s is not used: the file is not compiled for it and runs on the CPU", self._spec)
        return super().load(model, **wishes)

    def _try(self, model: bytes) -> None:
        """Let a child run the first compiled file: the tiny model of `probe_delegate` never reaches the device."""
        if self._tried:
            return
        answer = probe(model, self.name, delegate=self._spec, deadline_s=self._deadline_s)
        fault = fault_of(answer, self._spec)
        if fault is not None:
            raise ModelFileError(f"the compiled file cannot run here: {fault.found}", hint=fault.hint)
        self._tried = True


class ThreadedRuntime(WrappedRuntime):
    """A runtime whose models may use several threads, whatever their loader asks for.

    Args:
        inner: the runtime below.
        num_threads: of one call, at least.
    """

    def __init__(self, inner: PolicyRuntime, num_threads: int) -> None:
        super().__init__(inner, version=f"{inner.version}, {num_threads} threads")
        self._num_threads = num_threads

    def load(self, model: bytes, *, num_threads: int = 1, **wishes: Any) -> LoadedModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`."""
        return super().load(model, num_threads=max(num_threads, self._num_threads), **wishes)


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
