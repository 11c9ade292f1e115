"""What a workshop remembers is bounded, however many different constraints it is asked for."""

from __future__ import annotations

import asyncio

from dragoman.grammar.compiler.compiler_pool import CompilerPool
from tests.support.many_schemas import compile_all

COUNT = 300


def test_hundreds_of_schemas_leave_the_cache_bounded() -> None:
    async def go() -> None:
        shop = CompilerPool(cache_entries=50, cache_bytes=40_000)
        refused = await compile_all(shop, range(COUNT))
        stats = shop.stats
        assert refused == COUNT // 6
        assert (stats.misses, stats.hits, stats.restarts) == (COUNT, 0, 0)
        assert 0 < stats.entries <= 50
        assert 0 < stats.bytes <= 40_000
        assert await compile_all(shop, range(COUNT - 5, COUNT)) == 1
        assert shop.stats.hits == 5
        await shop.aclose()

    asyncio.run(go())
