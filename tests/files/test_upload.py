"""Uploads that end before they are complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.files import FileLimits, FileService
from dragoman.files.upload import CHUNK_BYTES
from dragoman.store.rows import Page
from dragoman.store.store import Store
from tests.support.stores import create_database, run_scenario


@pytest.mark.parametrize("size", [1, CHUNK_BYTES])
def test_a_cancelled_upload_leaves_nothing(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that runs when a request is cancelled is completed all the same."""

    async def scenario(store: Store) -> None:
        async def get_store() -> Store:
            return store

        async def write(operation: Callable[..., Any]) -> None:
            await complete(operation)
            raise asyncio.CancelledError

        async def upload_file() -> None:
            async with files.upload("ann") as upload:
                await upload.write(b"x" * size)
                await upload.finish("a.txt", "user_data", None)

        complete, files = store.write, FileService(get_store, FileLimits())
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", write)
            with pytest.raises(asyncio.CancelledError):
                await upload_file()
        page = Page(after=None, limit=10, newest_first=True)
        assert await files.list_page("ann", page, None) == []
        assert await store.read(lambda tx: tx.files.sum_bytes()) == 0

    with create_database("sqlite", tmp_path) as url:
        run_scenario(url, scenario)


@pytest.mark.parametrize("size", [1, CHUNK_BYTES])
def test_a_transaction_that_commits_late_leaves_nothing(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL runs transactions side by side: a deletion must wait for the last write."""

    async def scenario(store: Store) -> None:
        async def get_store() -> Store:
            return store

        async def write(operation: Callable[..., Any]) -> None:
            begun.set()
            transactions.append(asyncio.create_task(write_late(operation)))
            await asyncio.shield(transactions[-1])

        async def write_late(operation: Callable[..., Any]) -> None:
            await may_commit.wait()
            await complete(operation)

        async def upload_file() -> None:
            async with files.upload("ann") as upload:
                await upload.write(b"x" * size)
                await upload.finish("a.txt", "user_data", None)

        begun, may_commit = asyncio.Event(), asyncio.Event()
        transactions: list[asyncio.Task[None]] = []
        complete, files = store.write, FileService(get_store, FileLimits())
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", write)
            uploading = asyncio.create_task(upload_file())
            await begun.wait()
            uploading.cancel()
            await asyncio.wait({uploading}, timeout=0.1)  # long enough for a deletion
            may_commit.set()
            with pytest.raises(asyncio.CancelledError):
                await uploading
            await asyncio.gather(*transactions)
        assert await store.read(lambda tx: tx.files.sum_bytes()) == 0
        page = Page(after=None, limit=10, newest_first=True)
        assert await files.list_page("ann", page, None) == []

    with create_database("sqlite", tmp_path) as url:
        run_scenario(url, scenario)
