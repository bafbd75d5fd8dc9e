"""`--config FILE`: options of a command from a TOML file, as the one that an installed board starts with.

The keys are the names of the options of `quarl-device run`, with underscores, and each value is read by the option's
own parser: there is no second table of them. What the command line says wins. The other commands take the same file,
and of it what they share with `run`.
"""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quarl_device.errors import UsageError
from quarl_device.files import read_capped

_MAX_FILE_BYTES = 64 * 1024
_MAX_CHARS = 4096
_MAX_VALUES = 4096
_NOT_SHARED = ("format",)  # of the summary of `run`: what a status looks like is asked for by whoever reads it


def add_config_option(command: argparse.ArgumentParser, run: argparse.ArgumentParser | None = None) -> None:
    """Add `--config`, which `with_config` heeds.

    Args:
        command: that takes it.
        run: whose options are the keys; `None` where the command is that one.
    """
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="options from a TOML file (device.toml); the command line wins"
    )
    command.set_defaults(configurable=command, configured_as=run or command)


def with_config(
    parser: argparse.ArgumentParser, words: Sequence[str], options: argparse.Namespace
) -> argparse.Namespace:
    """Return the options of a command line, with those of its `--config` where it leaves them out.

    Args:
        parser: the whole command's; the file's values become its defaults.
        words: that were parsed.
        options: what came of them.

    Raises:
        UsageError: the file is missing, too big or no TOML; an unknown key; a value that the option does not take.
    """
    # `supervise` has a --config too, which is not its own but its agent's.
    path: Path | None = getattr(options, "config", None) if hasattr(options, "configurable") else None
    if path is None:
        return options
    command: argparse.ArgumentParser = options.configurable
    values = read_config(path, options.configured_as)
    if command is not options.configured_as:
        shared = _settable(command).keys() - set(_NOT_SHARED)
        values = {name: value for name, value in values.items() if name in shared}
    # argparse adds to the default of an option that may be repeated, where the command line is to have the last word.
    repeated = [name for name, action in _settable(command).items() if isinstance(action.default, list)]
    kept = {name: value for name, value in values.items() if name not in repeated or not getattr(options, name)}
    command.set_defaults(**kept)
    return parser.parse_args(words)


def read_config(path: Path, command: argparse.ArgumentParser) -> dict[str, Any]:
    """Return a file's values as the options' own parsers read them; relative paths are relative to the file.

    Args:
        path: of the file.
        command: whose options are the keys.

    Raises:
        UsageError: see `with_config`.
    """
    data = read_capped(path, cap_bytes=_MAX_FILE_BYTES, error=UsageError, what="--config file")
    try:
        said = tomllib.loads(data.decode())
    # A number of thousands of digits is a ValueError, brackets in brackets in brackets a RecursionError.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {str(error)[:200]}") from None
    try:
        return parse_values(said, command, folder=path.absolute().parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None


def parse_values(said: Mapping[str, Any], command: argparse.ArgumentParser, *, folder: Path) -> dict[str, Any]:
    """Return what the options' own parsers make of values.

    Args:
        said: by the options' names, with underscores.
        command: whose options they are.
        folder: that relative paths are relative to.

    Raises:
        UsageError: naming the key, what was expected, and the nearest name of an unknown one.
    """
    actions = _settable(command)
    values = {}
    for key, value in said.items():
        if key not in actions:
            raise _unknown(key, list(actions), command)
        parsed = _Value(key, actions[key]).read(value)
        values[key] = folder / parsed if isinstance(parsed, Path) else parsed
    return values


def _settable(command: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options that a file may set, by name; `--help`, `--config` and those that are not shown are none."""
    actions = [action for action in command._actions if action.option_strings and action.help != argparse.SUPPRESS]
    return {action.dest: action for action in actions if action.dest not in ("help", "config")}


def _unknown(key: str, names: Sequence[str], command: argparse.ArgumentParser) -> UsageError:
    shown = key[:80]
    near = difflib.get_close_matches(shown.replace("-", "_"), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"the keys are the options of {command.prog}, with underscores"
    return UsageError(f"unknown key {shown!r}", hint=hint)


class _Value:
    """Reads the value of one key.

    Args:
        key: its name.
        action: of the option.
    """

    def __init__(self, key: str, action: argparse.Action) -> None:
        self._key = key
        self._action = action

    def read(self, value: Any) -> Any:
        """Return what argparse would have made of it; raises UsageError."""
        action, nargs = self._action, self._action.nargs
        if nargs == 0:
            if not isinstance(value, bool):
                raise self._expected("true or false", value)
            return value
        if isinstance(action.default, list):  # an option that may be repeated
            return [self._several(each, nargs) for each in self._list(value, "a list of lists")]
        return self._one(value) if nargs is None else self._several(value, nargs)

    def _several(self, value: Any, nargs: int | str | None) -> list[Any]:
        values = self._list(value, "a list")
        if isinstance(nargs, int) and len(values) != nargs:
            raise self._expected(f"lists of {nargs}", value)
        return [self._one(each) for each in values]

    def _list(self, value: Any, expected: str) -> list[Any]:
        if not isinstance(value, list) or not 0 < len(value) <= _MAX_VALUES:
            raise self._expected(expected, value)
        return value

    def _one(self, value: Any) -> Any:
        """Have the option's own parser read one value, as the text that it would be on a command line."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._expected("text or a number", value)
        text = value if isinstance(value, str) else _number_text(value)
        if len(text) > _MAX_CHARS or not (text.isprintable() or text == ""):
            raise UsageError(f"{self._key}: expected text of one line and at most {_MAX_CHARS:,} characters")
        parsed = self._parsed(text)
        if isinstance(parsed, Path) and not text:
            raise self._expected("a path", value)
        if isinstance(parsed, str | Path) and not isinstance(value, str):
            raise self._expected("text in quotes", value)
        if isinstance(parsed, int | float) and isinstance(value, str):
            raise self._expected("a number without quotes", value)
        choices = self._action.choices
        if choices is not None and parsed not in choices:
            raise self._expected(f"one of {', '.join(map(str, choices))}", value)
        return parsed

    def _parsed(self, text: str) -> Any:
        parse = self._action.type
        if not callable(parse):
            return text
        try:
            return parse(text)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{self._key}: {error}") from None

    def _expected(self, expected: str, found: Any) -> UsageError:
        return UsageError(f"{self._key}: expected {expected}, found {_shown(found)}")


def _number_text(value: int | float) -> str:
    # Python writes no integers of thousands of digits.
    return "a number beyond all bounds" if isinstance(value, int) and value.bit_length() > 64 else repr(value)


def _shown(value: Any) -> str:
    """Return a few characters of a value, or its kind."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, int | float):
        return _number_text(value) if not isinstance(value, bool) else str(value).lower()
    if isinstance(value, list):
        return "a list of another form"
    return "a table" if isinstance(value, dict) else "a date or time"
