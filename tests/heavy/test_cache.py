"""A hundred thousand different schemas do not make memory grow."""

from __future__ import annotations

import asyncio
import time

from dragoman.grammar.compiler.compiler_pool import CompilerPool
from tests.support.many_schemas import compile_all
from tests.support.process_cost import read_resident_bytes

COUNT, STEP, WARMUP = 100_000, 5_000, 20_000
MB = 1 << 20


def test_memory_stays_bounded_with_a_hundred_thousand_schemas() -> None:
    async def run() -> None:
        pool = CompilerPool()
        await pool.warm_up()
        started, after_warmup = time.monotonic(), 0
        for start in range(0, COUNT, STEP):
            rejected = await compile_all(pool, range(start, start + STEP))
            assert rejected in (STEP // 6, STEP // 6 + 1)
            stats, server_bytes = pool.stats, read_resident_bytes()
            workers = [read_resident_bytes(pid) // MB for pid in pool.pids]
            print(
                f"{start + STEP:7,} in {time.monotonic() - started:5.0f} s: "
                f"{stats.entries} cached, {stats.bytes / MB:.1f} MB; "
                f"server {server_bytes / MB:.0f} MB, workers {workers} MB, "
                f"{stats.restarts} restarts",
                flush=True,
            )
            assert stats.entries <= 512
            assert stats.bytes <= 32 * MB
            if start + STEP == WARMUP:
                after_warmup = server_bytes
        assert read_resident_bytes() - after_warmup < 16 * MB
        assert max(read_resident_bytes(pid) for pid in pool.pids) < 256 * MB
        await pool.aclose()

    asyncio.run(run())
