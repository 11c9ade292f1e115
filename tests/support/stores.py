"""Stores for tests: on SQLite always, on PostgreSQL as well where there is one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from dragoman.store.rows import StoredResponse, StoreLimits
from dragoman.store.store import Store
from tests.support import postgres

POSTGRES = os.environ.get(postgres.VARIABLE, "")
KINDS = ["sqlite", "postgres"] if POSTGRES else ["sqlite"]
LIMITS = StoreLimits()
NOW = int(time.time())


@contextmanager
def address(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/store.db"
        return
    with postgres.schema(POSTGRES) as url:
        yield url


def died(body: bytes) -> bytes:
    """The body of a response whose server died."""
    return body + b"!"


async def opened(url: str, limits: StoreLimits = LIMITS) -> Store:
    return await Store.open(url, limits, failed=died)


def play(
    url: str, scenario: Callable[..., Awaitable[Any]], limits: StoreLimits = LIMITS, stores: int = 1
) -> Any:
    """Run a scenario with so many stores open at one address."""

    async def scene() -> Any:
        opens = [await opened(url, limits) for _ in range(stores)]
        try:
            return await scenario(*opens)
        finally:
            for store in opens:
                await store.aclose()

    return asyncio.run(scene())


def response(name: str, owner: str = "ann", **said: Any) -> StoredResponse:
    usual: dict[str, Any] = {"created": NOW, "status": "in_progress", "body": b'{"id":1}'}
    return StoredResponse(id=name, owner=owner, **(usual | said))


def poke(url: str, statement: str, **values: Any) -> list[Any]:
    """Do something behind the store's back."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            done = connection.execute(text(statement), values)
            return list(done) if done.returns_rows else []
    finally:
        engine.dispose()


async def until(true: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Ask again and again, until something is so."""
    async with asyncio.timeout(seconds):
        while not await true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
