"""Stores for tests: always on SQLite, and on PostgreSQL if one is available."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from sqlalchemy import create_engine, text

from dragoman.store.batches.rows import StoredBatch, StoredFile
from dragoman.store.rows import (
    ROW,
    NumberedFrames,
    Status,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
    StoredTurn,
    StoreLimits,
)
from dragoman.store.store import Store
from tests.support import postgres

if TYPE_CHECKING:
    from dragoman.store.transaction import Transaction

POSTGRES = os.environ.get(postgres.VARIABLE, "")
DATABASES = ["sqlite", "postgres"] if POSTGRES else ["sqlite"]
LIMITS = StoreLimits()
NOW = int(time.time())


@contextmanager
def create_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/store.db"
        return
    with postgres.create_schema(POSTGRES) as url:
        yield url


def fail_body(body: bytes) -> bytes:
    """The body of a response whose server died."""
    return body + b"!"


async def open_store(url: str, limits: StoreLimits = LIMITS) -> Store:
    return await Store.open(url, limits, fail_body=fail_body)


def run_scenario(
    url: str, scenario: Callable[..., Awaitable[Any]], limits: StoreLimits = LIMITS, stores: int = 1
) -> Any:
    """Run a scenario with this many stores open at one URL."""

    async def run() -> Any:
        opened = [await open_store(url, limits) for _ in range(stores)]
        try:
            return await scenario(*opened)
        finally:
            for store in opened:
                await store.aclose()

    return asyncio.run(run())


def make_response(response: str, owner: str = "ann", **fields: Any) -> StoredResponse:
    defaults: dict[str, Any] = {"created": NOW, "status": "in_progress", "body": b'{"id":1}'}
    return StoredResponse(id=response, owner=owner, **(defaults | fields))


def execute(url: str, statement: str, **values: Any) -> list[Any]:
    """Run a statement on the database, bypassing the store."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []
    finally:
        engine.dispose()


