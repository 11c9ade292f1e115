"""Long lists of short pieces of work on the event loop.

A request may have thousands of prompts. Each is prepared in a moment, but together they would keep
the event loop from all other requests. So whoever works through such a list gives way now and then.
"""

from __future__ import annotations

import asyncio
import time

MAX_SECONDS = 0.005  # of work between two turns of others


class LoopShare:
    """One request's share of the event loop while it works through a list."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def give_way(self) -> None:
        """Let others run if this request has worked for long enough."""
        if time.perf_counter() - self._since > MAX_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
