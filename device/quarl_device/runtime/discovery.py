"""Find the TFLite runtime that this machine has."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from quarl_device.errors import MissingRuntime, UsageError
from quarl_device.runtime.protocol import PolicyRuntime

RUNTIME_GROUP = "quarl_device.runtimes"
_PREFERRED = ("litert", "tflite-runtime")
_COMMANDS = {"litert": "pip install ai-edge-litert", "tflite-runtime": "pip install tflite-runtime 'numpy<2'"}


def runtime_names() -> list[str]:
    """Return the names of all declared runtimes, installed or not, best first."""
    return [point.name for point in _points()]


def find_runtime(name: str | None = None) -> PolicyRuntime:
    """Return the runtime called `name`, or the first that works here.

    Raises:
        UsageError: no runtime of this name is declared.
        MissingRuntime: it, or every one, is not installed or fails to import.
    """
    return _working(name)


@functools.cache
def _working(name: str | None) -> PolicyRuntime:
    # Scanning the installed distributions takes 2 ms, as long as a whole push. A failure is not kept.
    points = _points()
    if name is not None:
        chosen = [point for point in points if point.name == name]
        if not chosen:
            known = ", ".join(point.name for point in points) or "none"
            raise UsageError(f"no runtime is called {name[:80]!r}; declared are: {known}")
        points = chosen
    failures = []
    for point in points:
        try:
            return _made(point)
        # A wheel for another C library or another numpy fails in many ways, all of which mean "not this one".
        except Exception as error:
            failures.append(f"{point.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    if name is not None:
        raise MissingRuntime(
            f"the runtime {name} does not work here ({'; '.join(failures)}); "
            f"installed are: {', '.join(_installed()) or 'none'}",
            hint=_COMMANDS.get(name, ""),
        )
    raise MissingRuntime(
        f"no TFLite runtime works here ({'; '.join(failures) or 'none is declared'})",
        hint=f"{_COMMANDS['litert']}, or on 32-bit ARM: {_COMMANDS['tflite-runtime']}",
    )


def _made(point: EntryPoint) -> PolicyRuntime:
    runtime: PolicyRuntime = point.load()()
    return runtime


def _installed() -> list[str]:
    """Return the names of the runtimes that work here."""
    names = []
    for point in _points():
        with contextlib.suppress(Exception):
            _made(point)
            names.append(point.name)
    return names


def _points() -> list[EntryPoint]:
    found: Iterable[EntryPoint] = entry_points(group=RUNTIME_GROUP)
    unique = {point.name: point for point in found}
    rank = {name: position for position, name in enumerate(_PREFERRED)}
    return sorted(unique.values(), key=lambda point: (rank.get(point.name, len(rank)), point.name))
