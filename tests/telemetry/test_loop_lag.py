"""The lag of the event loop: a blocked loop shows, on /metrics and in the probe of the tests."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import httpx
import pytest

from dragoman.telemetry.loop_lag import INTERVAL, expand_lag
from tests.support.loop_lag import LAG_LIMIT, measure_loop_lag, measure_server_lag
from tests.support.serving import serve_scripted

BLOCK = 0.6  # seconds


def test_a_block_counts_as_all_the_calls_that_it_made_impossible() -> None:
    lags = list(expand_lag(1.0))
    assert lags[0] == 1.0
    assert len(lags) == pytest.approx(1.0 / INTERVAL, abs=1)
    assert all(late - later == pytest.approx(INTERVAL) for late, later in pairwise(lags))
    assert list(expand_lag(0.001)) == [0.001]
    assert len(list(expand_lag(1e6))) < 20_000


def test_the_probe_sees_a_block_and_nothing_while_the_loop_is_free() -> None:
    async def run(block: float) -> float:
        async with measure_loop_lag() as lag:
            for _ in range(10):
                await asyncio.sleep(INTERVAL)
            asyncio.get_running_loop().call_soon(time.sleep, block)
            await asyncio.sleep(INTERVAL)
        assert lag.calls >= 5
        return lag.get_quantile(0.99)

    assert asyncio.run(run(0)) <= LAG_LIMIT
    assert asyncio.run(run(BLOCK)) > LAG_LIMIT


def test_metrics_export_the_lag() -> None:
    with serve_scripted("x") as server, httpx.Client(base_url=server.url) as client:
        with measure_server_lag(client) as lag:
            server.loop.call_soon_threadsafe(time.sleep, BLOCK)
            assert client.get("/health/live").status_code == 200
        assert lag.get_quantile(0.99) > LAG_LIMIT
        assert lag.calls > BLOCK / INTERVAL / 2
