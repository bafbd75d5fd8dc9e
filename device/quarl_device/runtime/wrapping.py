"""A runtime around another one: all that it does not change is as it was."""

from __future__ import annotations

from typing import Any

from quarl_device.runtime.protocol import LoadedModel, PolicyRuntime, reaches_edge_tpu


class WrappedRuntime:
    """What the runtime below says of itself, and its models; a subclass changes one of them.

    Args:
        inner: the runtime below.
        version: its own, with what is different here; by default as it is.

    Attributes:
        name: of the runtime below.
        version: as given.
        edge_tpu: whether compiled files may come.
    """

    def __init__(self, inner: PolicyRuntime, *, version: str = "") -> None:
        self.name, self.version = inner.name, version or inner.version
        self.edge_tpu = reaches_edge_tpu(inner)
        self._inner = inner

    def load(self, model: bytes, **wishes: Any) -> LoadedModel:
        """Load a model. See `quarl_device.runtime.PolicyRuntime`."""
        return self._inner.load(model, **wishes)
