"""Holds back pushes whose int8 ranges do not fit the network yet."""

from __future__ import annotations

import logging

from quarl_edge.replay.experience import Experience
from quarl_export.networks import Convolution
from quarl_export.range_health import RangeHealth, range_health
from quarl_export.snapshot import PolicySnapshot

_LOG = logging.getLogger(__name__)
_OBSERVATIONS = 64
# Convolutions in numpy take milliseconds for each.
_IMAGES = 8
MAX_HELD_BACK = 4


class PushGate:
    """Judges a snapshot before it goes out, on observations from many episodes, as its ranges come from.

    Before anything was learned there is nothing to judge, and never more than `MAX_HELD_BACK` pushes in a row are held
    back: they carry the exploration too, and an old policy in the field is worse than an imprecise one.

    Args:
        experience: gives the observations.
        convolutions: of the network.

    Attributes:
        health: of the last snapshot that was judged, `None` before the first.
        held_back: pushes that did not go out.
        bounds: the ranges of the last snapshot that was judged, by site and end, empty before the first.
    """

    def __init__(self, experience: Experience, convolutions: tuple[Convolution, ...] = ()) -> None:
        self._experience = experience
        self._convolutions = convolutions
        self._rows = _IMAGES if convolutions else _OBSERVATIONS
        self._in_a_row = 0
        self.health: RangeHealth | None = None
        self.held_back = 0
        self.bounds: dict[str, float] = {}

    def passes(self, snapshot: PolicySnapshot, *, updates: int) -> bool:
        """Say whether `snapshot` may go out.

        Args:
            snapshot: what would be pushed.
            updates: gradient steps behind it.
        """
        health = self.judge(snapshot, updates=updates)
        if health is None or health.healthy:
            self._in_a_row = 0
            return True
        if self._in_a_row >= MAX_HELD_BACK:
            _LOG.warning("a policy goes out although %s", health.faults[0])
            self._in_a_row = 0
            return True
        if not self.held_back:
            _LOG.warning("a policy was held back: %s; more of these are counted, not logged", health.faults[0])
        self._in_a_row += 1
        self.held_back += 1
        return False

    def judge(self, snapshot: PolicySnapshot, *, updates: int) -> RangeHealth | None:
        """Measure `snapshot` without holding it back (lockstep, whose turns cannot be left out)."""
        if updates and len(self._experience):
            seen = self._experience.spread_observations(self._rows)
            self.health = range_health(snapshot, seen, convolutions=self._convolutions)
            self.bounds = _bounds(snapshot)
        return self.health


def _bounds(snapshot: PolicySnapshot) -> dict[str, float]:
    """Return both ends of every range: of the input, of each body layer's output, and of the head."""
    convolutions = sum(kernel.ndim == 4 for kernel in snapshot.kernels)
    hidden = len(snapshot.ranges) - 1 - convolutions
    names = [("convolution", convolutions), ("hidden", hidden)]
    sites = ["input", *(f"{name}_{place}" for name, count in names for place in range(1, count + 1)), "head"]
    ranges = [*snapshot.ranges.tolist(), snapshot.head_range.tolist()]
    ends = zip(sites, ranges, strict=True)
    return {f"{site}_{end}": value for site, pair in ends for end, value in zip(("low", "high"), pair, strict=True)}
