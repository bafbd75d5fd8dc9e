"""The seam between the installer and the board: files, and commands that are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["file", "directory", "link"]


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended.

    Attributes:
        code: its exit code; 128 + N where a signal N ended it, 124 where its time was over, 127 where it is not there.
        said: the end of what it wrote, both outputs together.
    """

    code: int
    said: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What lies at a path.

    Attributes:
        kind: file, directory or symbolic link.
        mode: permission bits.
        owner: user's name; its number where it has no name.
    """

    kind: Kind
    mode: int
    owner: str


class Host(Protocol):
    """A board. Paths are absolute, as the board sees them; every method raises InstallFailed where the board refuses.

    Attributes:
        own_system: whether this is the system that runs here: owners are set, users and services can be made.
    """

    own_system: bool

    def place(self, path: str) -> str:
        """Return where a path lies for commands that are run."""

    def entry(self, path: str) -> Entry | None:
        """Return what lies at a path, not following a link; `None` for nothing."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; `None` where there is no file, or it may not be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory, none where it is missing."""

    def write(self, path: str, data: bytes, *, mode: int, owner: str = "") -> None:
        """Write a file whole or not at all, and its directories; `owner` "" leaves it to who runs this."""

    def make_directory(self, path: str, *, mode: int = 0o755, owner: str = "") -> None:
        """Make a directory, and those above it; one that is there gets mode and owner."""

    def link_target(self, path: str) -> str | None:
        """Return what a symbolic link says; `None` where there is none."""

    def link(self, path: str, target: str) -> None:
        """Point a symbolic link at a target, in one rename."""

    def move(self, path: str, to: str) -> None:
        """Rename; what lies at `to` must not be a directory with something in it."""

    def remove(self, path: str) -> None:
        """Remove a file, a link or a whole directory; nothing there is fine."""

    def sync(self) -> None:
        """Have all that was written survive a power cut."""

    def now_s(self) -> float:
        """Return a clock that never goes back, in seconds."""

    def pause(self, duration_s: float) -> None:
        """Wait."""

    def has_user(self, name: str) -> bool:
        """Return whether the system has a user of this name."""

    def run(
        self,
        words: Sequence[str],
        *,
        timeout_s: float,
        user: str = "",
        hear: Callable[[str], None] | None = None,
    ) -> Done:
        """Run a command to its end; it ends with this process, and after `timeout_s`.

        Args:
            words: program and arguments.
            timeout_s: in seconds.
            user: that runs it, "" for this one.
            hear: is given each line that it writes.
        """
