"""What is told of a deployment while it goes on: the same form for what happens here and on the board."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["begins", "goes on", "done", "unchanged", "planned", "undone", "warning", "failed"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        step: short name of the step it belongs to.
        state: how that step stands.
        said: one printable line.
        mend: what mends it, "" where nothing is wrong.
        on_board: the installer on the board said it.
    """

    step: str
    state: State
    said: str
    mend: str = ""
    on_board: bool = False


Tell = Callable[[Event], None]
