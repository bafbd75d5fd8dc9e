"""How fast an actor may send: a token bucket, pure."""

from __future__ import annotations

from quarl_device.errors import UsageError

_BURST_S = 0.25


class Pace:
    """Lets payloads through at a mean rate; one of any size may start as soon as the last ones are paid for.

    Args:
        bytes_per_s: the rate; 0 for none.

    Raises:
        UsageError: a rate below 0.
    """

    def __init__(self, bytes_per_s: float) -> None:
        if bytes_per_s < 0:
            raise UsageError(f"a rate of {bytes_per_s} bytes per second is below 0")
        self._rate = bytes_per_s
        self._left = self._burst = bytes_per_s * _BURST_S
        self._at_s = 0.0

    def allows(self, now_s: float) -> bool:
        """Whether a payload may be sent at `now_s`, monotonic."""
        if not self._rate:
            return True
        self._left = min(self._burst, self._left + self._rate * max(0.0, now_s - self._at_s))
        self._at_s = max(self._at_s, now_s)
        return self._left >= 0

    def spend(self, size_bytes: int) -> None:
        """A payload is being sent."""
        self._left -= size_bytes
