"""Signs of life while something takes long and says nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from quarl_edge.deploy.events import Event, Tell

PERIOD_S = 5.0


@contextlib.asynccontextmanager
async def ticking(tell: Tell, step: str, say: Callable[[], str]) -> AsyncIterator[None]:
    """Tell every `PERIOD_S` how long a step has taken so far.

    Args:
        tell: is told.
        step: its name.
        say: what is going on.
    """
    ticker = asyncio.create_task(_tick(tell, step, say))
    try:
        yield
    finally:
        ticker.cancel()


async def _tick(tell: Tell, step: str, say: Callable[[], str]) -> None:
    begun_s = time.monotonic()
    while True:
        await asyncio.sleep(PERIOD_S)
        tell(Event(step=step, state="goes on", said=f"{time.monotonic() - begun_s:.0f} s: {say()}"))
