"""What two files would do: actions by the contract's head, how often they agree, and what a disagreement costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quarl_device.contract import PolicyContract
from quarl_export.acting import MAX_ACTION_ERROR, action_errors, greedy_actions
from quarl_export.reports.structure import Float


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two files act on the same rows.

    Attributes:
        share: of the rows on which they agree.
        rule: what agreeing means.
        disagreements: how many rows they do not agree on.
        gap_mean: discrete: what the float file gives its own action over the other's, where they differ; box: mean
            largest difference of an action, where they differ. 0 where they never do.
        gap_max: the same, at most.
        gap_relative: discrete: `gap_mean` against the mean spread of a row; box: against the action's range.
        agrees: bool ``[rows]``.
        gap: what `gap_relative` is a share of, for a sentence that begins with it.
    """

    share: float
    rule: str
    disagreements: int
    gap_mean: float
    gap_max: float
    gap_relative: float
    agrees: tuple[bool, ...]
    gap: str


def agreement(contract: PolicyContract, reference: Mapping[str, Float], found: Mapping[str, Float]) -> Agreement:
    """Return how the files act.

    Args:
        contract: says how outputs become actions.
        reference: role to float64 ``[rows, width]`` of the float file.
        found: the same of the other file.
    """
    kind = contract.head.kind
    if contract.action.kind == "discrete":
        return _discrete(reference[kind], found[kind], kind)
    return _box(contract, greedy_actions(contract, reference), greedy_actions(contract, found))


def _discrete(reference: Float, found: Float, kind: str) -> Agreement:
    mine, its = reference.argmax(axis=1), found.argmax(axis=1)
    rows = np.arange(len(reference))
    gaps = (reference[rows, mine] - reference[rows, its])[mine != its]
    spread = float((reference.max(axis=1) - reference.min(axis=1)).mean())
    return Agreement(
        share=float((mine == its).mean()),
        rule=f"the largest of {kind} is the same",
        disagreements=int((mine != its).sum()),
        gap_mean=float(gaps.mean()) if gaps.size else 0.0,
        gap_max=float(gaps.max()) if gaps.size else 0.0,
        gap_relative=float(gaps.mean()) / spread if gaps.size and spread > 0 else 0.0,
        agrees=tuple(bool(same) for same in mine == its),
        gap="of the spread given away",
    )


def _box(contract: PolicyContract, mine: Float, its: Float) -> Agreement:
    relative = action_errors(contract, mine, its).max(axis=1)
    difference = np.abs(mine - its).reshape(len(mine), -1)
    agrees = relative <= MAX_ACTION_ERROR
    apart = difference.max(axis=1)[~agrees]
    return Agreement(
        share=float(agrees.mean()),
        rule=f"no element of the action differs by more than {MAX_ACTION_ERROR:.0%} of its range",
        disagreements=int((~agrees).sum()),
        gap_mean=float(apart.mean()) if apart.size else 0.0,
        gap_max=float(apart.max()) if apart.size else 0.0,
        gap_relative=float(relative[~agrees].mean()) if apart.size else 0.0,
        agrees=tuple(bool(same) for same in agrees),
        gap="of the action's range apart",
    )


def finite_width(low: float, high: float) -> bool:
    """Return whether an interval is one that values can be drawn from."""
    return math.isfinite(low) and math.isfinite(high) and high - low < 1e6
