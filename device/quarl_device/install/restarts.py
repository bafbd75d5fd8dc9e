"""When an agent that ended is started again, and when no more: the same with systemd and without it."""

from __future__ import annotations

RESTART_S = 5
LIMIT_S = 600
LIMIT_STARTS = 16
"""More than the agent's own crash loop takes: it parks itself twice, after five starts each."""
WATCHDOG_S = 60
STOP_S = 30
NOT_RESTARTED = (2,)
"""Wrong usage comes out the same every time."""
