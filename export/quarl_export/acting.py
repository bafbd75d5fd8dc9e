"""What outputs do: greedy actions by the device's own heads, and when two of them are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.heads import BoxHead, bind_outputs

MAX_ACTION_ERROR = 0.05
"""Two box actions agree if no element differs by more than this share of its range."""
_UNBOUNDED = 1e6


def greedy_actions(contract: PolicyContract, outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the greedy actions of `outputs`, per role ``[count, ...]``: squashed, scaled and clipped as on the device.

    Returns:
        int64 ``[count]`` counted from 0, or float64 ``[count, *shape]`` of a box.
    """
    if contract.action.kind == "discrete":
        values = np.asarray(outputs[contract.head.kind])
        chosen: NDArray[Any] = values.reshape(len(values), -1).argmax(axis=1)
        return chosen
    bindings = bind_outputs(contract)
    results = tuple(np.asarray(outputs[binding.role]) for binding in bindings)
    shape = (len(results[0]), *contract.action.shape)
    head = BoxHead(contract, bindings, shape=shape)
    return np.asarray(head.greedy(results if len(results) > 1 else results[0]), np.float64).reshape(shape)


def action_errors(contract: PolicyContract, mine: NDArray[Any], its: NDArray[Any]) -> NDArray[np.float64]:
    """Return how far box actions are apart, ``[count, elements]``, as shares of their range.

    A space without ends is measured by what `mine` does in it; an actuator that is fixed has no range to be off by.
    """
    flat = mine.reshape(len(mine), -1)
    width = np.asarray(contract.action.high, np.float64) - np.asarray(contract.action.low, np.float64)
    width = np.where(np.isfinite(width) & (width < _UNBOUNDED), width, np.ptp(flat, axis=0))
    errors: NDArray[np.float64] = np.abs(flat - its.reshape(flat.shape)) / np.where(width > 0.0, width, 1.0)
    return errors
