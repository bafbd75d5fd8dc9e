"""When steps are due: an absolute grid, so that one late step delays none of those after it. No clock inside."""

from __future__ import annotations


class Grid:
    """The instants at which an environment is to get its actions' observations.

    Args:
        period_s: between two of them, > 0.
        start_s: the first one, monotonic time.

    Attributes:
        due_s: the instant of the step that is next, or under way.
        overruns: steps whose action came after their period.
        skipped: instants that passed without a step for it.
    """

    def __init__(self, period_s: float, start_s: float) -> None:
        self.period_s = period_s
        self.due_s = start_s
        self.overruns = 0
        self.skipped = 0

    def deliver(self, now_s: float) -> bool:
        """Note that the action of this step is there, and return whether it is in time.

        The next step is due at the next instant of the grid that is not over yet.
        """
        late_s = now_s - self.due_s
        if late_s <= self.period_s:
            self.due_s += self.period_s
            return True
        self.overruns += 1
        periods = int(late_s / self.period_s)
        self.skipped += periods
        self.due_s += (periods + 1) * self.period_s
        return False

    def pause(self, now_s: float) -> None:
        """Begin the grid anew, after something that is no step (a reset, standing still)."""
        self.due_s = now_s
