"""A scripted llama-server as an upstream. Run as `python -m bench.upstream_worker PORT PACE`."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from bench.measure import TOKEN
from dragoman.testing import Reply, ScriptedWorker
from dragoman.types import Json

SETTINGS: dict[str, Json] = {"tokens": True, "markup": [TOKEN], "context": 100_000, "embeddings": 0}
SCRIPT: dict[str, Json] = {"text": TOKEN * 10_000, "chunks": len(TOKEN)}


async def main(port: int, pace: float) -> None:
    worker = ScriptedWorker(
        "llama-server",
        Reply(**SCRIPT),
        port=port,
        pace=pace,
        markup=(TOKEN,),
        context=SETTINGS["context"],
    )
    async with worker:
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
