"""Variables of an algorithm by stable names, as checkpoints hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import CheckpointError


def named(groups: Mapping[str, Sequence[Any]], **single: Any) -> dict[str, Any]:
    """Return variables as ``<group>/<number>``, in the order given, and the single ones by their own names."""
    return {f"{group}/{i:03d}": v for group, members in groups.items() for i, v in enumerate(members)} | single


def read(variables: Mapping[str, Any]) -> dict[str, NDArray[np.generic]]:
    """Return the values of `variables`."""
    return {name: variable.numpy() for name, variable in variables.items()}


def restore(variables: Mapping[str, Any], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Set every variable from `arrays`, or none.

    Raises:
        CheckpointError: a variable is missing, unknown, or of another shape.
    """
    if set(variables) != set(arrays):
        missing, unknown = sorted(set(variables) - set(arrays)), sorted(set(arrays) - set(variables))
        raise CheckpointError(f"checkpoint of another network: missing {missing[:3]}, unknown {unknown[:3]}")
    for name, variable in variables.items():
        if tuple(variable.shape) != arrays[name].shape:
            raise CheckpointError(
                f"checkpoint of another network: {name} has shape {arrays[name].shape}, not {tuple(variable.shape)}"
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])
