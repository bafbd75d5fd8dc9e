"""The observation and action space that an agent was trained on, read from the pickles in its `data`."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import MAX_OBSERVATION_KEYS, is_observation_key
from quarl_device.errors import ModelFileError, UnsupportedSpace
from quarl_export.importers.sb3.arrays import ARRAY_CALLS, ARRAY_NAMES, PickledDtype, as_array
from quarl_export.importers.sb3.unpickle import Global, Record, Vocabulary, empty_dict, read_pickle, shown

MAX_FIELD_BYTES = 32 << 20
SINGLE = "observation"
"""Key of an observation space that is not a dict."""

SPACE_NAMES = ("gymnasium.spaces.", "gym.spaces.", "gymnasium.utils.seeding.", "gym.utils.seeding.", "numpy.random.")
"""Spaces and the random generators inside them; kept as data, never made."""

_SPACES = Vocabulary(
    calls={**ARRAY_CALLS, "collections.OrderedDict": empty_dict},
    names=(*ARRAY_NAMES, *SPACE_NAMES, "numpy.float32", "numpy.float64", "numpy.uint8", "numpy.int64"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """A box of numbers.

    Attributes:
        shape: as the policy saw it: images are channels first.
        dtype: numpy name.
        low: lower bounds, of `shape`.
        high: upper bounds, of `shape`.
    """

    shape: tuple[int, ...]
    dtype: str
    low: NDArray[Any]
    high: NDArray[Any]

    @property
    def is_image(self) -> bool:
        """Whether Stable-Baselines3 divides it by 255 (its `is_image_space`): uint8, three axes, bounds 0 and 255."""
        plain = self.dtype == "uint8" and len(self.shape) == 3
        return bool(plain and (self.low == 0).all() and (self.high == 255).all())


@dataclass(frozen=True, kw_only=True)
class Discrete:
    """Actions 0 to n - 1."""

    n: int


def decode_field(settings: Mapping[str, Any], name: str, *, what: str) -> bytes | None:
    """Return the pickle inside a field of `data`, `None` where the field is missing or plain JSON.

    Raises:
        ModelFileError: over the cap, or not base64.
    """
    value = settings.get(name)
    if not isinstance(value, dict) or ":serialized:" not in value:
        return None
    text = value[":serialized:"]
    if not isinstance(text, str) or len(text) > MAX_FIELD_BYTES * 4 // 3:
        raise ModelFileError(f"{what}: {name} is no text under the cap of {MAX_FIELD_BYTES:,} bytes")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ModelFileError(f"{what}: {name} is not base64: {error}") from None


def observation_spaces(settings: Mapping[str, Any], *, what: str) -> Mapping[str, Box]:
    """Return the observation space by key, in the order in which the policy concatenates; `SINGLE` for one box.

    Raises:
        ModelFileError: missing or damaged.
        UnsupportedSpace: something else than a Box or a Dict of Box.
    """
    record = _space(settings, "observation_space", what)
    if not _is(record, "dict.Dict"):
        return {SINGLE: _box(record, f"{what}: the observation space")}
    # Old gym's Dict was an ordered dict itself.
    parts = _state(record, what).get("spaces") or record.items
    if not isinstance(parts, dict) or not parts:
        raise ModelFileError(f"{what}: the observation space is a Dict of nothing")
    _check_keys(parts, what)
    return {str(key): _box(part, f"{what}: observation {shown(key)}") for key, part in parts.items()}


def _check_keys(parts: Mapping[Any, Any], what: str) -> None:
    """Refuse keys that no contract carries, before any message would print them whole."""
    if len(parts) > MAX_OBSERVATION_KEYS:
        raise UnsupportedSpace(
            f"{what}: {len(parts):,} observation keys, allowed are {MAX_OBSERVATION_KEYS}",
            hint="concatenate what belongs together before training",
        )
    wrong = [key for key in parts if not is_observation_key(key)]
    if wrong:
        length = f" of {len(wrong[0]):,} characters" if isinstance(wrong[0], str) else ""
        raise UnsupportedSpace(
            f"{what}: the observation key {shown(wrong[0])}{length}; expected 1-64 ASCII characters without '/'",
            hint="train with keys of that form: gymnasium.wrappers.TransformObservation renames them",
        )


def action_space(settings: Mapping[str, Any], *, what: str) -> Box | Discrete:
    """Return the action space.

    Raises:
        ModelFileError: missing or damaged.
        UnsupportedSpace: neither Discrete from 0 nor a Box with bounds.
    """
    record = _space(settings, "action_space", what)
    if _is(record, "discrete.Discrete"):
        state = _state(record, what)
        n, start = state.get("n"), state.get("start", 0)
        if not isinstance(n, int) or not 1 <= n <= 65_536:
            raise ModelFileError(f"{what}: the action space is Discrete without a count")
        if start != 0:
            raise UnsupportedSpace(
                f"{what}: actions are counted from {shown(start)}; Stable-Baselines3 itself acts from 0",
                hint="train on an environment whose Discrete space starts at 0",
            )
        return Discrete(n=n)
    if _is(record, "box.Box"):
        box = _box(record, f"{what}: the action space")
        if not (np.isfinite(box.low).all() and np.isfinite(box.high).all()):
            raise UnsupportedSpace(f"{what}: the action space is unbounded; a policy's output needs bounds")
        return box
    raise UnsupportedSpace(
        f"{what}: the action space is {_short(record)}; expected Discrete or Box",
        hint="give each choice an action of its own, or a Box element that the environment rounds",
    )


def _space(settings: Mapping[str, Any], name: str, what: str) -> Record:
    data = decode_field(settings, name, what=what)
    if data is None:
        raise ModelFileError(f"{what}: {name} is missing", hint="save the agent again with model.save()")
    space = read_pickle(data, _SPACES, what=f"{what}: {name}")
    if not isinstance(space, Record):
        raise ModelFileError(f"{what}: {name} is a {type(space).__name__}, not a space")
    return space


def _is(space: Any, kind: str) -> bool:
    return isinstance(space, Record) and space.name in (f"gymnasium.spaces.{kind}", f"gym.spaces.{kind}")


def _short(space: Any) -> str:
    return space.name.rsplit(".", 1)[-1][:40] if isinstance(space, Record) else type(space).__name__


def _state(space: Record, what: str) -> Mapping[str, Any]:
    if not isinstance(space.state, dict):
        raise ModelFileError(f"{what}: a pickled {_short(space)} space has no content")
    return space.state


def _box(space: Any, what: str) -> Box:
    if not _is(space, "box.Box"):
        raise UnsupportedSpace(
            f"{what} is {_short(space)}; expected Box",
            hint="gymnasium.wrappers.FlattenObservation makes a Box of most spaces; train on that",
        )
    state = _state(space, what)
    low, high = (as_array(state.get(bound), what=what) for bound in ("low", "high"))
    shape = state.get("_shape", state.get("shape"))
    if not isinstance(shape, tuple) or low.shape != shape or high.shape != shape or math.prod(shape) < 1:
        raise ModelFileError(f"{what}: shape {_shape(shape)} with bounds of {low.shape[:8]} and {high.shape[:8]}")
    return Box(shape=shape, dtype=_dtype(state.get("dtype"), low), low=low, high=high)


def _shape(value: Any) -> str:
    return f"({', '.join(map(shown, value[:8]))})" if isinstance(value, tuple) else shown(value)


def _dtype(value: Any, low: NDArray[Any]) -> str:
    if isinstance(value, PickledDtype):
        return value.dtype.name
    if isinstance(value, Global):
        return value.name.removeprefix("numpy.")
    return low.dtype.name
