"""Ids of environments: what may be made here, and what to say of an id that may not.

An id is ``name``, or ``module:name`` as gymnasium writes it. In its place a class may stand, ``package.module:Class``,
which is then registered under its own name: a robot has one environment, and no need of ids and versions. Importing a
module runs it, so only a person's own command line may name one. What travels by wire, or lies in a policy file or a
run, is the name alone.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from quarl_device.environments.families import Family, family_of_id
from quarl_device.errors import MissingExtra, UnknownEnvironment

MAX_ENV_ID = 128


def names_module(env_id: str) -> bool:
    """Return whether an id says which module to import: ``module:name``."""
    return ":" in env_id


def bare_name(env_id: str) -> str:
    """Return an id as it is registered, without the module that registers it."""
    return env_id.partition(":")[2] if names_module(env_id) else env_id


def check_registered(env_id: str, *, allow_module: bool = False) -> None:
    """Refuse an id that this process cannot make.

    Args:
        env_id: from the user, the wire or a policy file.
        allow_module: true only for an id that this machine's own user gave: a prefix "module:" imports that module,
            which is installed, or lies in the current directory.

    Raises:
        UnknownEnvironment: not registered, with the nearest ids; or a module prefix that is not allowed.
        MissingExtra: it is one of a family whose package is not installed.
    """
    find_spec(env_id, allow_module=allow_module)


def find_spec(env_id: str, *, allow_module: bool) -> GymnasiumSpec:
    """Return gymnasium's registration of an id. See `check_registered`."""
    shown, name, module = repr(env_id[:MAX_ENV_ID]), bare_name(env_id), None
    if names_module(env_id):
        if not allow_module:
            raise UnknownEnvironment(
                f"environment id {shown} names a module to import; only this device's own --env may do that",
                hint="start with --env on the device",
            )
        module = _import_own(env_id.partition(":")[0], shown)
    elif (family := family_of_id(name)) is not None:
        _register(family, shown)
    found = gymnasium.registry.get(name) or _of_class(name, module)
    if found is None:
        raise _unknown(name, shown, module)
    return found


def _of_class(name: str, module: ModuleType | None) -> GymnasiumSpec | None:
    """Register an environment's class that a person names; not one with an id alike, which says more than the class."""
    made = getattr(module, name, None)
    if module is None or not (inspect.isclass(made) and issubclass(made, gymnasium.Env)) or _nearest(name):
        return None
    gymnasium.register(name, entry_point=f"{module.__name__}:{name}")
    return gymnasium.registry[name]


def _unknown(name: str, shown: str, module: ModuleType | None) -> UnknownEnvironment:
    prefix = f"{module.__name__}:" if module is not None else ""
    near = [f"{prefix}{found}" for found in _nearest(name)]
    suggestion = f"did you mean {' or '.join(near)}?" if near else ""
    if module is None:
        # What is near may be no more than that: an id from a file or by wire has lost its module.
        own = f"one that a module registers is named with it: MODULE:{name[:MAX_ENV_ID] or 'ID'}"
        return UnknownEnvironment(
            f"no environment {shown} is registered", hint=f"{suggestion} {own}" if suggestion else own
        )
    code = f"gymnasium.register('{name[:MAX_ENV_ID]}-v0', entry_point='{prefix}{name[:MAX_ENV_ID]}')"
    if inspect.isclass(getattr(module, name, None)):
        return UnknownEnvironment(
            f"{shown} names a class that is no gymnasium.Env, or has an id alike",
            hint=suggestion or f"in {module.__name__}: {code}; then: {prefix}{name[:MAX_ENV_ID]}-v0",
        )
    return UnknownEnvironment(
        f"{module.__name__} is imported, but registers no environment {shown}",
        hint=suggestion or f"call gymnasium.register('{name[:MAX_ENV_ID]}', entry_point=...) where it is imported",
    )


def _import_own(module: str, shown: str) -> ModuleType:
    _find_in_current_directory()
    try:
        return _imported(module)
    # The module is anybody's code and may raise anything; a script without a main guard may even leave.
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
            hint = "as `import` takes it: no path, no .py; installed, or in the current directory"
        raise UnknownEnvironment(
            f"the module of environment {shown} cannot be imported: {type(error).__name__}: {first_line(error)}",
            hint=hint,
        ) from error


def _imported(module: str) -> ModuleType:
    """Import quietly: what a module says as it is imported is not part of a command's output."""
    with quiet(), redirect_stdout(sys.stderr):
        return importlib.import_module(module)


def _find_in_current_directory() -> None:
    """Let the modules be found that lie where the command is typed, after all that is installed."""
    here = str(Path.cwd())
    if not sys.flags.safe_path and here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _register(family: Family, shown: str) -> None:
    """Import the package that registers a family; that package is named in this house, not by who gave the id."""
    if missing := family.missing():
        raise MissingExtra(
            f"environment {shown} needs the Python module {missing!r}, which is not installed", hint=family.command
        )
    try:
        _imported(family.registrar)
    except Exception as error:
        raise MissingExtra(
            f"environment {shown} needs {family.registrar}, which cannot be imported: "
            f"{type(error).__name__}: {first_line(error)}",
            hint=family.command,
        ) from error


def _nearest(name: str) -> list[str]:
    if len(name) > MAX_ENV_ID:
        return []
    names = list(gymnasium.registry)
    lower = {known.lower(): known for known in names}
    versions = [known for known in names if known.lower().rsplit("-v", 1)[0] == name.lower().rsplit("-v", 1)[0]]
    if versions:
        return [versions[-1]]
    return [lower[known] for known in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence gymnasium's advice (old versions, bounds): an id that was asked for is made without comment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first_line(error: BaseException) -> str:
    """Return an exception's first line, or its class's name, for use in one of our messages."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