async def wait_until(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Check a condition again and again until it is true."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


def intercept(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    handler: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> None:
    """Run `handler` instead of the store's calls of a method, such as `responses.get`.

    The handler is given a function that makes the original call.
    """
    for kind in ("read", "write", "delete"):
        _intercept(monkeypatch, kind, method, handler)


def _intercept(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    method: str,
    handler: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> None:
    original = getattr(Store, kind)

    async def run(store: Store, operation: Callable[[Transaction], Any]) -> Any:
        recorder = MagicMock()
        operation(recorder)
        if recorder.mock_calls[0][0] == method:
            return await handler(lambda: original(store, operation))
        return await original(store, operation)

    monkeypatch.setattr(Store, kind, run)


# one operation each, with its arguments bound: a lambda in a loop would see later values


async def add_response(store: Store, row: StoredResponse, items: Sequence[StoredItem] = ()) -> None:
    await store.write(lambda tx: tx.add_response(row, items))


async def get_response(store: Store, owner: str, response: str) -> StoredResponse | None:
    return await store.read(lambda tx: tx.responses.get(owner, response))


async def update_response(
    store: Store, owner: str, response: str, status: Status, body: bytes
) -> bool:
    return await store.write(lambda tx: tx.responses.update(owner, response, status, body))


async def finish_response(
    store: Store,
    response: str,
    status: Status,
    body: bytes,
    items: Sequence[StoredItem] = (),
    frames: NumberedFrames = (),
) -> bool:
    row = make_response(response, status=status, body=body)
    return await store.write(lambda tx: tx.finish_response(row, items, frames))


async def delete_response(store: Store, owner: str, response: str) -> bool:
    return await store.write(lambda tx: tx.delete_response(owner, response))


async def get_history(store: Store, owner: str, response: str) -> list[StoredResponse] | None:
    return await store.read(lambda tx: tx.responses.get_history(owner, response))


async def list_history(store: Store, last: str) -> list[str] | None:
    history = await get_history(store, "ann", last)
    return None if history is None else [row.id for row in history]


async def append_frames(store: Store, response: str, frames: NumberedFrames) -> bool:
    return await store.write(lambda tx: tx.responses.append_frames(response, frames))


async def list_frames(
    store: Store, owner: str, response: str, after: int, limit: int = 1000
) -> list[tuple[int, bytes]]:
    return await store.read(lambda tx: tx.responses.list_frames(owner, response, after, limit))


async def add_conversation(
    store: Store, row: StoredConversation, items: Sequence[StoredItem] = ()
) -> None:
    await store.write(lambda tx: tx.conversations.add(row, items))


async def add_items(
    store: Store, owner: str, conversation: str, items: Sequence[StoredItem]
) -> bool:
    return await store.write(lambda tx: tx.conversations.add_items(owner, conversation, items))


async def add_completion(store: Store, row: StoredCompletion) -> None:
    await store.write(lambda tx: tx.completions.add(row))


async def add_file(
    store: Store, row: StoredFile, content: Sequence[bytes] = (), *, complete: bool = True
) -> None:
    def add(tx: Transaction) -> None:
        tx.files.add(row)
        if content:
            assert tx.files.append(row.owner, row.id, list(enumerate(content)))
        if complete:
            tx.files.finish(row.owner, row.id)

    await store.write(add)


async def add_batch(store: Store, row: StoredBatch) -> None:
    await store.write(lambda tx: tx.batches.add(row))


async def get_secret(store: Store, name: str, size: int = 32) -> bytes:
    return await store.write(lambda tx: tx.key_values.get_or_create_secret(name, size))


async def put_turns(store: Store, owner: str, rows: Sequence[StoredTurn]) -> None:
    await store.write(lambda tx: tx.key_values.put_turns(owner, rows))


async def get_turns(store: Store, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
    return await store.read(lambda tx: tx.key_values.get_turns(owner, keys))


def make_conversation(
    conversation: str, owner: str = "ann", metadata: bytes = b"{}"
) -> StoredConversation:
    return StoredConversation(id=conversation, owner=owner, created=5, metadata=metadata)


def make_items(*ids: str) -> list[StoredItem]:
    return [StoredItem(item, item.encode()) for item in ids]


def make_completion(completion: str, owner: str = "ann", **fields: Any) -> StoredCompletion:
    defaults: dict[str, Any] = {"created": NOW, "body": b"{}"}
    return StoredCompletion(id=completion, owner=owner, **(defaults | fields))


def make_file(file: str, owner: str = "ann", **fields: Any) -> StoredFile:
    defaults: dict[str, Any] = {"purpose": "batch", "filename": "a.jsonl", "created": NOW}
    return StoredFile(id=file, owner=owner, **(defaults | {"expires": NOW + 1e6} | fields))


def make_batch(batch: str, owner: str = "ann", **fields: Any) -> StoredBatch:
    defaults: dict[str, Any] = {
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "input_file": f"{batch}-in",
        "output_file": f"{batch}-out",
        "error_file": f"{batch}-err",
        "created": NOW,
        "expires_at": NOW + 24 * 3600,
    }
    return StoredBatch(id=batch, owner=owner, **(defaults | fields))


async def list_item_ids(store: Store, conversation: str = "c", **page: Any) -> list[str] | None:
    arguments = {"after": None, "limit": 1000, "newest_first": False} | page
    items = await store.read(
        lambda tx: tx.conversations.list_items("ann", conversation, **arguments)
    )
    return None if items is None else [item.id for item in items]


async def add_rows(store: Store) -> None:
    """One row of each kind, owned by `ann`."""
    output = StoredItem("i0", b"0", is_output=True)
    await add_response(store, make_response("r", conversation="c"), [output])
    await append_frames(store, "r", [(0, b"zero")])
    await add_conversation(store, make_conversation("c"), make_items("i"))
    await put_turns(store, "ann", [StoredTurn("k", "m", b"turn")])
    await add_completion(store, make_completion("chat"))
    await add_file(store, make_file("f"), [b"one", b"two"])
    await add_file(store, make_file("g"), [b"three"], complete=False)
    await add_batch(store, make_batch("b", metadata=b'{"a":"b"}'))


# the column that says which row a table's row belongs to, and the columns that count
COUNTED_COLUMNS = {
    "responses": ("id",),
    "bodies": ("response", "body", "input"),
    "frames": ("response", "data"),
    "holders": ("response",),
    "conversations": ("id", "metadata"),
    "items": ("conversation", "body"),
    "completions": ("id", "body", "messages"),
    "memories": ("source", "data"),
    "files": ("id",),
    "chunks": ("file", "data"),
    "batches": ("id", "metadata"),
}


def sum_size_columns(url: str) -> int:
    tables = ("responses", "conversations", "completions", "memories", "files", "batches")
    query = "SELECT coalesce(sum(size), 0) FROM "
    return sum(int(execute(url, query + table)[0][0]) for table in tables)


def sum_row_sizes(url: str, *ids: str) -> int:
    """The bytes of all rows, or of those that belong to these ids, each with what a row counts."""
    size = 0
    for table, columns in COUNTED_COLUMNS.items():
        for row_id, *texts in execute(url, f"SELECT {', '.join(columns)} FROM {table}"):  # noqa: S608
            if not ids or row_id in ids:
                size += ROW + sum(len(text) for text in texts)
    return size
