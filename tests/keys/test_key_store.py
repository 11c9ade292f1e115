"""Reading keys again: what a file that hangs does to requests."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from dragoman.keys import key_store
from dragoman.keys.key_settings import KeySettings
from dragoman.keys.key_store import KeyChanges, KeyStore


async def check_waits(
    store: KeyStore, file: Path, release: threading.Event, patch: pytest.MonkeyPatch
) -> None:
    reload, waits = store.reload, []

    async def count_reload() -> KeyChanges | None:
        waits.append(store)
        return await reload()

    store.reload = count_reload  # type: ignore[method-assign]
    os.utime(file, (1, 1))  # changed, a long time ago
    await store.refresh()
    assert waits == [store]
    patch.setattr(key_store, "MAX_WAIT", 0.0)  # has passed
    for _ in range(3):
        await store.refresh()
    assert waits == [store]
    release.set()
    assert await reload() is not None
    patch.setattr(key_store, "MAX_WAIT", 60.0)
    os.utime(file, (2, 2))
    await store.refresh()
    assert waits == [store, store]


def test_a_file_that_is_not_read_to_its_end_delays_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_store, "CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(key_store, "MAX_WAIT", 0.01)
    file, release = tmp_path / "keys", threading.Event()
    file.write_text("a-key-of-enough-length\n")
    settings = KeySettings(file=file)

    def load() -> KeySettings:
        assert release.wait(60)
        return settings

    try:
        asyncio.run(check_waits(KeyStore(settings, load), file, release, monkeypatch))
    finally:
        release.set()
