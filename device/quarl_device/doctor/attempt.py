"""What cannot be looked at is a finding too: no check ends the others, whatever is missing or broken on a board."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from quarl_device.doctor.finding import Finding, of_error, problem
from quarl_device.errors import QuarlError, UsageError

T = TypeVar("T")
_REINSTALL = "pip install --force-reinstall quarl-edge-device"
_LOOK = "may this user look there (ask as the one whom the agent runs as), and is the disk well? dmesg | tail"


def could_not_look(check: str, error: Exception) -> Finding:
    """Say of any exception what it was, in one line."""
    if isinstance(error, QuarlError):
        return of_error(check, error)
    said = " ".join(str(error).split())[:200]
    mend = _REINSTALL if isinstance(error, ImportError) else _LOOK
    return problem(check, f"could not look: {type(error).__name__}{': ' * bool(said)}{said}", mend)


def attempt(check: str, read: Callable[[], T], otherwise: T) -> tuple[T, list[Finding]]:
    """Read something that several checks need.

    Returns:
        What was read, or `otherwise` and the finding that says why.

    Raises:
        UsageError: the words of the command are wrong, not the board.
    """
    try:
        return read(), []
    except UsageError:
        raise
    # Anything else, from a wheel that does not import to a dying disk, is what the doctor is asked for.
    except Exception as error:
        return otherwise, [could_not_look(check, error)]


def looked(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what `look` finds, and where it breaks off one finding that says so.

    Raises:
        UsageError: see `attempt`.
    """
    try:
        yield from look()
    except UsageError:
        raise
    except Exception as error:
        yield could_not_look(check, error)
