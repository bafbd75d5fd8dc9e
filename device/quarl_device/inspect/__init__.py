"""What a TFLite file is, without TensorFlow: tensors, operators, contract, size, who loads it, Edge TPU verdict."""

from __future__ import annotations

from quarl_device.inspect.model import MAX_INSPECT_BYTES, Inspection, inspect_bytes, inspect_path
from quarl_device.inspect.text import render

__all__ = ["MAX_INSPECT_BYTES", "Inspection", "inspect_bytes", "inspect_path", "render"]
