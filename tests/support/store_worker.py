"""A server that writes to a store until it is killed, and reports what it writes.

    python -m tests.support.store_worker URL SEED

Every line is a JSON list: whether a write is about to begin (`try`) or was acknowledged (`done`),
the response, the operation and a number. Several responses run at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from dragoman.store.rows import StoredConversation, StoredItem
from dragoman.store.store import Store
from tests.support.stores import (
    add_conversation,
    add_response,
    append_frames,
    finish_response,
    make_response,
    open_store,
    update_response,
)

WORKERS = 4


def report(*values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def make_body(response: str, version: int, size: int) -> bytes:
    """JSON, which cannot be parsed if it was cut off."""
    return json.dumps({"id": response, "version": version, "pad": "x" * size, "end": True}).encode()


def make_ending(response: str) -> tuple[list[StoredItem], list[tuple[int, bytes]]]:
    """What is written when a response ends: its items and its last events."""
    items = [StoredItem(f"{response}-in", b"in"), StoredItem(f"{response}-out", b"out")]
    return items, [(1000, b"last but one"), (1001, b"last")]


async def run(url: str, seed: int) -> None:
    store = await open_store(url)
    if await store.read(lambda tx: tx.conversations.get("ann", "c")) is None:
        await add_conversation(store, StoredConversation(id="c", owner="ann", created=1))
    report("ready")
    await asyncio.gather(*(write_responses(store, f"{seed}-{n}") for n in range(WORKERS)))


async def write_responses(store: Store, prefix: str) -> None:
    generator = random.Random(prefix)
    for number in range(1_000_000):
        name = f"{prefix}-{number}"
        size = generator.choice((10, 1000, 100_000))
        report("try", name, "add", size)
        body = make_body(name, 0, size)
        await add_response(store, make_response(name, status="queued", body=body, conversation="c"))
        report("done", name, "add", size)
        for version in range(1, generator.randint(1, 4)):
            report("try", name, "update", version)
            body = make_body(name, version, size)
            await update_response(store, "ann", name, "in_progress", body)
            report("done", name, "update", version)
            frames = [(version * 10 + part, b"frame") for part in range(5)]
            report("try", name, "append", version)
            await append_frames(store, name, frames)
            report("done", name, "append", version)
        items, frames = make_ending(name)
        report("try", name, "end", 99)
        await finish_response(store, name, "completed", make_body(name, 99, size), items, frames)
        report("done", name, "end", 99)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
