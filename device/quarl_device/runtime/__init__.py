"""TFLite runtimes behind one protocol, found through the entry-point group `quarl_device.runtimes`."""

from __future__ import annotations

from quarl_device.runtime.discovery import RUNTIME_GROUP, find_runtime, runtime_names
from quarl_device.runtime.protocol import Infer, LoadedModel, PolicyRuntime, reaches_edge_tpu

__all__ = [
    "RUNTIME_GROUP",
    "Infer",
    "LoadedModel",
    "PolicyRuntime",
    "find_runtime",
    "reaches_edge_tpu",
    "runtime_names",
]
