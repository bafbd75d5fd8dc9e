"""Hard limits of actions, and the safe action: the device's own user sets them, and no policy moves them."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec
from quarl_device.errors import UsageError
from quarl_device.files import read_capped
from quarl_device.heads import float32_bounds

_MAX_FILE_BYTES = 64 * 1024
_KEYS = {"low", "high", "safe_action"}
Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a person gave, before the action space is known.

    Attributes:
        low: lower limits, one for all elements or one for each; () for none.
        high: upper limits, likewise.
        safe_action: its elements; () for none.
    """

    low: Numbers = ()
    high: Numbers = ()
    safe_action: Numbers = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Guard:
    """The same for one action space.

    Attributes:
        low: float32 [*shape] of a box; `None` where nobody gave limits: a policy's actions lie within its space.
        high: likewise.
        safe_action: as the environment takes it: an int, or float32 [*shape]; `None` for none.
    """

    low: NDArray[np.float32] | None = None
    high: NDArray[np.float32] | None = None
    safe_action: Any = None

    def limit(self, action: Any) -> tuple[Any, bool]:
        """Return a box action within the limits, changed in place, and whether it was beyond them."""
        beyond = bool((action < self.low).any() or (action > self.high).any())
        if beyond:
            np.clip(action, self.low, self.high, out=action)
        return action, beyond


def read_limits(path: Path) -> Wishes:
    """Return what a TOML or JSON file says: `low`, `high`, `safe_action`, each a number or a list.

    Raises:
        UsageError: missing, over 64 KiB, no such file, or keys and values that mean nothing.
    """
    data = read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=UsageError, what="limits file")
    try:
        text = data.decode()
        fields = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"limits file {path} is no {'JSON' if path.suffix == '.json' else 'TOML'}: {error}",
            hint="low = [-0.5]\nhigh = [0.5]\nsafe_action = [0.0]".replace("\n", "; "),
        ) from None
    if not isinstance(fields, dict) or not set(fields) <= _KEYS:
        found = sorted(map(str, fields)) if isinstance(fields, dict) else type(fields).__name__
        raise UsageError(f"limits file {path}: expected {', '.join(sorted(_KEYS))}, found {str(found)[:200]}")
    return Wishes(**{key: _numbers(value, f"{path}: {key}") for key, value in fields.items()})


def make_wishes(
    *, limits: Sequence[Sequence[float]] = (), file: Path | None = None, safe_action: Sequence[float] = ()
) -> Wishes:
    """Put together what a command line says; a word of its own goes before the file's.

    Args:
        limits: (low, high) pairs: one for all elements, or one for each.
        file: see `read_limits`.
        safe_action: elements.

    Raises:
        UsageError: see `read_limits`.
    """
    said = read_limits(file) if file is not None else Wishes()
    return Wishes(
        low=tuple(low for low, _ in limits) or said.low,
        high=tuple(high for _, high in limits) or said.high,
        safe_action=tuple(safe_action) or said.safe_action,
    )


def guard_of(wishes: Wishes, action: ActionSpec) -> Guard:
    """Return limits and safe action for a space.

    Raises:
        UsageError: they do not fit it, or each other.
    """
    if action.kind == "discrete":
        return _discrete(wishes, action)
    low, high = float32_bounds(action)
    given_low, given_high = (
        _spread(values, action, what) if values else bound
        for values, bound, what in ((wishes.low, low, "lower limits"), (wishes.high, high, "upper limits"))
    )
    if (given_low < low).any() or (given_high > high).any() or (given_low > given_high).any():
        raise UsageError(
            f"limits {_show(given_low)}..{_show(given_high)} are not within the action space "
            f"{_show(low)}..{_show(high)}",
            hint="--limit LOW HIGH, once for all elements or once for each",
        )
    safe = None
    if wishes.safe_action:
        safe = _spread(wishes.safe_action, action, "elements of the safe action")
        if (safe < given_low).any() or (safe > given_high).any():
            raise UsageError(
                f"the safe action {_show(safe)} is not within {_show(given_low)}..{_show(given_high)}",
                hint="--safe-action VALUE, once for all elements or once for each",
            )
    if not wishes.low and not wishes.high:
        return Guard(safe_action=_float32(safe))
    return Guard(low=given_low.astype(np.float32), high=given_high.astype(np.float32), safe_action=_float32(safe))


def _discrete(wishes: Wishes, action: ActionSpec) -> Guard:
    if wishes.low or wishes.high:
        raise UsageError(
            f"limits are for actions of a box; this space has {action.n} actions from {action.start}",
            hint="leave --limit out",
        )
    if not wishes.safe_action:
        return Guard()
    [*numbers] = wishes.safe_action
    last = action.start + action.n - 1
    if len(numbers) != 1 or numbers[0] != int(numbers[0]) or not action.start <= numbers[0] <= last:
        raise UsageError(f"the safe action {numbers} is none of {action.start}..{last}", hint="--safe-action NUMBER")
    return Guard(safe_action=int(numbers[0]))


def _spread(values: Numbers, action: ActionSpec, what: str) -> NDArray[np.float64]:
    size = math.prod(action.shape)
    if len(values) not in (1, size):
        raise UsageError(f"{len(values)} {what} for an action of {size}", hint=f"give 1 or {size}")
    return np.broadcast_to(np.array(values, np.float64), (size,)).reshape(action.shape)


def _float32(values: NDArray[np.float64] | None) -> NDArray[np.float32] | None:
    return None if values is None else values.astype(np.float32)


def _numbers(value: Any, what: str) -> Numbers:
    items = value if isinstance(value, list) else [value]
    if not items or any(type(item) not in (int, float) or not math.isfinite(item) for item in items):
        raise UsageError(f"{what}: expected a finite number or a list of them, found {str(value)[:80]}")
    return tuple(float(item) for item in items)


def _show(values: NDArray[Any]) -> str:
    return f"{np.ravel(values)[:4].tolist()}"
