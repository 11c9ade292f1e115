"""The cache of a compiler pool is bounded, however many different constraints are compiled."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.grammar.compiler.compiler_pool import CompilerPool
from tests.support.many_schemas import compile_all

pytestmark = pytest.mark.slow

COUNT = 300


def test_cache_stays_bounded_with_hundreds_of_schemas() -> None:
    async def run() -> None:
        pool = CompilerPool(cache_entries=50, cache_bytes=40_000)
        rejected = await compile_all(pool, range(COUNT))
        stats = pool.stats
        assert rejected == COUNT // 6
        assert (stats.misses, stats.hits, stats.restarts) == (COUNT, 0, 0)
        assert 0 < stats.entries <= 50
        assert 0 < stats.bytes <= 40_000
        assert await compile_all(pool, range(COUNT - 5, COUNT)) == 1
        assert pool.stats.hits == 5
        await pool.aclose()

    asyncio.run(run())
