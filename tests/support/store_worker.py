"""A server that works until it is killed, and says what it was told is done.

    python -m tests.support.store_worker URL SEED

Every line is a JSON list: what it is about to do (`try`) or has been promised (`done`), the
response, and the particulars. Several responses run at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from dragoman.store.rows import StoredConversation, StoredItem
from tests.support.stores import opened, response

WORKERS = 4


def say(*words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def body(name: str, version: int, size: int) -> bytes:
    """Text that shows whether it is whole."""
    return json.dumps({"id": name, "version": version, "pad": "x" * size, "end": True}).encode()


def ending(name: str) -> tuple[list[StoredItem], list[tuple[int, bytes]]]:
    """What comes with the end of a response: items and its last events."""
    items = [StoredItem(f"{name}-in", b"in"), StoredItem(f"{name}-out", b"out")]
    return items, [(1000, b"last but one"), (1001, b"last")]


async def work(url: str, seed: int) -> None:
    store = await opened(url)
    if await store.get_conversation("ann", "c") is None:
        await store.add_conversation(StoredConversation(id="c", owner="ann", created=1))
    say("ready")
    await asyncio.gather(*(turns(store, f"{seed}-{place}") for place in range(WORKERS)))


async def turns(store: Any, prefix: str) -> None:
    chance = random.Random(prefix)
    for turn in range(1_000_000):
        name = f"{prefix}-{turn}"
        size = chance.choice((10, 1000, 100_000))
        say("try", name, "add", size)
        await store.add(response(name, status="queued", body=body(name, 0, size), conversation="c"))
        say("done", name, "add", size)
        for version in range(1, chance.randint(1, 4)):
            say("try", name, "update", version)
            await store.update("ann", name, "in_progress", body(name, version, size))
            say("done", name, "update", version)
            frames = [(version * 10 + part, b"frame") for part in range(5)]
            say("try", name, "append", version)
            await store.append(name, frames)
            say("done", name, "append", version)
        items, frames = ending(name)
        say("try", name, "end", 99)
        await store.finish_turn("ann", name, "completed", body(name, 99, size), items, frames)
        say("done", name, "end", 99)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], int(sys.argv[2])))
