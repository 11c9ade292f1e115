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
