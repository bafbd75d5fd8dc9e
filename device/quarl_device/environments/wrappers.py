"""Wrappers of gymnasium that a policy was trained behind, as text: `RescaleAction(min_action=-1, max_action=1)`.

Such texts travel: in a run's configuration, the learner's birth and a policy file's contract, so that a device puts its
environment, also a robot of its own, behind the very same ones. They are data and never code: a name of the list below,
and literals as its keyword arguments.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import wrappers as known

from quarl_device.contract import MAX_WRAPPER_CHARS, MAX_WRAPPERS
from quarl_device.errors import UnknownEnvironment

_Make = Callable[..., gymnasium.Env[Any, Any]]
# None that takes a function, records, draws or learns: what learns (NormalizeObservation) is the policy's own part, and
# frames are stacked by `stack`.
_ALLOWED: dict[str, _Make] = {
    wrapper.__name__: wrapper
    for wrapper in (
        known.ClipAction,
        known.ClipReward,
        known.DelayObservation,
        known.FilterObservation,
        known.FlattenObservation,
        known.GrayscaleObservation,
        known.MaxAndSkipObservation,
        known.RescaleAction,
        known.RescaleObservation,
        known.ReshapeObservation,
        known.ResizeObservation,
        known.StickyAction,
        known.TimeAwareObservation,
        known.TimeLimit,
    )
}
_MOVE_ACTIONS: tuple[_Make, ...] = (known.ClipAction, known.RescaleAction)
_INSTEAD = {
    "FrameStackObservation": "quarl-edge train --set stack=4",
    "NormalizeObservation": "leave it out: the policy's own normaliser learns it",
    "NormalizeReward": "leave it out, or quarl-edge train --set reward_scale=0.1",
}


@dataclass(frozen=True, kw_only=True)
class _Wrapper:
    make: _Make
    kwargs: dict[str, Any]


def moves_actions(texts: Sequence[str]) -> bool:
    """Return whether behind these wrappers an action is in other units, or other bounds, than the environment's own."""
    return any(_parse(text).make in _MOVE_ACTIONS for text in texts)


def check_wrappers(texts: Sequence[str]) -> None:
    """Refuse what is no list of wrappers, without making any.

    Raises:
        UnknownEnvironment: too many, no wrapper of the list, or arguments that it does not take.
    """
    if len(texts) > MAX_WRAPPERS:
        raise UnknownEnvironment(f"{len(texts)} wrappers: at most {MAX_WRAPPERS} are allowed")
    for text in texts:
        _parse(text)


def wrapped(env: gymnasium.Env[Any, Any], texts: Sequence[str]) -> gymnasium.Env[Any, Any]:
    """Return an environment behind wrappers, the first one innermost.

    Raises:
        UnknownEnvironment: see `check_wrappers`.
        Exception: whatever a wrapper raises that does not fit the environment.
    """
    check_wrappers(texts)
    for text in texts:
        wrapper = _parse(text)
        env = wrapper.make(env, **wrapper.kwargs)
    return env


def _parse(text: str) -> _Wrapper:
    shown = repr(text[:80])
    if len(text) > MAX_WRAPPER_CHARS or not text.isprintable():
        raise UnknownEnvironment(f"wrapper {shown}: expected a line of at most {MAX_WRAPPER_CHARS} characters")
    name, kwargs = _read(text, shown)
    make = _ALLOWED.get(name)
    if make is None:
        raise UnknownEnvironment(
            f"wrapper {shown} is none of {', '.join(_ALLOWED)}", hint=_INSTEAD.get(name, "wrap it in its own module")
        )
    parameters = inspect.signature(make).parameters
    try:
        inspect.signature(make).bind(None, **kwargs)
    except TypeError as error:
        takes = ", ".join(list(parameters)[1:]) or "no arguments"
        raise UnknownEnvironment(f"wrapper {shown}: {error}; it takes {takes}") from None
    return _Wrapper(make=make, kwargs=kwargs)


def _read(text: str, shown: str) -> tuple[str, dict[str, Any]]:
    """Return a name and keyword arguments; the text is parsed, never run."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            kwargs = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
            if None not in kwargs and len(kwargs) == len(node.keywords):  # no **kwargs, none twice
                return node.func.id, {str(name): value for name, value in kwargs.items()}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    raise UnknownEnvironment(
        f"wrapper {shown} is no name with keyword arguments", hint="such as RescaleAction(min_action=-1, max_action=1)"
    )
