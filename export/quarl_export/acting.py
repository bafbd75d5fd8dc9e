"""What outputs do: greedy actions by the device's own heads, and when two of them are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, PolicyContract
from quarl_device.heads import BoxHead, bind_outputs

Float64 = NDArray[np.float64]

MAX_ACTION_ERROR = 0.05
"""Two box actions agree if no element differs by more than this share of its range."""
_OF_REACH = 0.1
_OF_BOUNDS = 0.01
_WIDE = 1e3
"""Bounds further apart are no actuator's: they say that any number is taken."""


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


def action_errors(contract: PolicyContract, mine: NDArray[Any], its: NDArray[Any]) -> Float64:
    """Return how far box actions are apart, ``[count, elements]``, as shares of what `mine`, in float, acts in."""
    flat = mine.reshape(len(mine), -1)
    errors: Float64 = np.abs(flat - its.reshape(flat.shape)) / used_range(contract.action, flat)
    return errors


def used_range(action: ActionSpec, acted: Float64) -> Float64:
    """Return per element the smaller of the bounds' width and what the float policy moves by; never 0.

    Bounds of ±1e6 around actions of ±3 would hide that one stands still. A policy that hardly moves an element, held
    at its bound say, is not asked for steps finer than 8 bits have: at least a tenth of its reach from 0 counts, and a
    hundredth of its bounds. One that is fixed in float is measured by its bounds, or by itself where they are wide.

    Args:
        action: of a box.
        acted: float actions ``[rows, elements]``, clipped to the bounds.

    Returns:
        float64 ``[elements]``.
    """
    width = np.asarray(action.high, np.float64) - np.asarray(action.low, np.float64)
    width = np.where(np.isfinite(width) & (width > 0), width, np.inf)
    rows = acted.reshape(len(acted), -1)
    moves, reach = np.ptp(rows, axis=0), np.abs(rows).max(axis=0)
    narrow = width <= _WIDE
    least = np.maximum(_OF_REACH * np.minimum(width, reach), np.where(narrow, _OF_BOUNDS * width, 0.0))
    fixed = np.where(narrow, width, np.where(reach > 0, reach, 1.0))
    result: Float64 = np.where(moves > 0, np.minimum(width, np.maximum(moves, least)), fixed)
    return result
