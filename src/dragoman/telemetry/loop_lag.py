"""How long the event loop keeps its callbacks waiting.

A timer is due every `INTERVAL` seconds; the lag is how late it is called, and every request of the
server waits as long. While something blocks the loop, the timer cannot run, so each missed call
counts with the wait that it would have had. A quantile of the lag is therefore the wait of a
request that arrives at a random moment, however long the loop was blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dragoman.telemetry.model_metrics import Histogram

INTERVAL = 0.02  # seconds
# Upper bounds of the histogram, in seconds.
LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MAX_MISSED = 10_000  # calls that are counted after one block


class LoopLag:
    """Measures the lag of the event loop that it is started on."""

    def __init__(self) -> None:
        self.histogram = Histogram(LAG_BOUNDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Measure the running loop from now on, unless that is done already."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.stop()
            self._loop = loop
            self._schedule(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def observe(self, lag: float) -> None:
        """Count the lag of one call; called for calls that a block has made impossible, too."""
        self.histogram.observe(lag)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + INTERVAL
        self._timer = loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        for lag in expand_lag(max(0.0, loop.time() - self._due)):
            self.observe(lag)
        self._schedule(loop)


def expand_lag(lag: float) -> Iterator[float]:
    """Yield the lag of a late call, and of the calls that were missed meanwhile."""
    for missed in range(1 + min(int(lag / INTERVAL), MAX_MISSED)):
        yield lag - missed * INTERVAL
