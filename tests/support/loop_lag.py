"""The probe for the lag of the event loop, which all hostile tests share.

`measure_loop_lag` measures the loop that it runs on, from inside, and `measure_thread_lag` the loop
of a server in another thread. `measure_server_lag` reads what the server measures itself from
`/metrics`, before and after. All give a `LagReport`: lags of calls that were due every 20 ms, with
those that a block has made impossible, so that a quantile is what a request at a random moment
waits. The tests share two cores with other programs, so the time that the loop's thread waits for a
core is subtracted, and so is the time that the host of a virtual machine takes its cores away. A
client in another thread of the same process makes the loop wait for the interpreter's lock, too;
then only the time in which the loop's thread computes counts as lag.

    async with measure_loop_lag() as lag:
        ...
    assert lag.get_quantile(0.99) <= 0.05, lag

    with measure_server_lag(client) as lag:
        ...
    assert lag.get_quantile(0.99) <= 0.05, lag
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from dragoman.telemetry.loop_lag import LAG_BOUNDS, LoopLag
from tests.support.serving import RunningServer

LAG_LIMIT = 0.05  # seconds that the 99th percentile may have
SCHEDSTAT = Path("/proc/thread-self/schedstat")
CPU_TIMES = Path("/proc/stat")
STOLEN = 8  # position of the stolen time in the first line of that file
TICKS = os.sysconf("SC_CLK_TCK")  # per second
_BUCKET = re.compile(r'^dragoman_event_loop_lag_seconds_bucket\{le="(.+)"\} (.+)$', re.MULTILINE)


class LagReport:
    """How many calls had which lag. Lags are known as upper bounds of the histogram's buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BOUNDS) + 1)

    @property
    def calls(self) -> int:
        return sum(self.counts)

    def get_quantile(self, fraction: float) -> float:
        """Return the bound that this fraction of the calls did not exceed."""
        seen = 0
        for bound, count in zip((*LAG_BOUNDS, float("inf")), self.counts, strict=True):
            seen += count
            if seen >= fraction * self.calls:
                return bound
        return 0.0

    def __str__(self) -> str:
        quantiles = (f"p{100 * q:g} ≤ {1000 * self.get_quantile(q):g} ms" for q in (0.5, 0.99, 1))
        return f"event loop lag: {', '.join(quantiles)} of {self.calls} calls"


class LoopLagProbe(LoopLag):
    """Measures the running loop, without the time that its thread waits for a core.

    With `computing`, only the time in which the loop's thread computes counts.
    """

    def __init__(self, report: LagReport, *, computing: bool) -> None:
        super().__init__()
        self._report = report
        self._computing = computing
        self._before = self._read_clock()

    def observe(self, lag: float) -> None:
        self._report.counts[bisect_left(LAG_BOUNDS, lag)] += 1

    def _read_clock(self) -> float:
        stolen = read_stolen_time()
        return time.thread_time() - stolen if self._computing else read_wait_time() + stolen

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._read_clock()
        passed, self._before = max(0.0, now - self._before), now
        self._due = max(self._due, loop.time() - passed) if self._computing else self._due + passed
        super()._tick(loop)


def read_wait_time() -> float:
    """Return the seconds that this thread was runnable but waited for a core, so far."""
    return int(SCHEDSTAT.read_text().split()[1]) / 1e9


def read_stolen_time() -> float:
    """Return the seconds in which the host of this virtual machine let others use its cores."""
    with CPU_TIMES.open() as file:
        return int(file.readline().split()[STOLEN]) / TICKS


@asynccontextmanager
async def measure_loop_lag(*, computing: bool = False) -> AsyncIterator[LagReport]:
    """Measure the running event loop. The report is complete when the block ends.

    Where the client runs in a thread of the same process, measure the `computing` alone.
    """
    report = LagReport()
    probe = LoopLagProbe(report, computing=computing)
    probe.start()
    try:
        yield report
    finally:
        await asyncio.sleep(0.05)  # a call that is late now is counted, too
        probe.stop()


@contextmanager
def measure_thread_lag(server: RunningServer) -> Iterator[LagReport]:
    """Measure the event loop of a server that runs in a thread of this process."""
    report = LagReport()

    async def start() -> LoopLagProbe:
        probe = LoopLagProbe(report, computing=True)
        probe.start()
        return probe

    async def stop(probe: LoopLagProbe) -> None:
        await asyncio.sleep(0.05)  # a call that is late now is counted, too
        probe.stop()

    probe = server.run_coroutine(start())
    try:
        yield report
    finally:
        server.run_coroutine(stop(probe))


@contextmanager
def measure_server_lag(client: httpx.Client) -> Iterator[LagReport]:
    """Measure the event loop of a server in another process or thread, through its `/metrics`."""
    report = LagReport()
    before = read_lag_counts(client)
    yield report
    after = read_lag_counts(client)
    report.counts = [new - old for new, old in zip(after, before, strict=True)]


def read_lag_counts(client: httpx.Client) -> list[int]:
    """Return the counts of the server's histogram, bucket by bucket."""
    page = client.get("/metrics").text
    totals = [int(float(total)) for _, total in _BUCKET.findall(page)]
    assert len(totals) == len(LAG_BOUNDS) + 1, "the server does not measure the lag"
    return [total - below for total, below in zip(totals, [0, *totals], strict=False)]
