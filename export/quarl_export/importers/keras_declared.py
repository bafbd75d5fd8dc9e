"""How many parameters the acting layers of a Keras configuration declare, counted without allocating them.

Keras allocates what a configuration says. A file of a kilobyte can say a terabyte, so it is asked first. Only layers
that an output depends on are counted here, before TensorFlow is asked anything; whoever lets Keras build the model
counts the rest too (`tf_keras_models`). Archives of Keras 3 are never built by Keras and need no count: their arrays
are read as they are stored, under the caps of `hdf5`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ModelFileError
from quarl_export.importers.functional import SourceNode, flatten_model
from quarl_export.importers.keras_config import ModelConfig
from quarl_export.importers.keras_layers import lower
from quarl_export.ir.layers import Shape

MAX_ACTIVATION = 1 << 24
"""Elements of the largest tensor between two layers."""


def check_declared(model: ModelConfig, *, stored: int, what: str) -> None:
    """Refuse a model whose acting layers declare more parameters than its file holds, or tensors that no policy has.

    Statistics of a Normalization count as one number each: they can be no larger than what it reads, which has a cap.

    Args:
        model: parsed.
        stored: how many numbers its file holds, at most; of what is stored, not of what it declares.
        what: names the file in errors.

    Raises:
        ModelFileError: it does.
        UnsupportedModel, UsageError: see `lower`.
    """
    flat = flatten_model(model, lambda _place, _layer: ())
    # By layer: one that is called twice is made once.
    counts: dict[tuple[str, ...], int] = {}

    def declared(node: SourceNode, shape: Shape) -> tuple[NDArray[Any], ...]:
        if math.prod(shape) > MAX_ACTIVATION:
            raise ModelFileError(f"{what}: layer {node.name!r} reads {math.prod(shape):,} elements")
        shapes = _weight_shapes(node.class_name, node.config, shape)
        counts[node.path] = sum(math.prod(size) for size in shapes)
        # Views of one zero, whatever their size.
        return tuple(np.broadcast_to(np.float32(0.5), size) for size in shapes)

    lower(flat, weights=declared)
    count = sum(counts.values())
    if count > stored:
        raise ModelFileError(f"{what} declares {count:,} parameters, its file holds at most {stored:,}")


def _weight_shapes(class_name: str, config: Mapping[str, Any], shape: Shape) -> list[Shape]:
    channels = shape[-1]
    bias = bool(config.get("use_bias", True))
    multiplier = int(config.get("depth_multiplier") or 1)
    window = _window(config.get("kernel_size", 1))
    if class_name == "Dense":
        units = int(config["units"])
        return [(channels, units), (units,)][: 1 + bias]
    if class_name == "Conv2D":
        filters = int(config["filters"])
        return [(*window, channels, filters), (filters,)][: 1 + bias]
    if class_name == "DepthwiseConv2D":
        return [(*window, channels, multiplier), (channels * multiplier,)][: 1 + bias]
    if class_name == "SeparableConv2D":
        filters, inner = int(config["filters"]), channels * multiplier
        return [(*window, channels, multiplier), (1, 1, inner, filters), (filters,)][: 2 + bias]
    # A number for each channel; statistics along other axes are counted as one number.
    scaled = int(config.get("scale", True) is True) + int(config.get("center", True) is True)
    # A Normalization that was given its statistics keeps them in the configuration.
    adapted = 2 * int(config.get("mean") is None)
    if class_name == "Normalization":
        return [(1,)] * adapted
    values = {"BatchNormalization": scaled + 2, "LayerNormalization": scaled}.get(class_name, 0)
    return [(channels,)] * values


def _window(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)
