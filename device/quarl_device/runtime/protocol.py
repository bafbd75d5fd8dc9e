"""What a runtime must do. `quarl_device.testing.runtime_conformance` checks that it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

Array = NDArray[Any]
Infer = Callable[..., Any]
"""`infer(*inputs) -> output`, or `-> tuple of outputs` for several, in the order given to `load`."""


class LoadedModel(Protocol):
    """One model with its memory allocated for one batch size; not for two threads at a time."""

    batch_size: int
    infer: Infer
    """The hot path. Inputs must have the model's dtype and shape [batch_size, ...]; results are fresh arrays."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run by tensor name, for tests and golden vectors.

        Raises:
            ModelFileError: an input is missing or of another shape or dtype, or the runtime fails.
        """
        ...


@runtime_checkable
class PolicyRuntime(Protocol):
    """A TFLite runtime. Its class is constructed without arguments; it raises ImportError where it cannot work."""

    name: str
    """Distribution name, such as "ai-edge-litert"."""

    version: str

    def load(
        self,
        model: bytes,
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        batch_size: int = 1,
        num_threads: int = 1,
    ) -> LoadedModel:
        """Return a model that is ready to run. The caller has linted the bytes.

        Args:
            model: a TFLite flatbuffer.
            inputs: input tensor names, in the order of `infer`'s arguments; all of the model's.
            outputs: output tensor names, in the order of `infer`'s results; any subset of the model's.
            batch_size: first dimension of every input and output.
            num_threads: threads that one call may use.

        Raises:
            ModelFileError: the runtime refuses the model, or a name is not one of its tensors.
        """
        ...


def reaches_edge_tpu(runtime: PolicyRuntime) -> bool:
    """Return whether a runtime takes files compiled for the Edge TPU: it says so by a true attribute `edge_tpu`."""
    return getattr(runtime, "edge_tpu", False) is True
