"""When the steps of a fixed rate are due: an absolute grid, so that one late step delays none of those after it.

A loop that sleeps a period after its work drifts by the work's time and by every late wake-up. Here instant k is
``start + k / hz`` whatever happened before, in whole nanoseconds, so that no rounding adds up either. No clock inside.
"""

from __future__ import annotations

MAX_HZ = 10_000
NS = 1_000_000_000


class Grid:
    """The instants at which steps are due.

    Args:
        hz: of them per second, > 0.
        start_ns: the first one, by any clock that goes evenly.

    Attributes:
        number: of the step that is next, or under way, from 0.
        due_ns: when that is due.
        overruns: steps that were not over when the next one was due.
        skipped: instants that passed meanwhile without a step for them: commands that are late come too late in a row
            otherwise.
    """

    def __init__(self, hz: float, start_ns: int) -> None:
        self._hz = hz
        self.overruns = self.skipped = 0
        self.pause(start_ns)

    def deliver(self, now_ns: int) -> bool:
        """Note that the work of this step is done, and return whether that was in time.

        The next step is due at the next instant of the grid that is not over yet.
        """
        following = self.number + 1
        if now_ns <= self._instant_ns(following):
            self._go_to(following)
            return True
        first = self._first_from(now_ns)
        self.overruns += 1
        self.skipped += first - following
        self._go_to(first)
        return False

    def leave_out(self, now_ns: int) -> None:
        """Go on with the first step that is still to come: what passed meanwhile counts nowhere."""
        self._go_to(max(self.number, self._first_from(now_ns)))

    def pause(self, now_ns: int) -> None:
        """Begin the grid anew, after something that is no step (a reset, standing still)."""
        self._start_ns = now_ns
        self._go_to(0)

    def _go_to(self, number: int) -> None:
        self.number, self.due_ns = number, self._instant_ns(number)

    def _instant_ns(self, number: int) -> int:
        return self._start_ns + round(number * NS / self._hz)

    def _first_from(self, now_ns: int) -> int:
        # A float's last digit and the instants' own rounding may put it an instant off, either way.
        first = max(0, int((now_ns - self._start_ns) * self._hz // NS) - 1)
        while self._instant_ns(first) < now_ns:
            first += 1
        return first
