"""A hundred thousand different schemas: nothing that remembers them grows with them."""

from __future__ import annotations

import asyncio
import time

from dragoman.grammar.compiler.compiler_pool import CompilerPool
from tests.support.many_schemas import compile_all, read_resident_bytes

COUNT, STEP, WARM = 100_000, 5_000, 20_000
MB = 1 << 20


def test_a_hundred_thousand_schemas_leave_memory_bounded() -> None:
    async def go() -> None:
        shop = CompilerPool()
        await shop.warm_up()
        begun, warm = time.monotonic(), 0
        for start in range(0, COUNT, STEP):
            assert await compile_all(shop, range(start, start + STEP)) in (STEP // 6, STEP // 6 + 1)
            stats, own = shop.stats, read_resident_bytes()
            workers = [read_resident_bytes(pid) // MB for pid in shop.pids]
            print(
                f"{start + STEP:7,} in {time.monotonic() - begun:5.0f} s: {stats.entries} kept, "
                f"{stats.bytes / MB:.1f} MB; server {own / MB:.0f} MB, workers {workers} MB, "
                f"{stats.restarts} restarts",
                flush=True,
            )
            assert stats.entries <= 512
            assert stats.bytes <= 32 * MB
            warm = own if start + STEP == WARM else warm
        assert read_resident_bytes() - warm < 16 * MB
        assert max(read_resident_bytes(pid) for pid in shop.pids) < 256 * MB
        await shop.aclose()

    asyncio.run(go())
