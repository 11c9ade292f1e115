"""The store of this server and the key of its seals, opened when they are first needed.

A server whose store cannot be opened still answers everything that needs none; its seals then hold
until it stops.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.errors import Unavailable
from dragoman.protocols import responses
from dragoman.signing import Signer
from dragoman.store.rows import StoredTurn, StoreError, StoreLimits

if TYPE_CHECKING:
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.store")
KEY = 32
PAUSE = 5.0  # seconds before a store that could not be opened is tried again


class PersistentState:
    """What lasts."""

    def __init__(self, url: str, limits: StoreLimits | None = None) -> None:
        self._url = url
        self._limits = limits or StoreLimits()
        self._store: Store | None = None
        self._seal: Signer | None = None
        self._opening = asyncio.Lock()
        self._again = float("-inf")  # not tried before this, after it failed

    async def get_store(self) -> Store:
        """The store, or an error that says that there is none."""
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    self._store = await self._open()
        return self._store

    async def _open(self) -> Store:
        from dragoman.store.store import Store

        if time.monotonic() < self._again:
            raise _unavailable()
        try:
            return await Store.open(self._url, self._limits, fail_body=responses.mark_failed)
        except (StoreError, Unavailable) as error:
            log.error("the store cannot be opened: %s", error)
            self._again = time.monotonic() + PAUSE
            raise _unavailable() from None

    async def get_signer(self) -> Signer:
        if self._seal is None:
            key = await self._key()
            self._seal = self._seal or Signer(key)  # of two that came at once, one is for all
        return self._seal

    async def _key(self) -> bytes:
        try:
            store = await self.get_store()
            return await store.write(lambda tx: tx.key_values.get_or_create_secret("seal", KEY))
        except Unavailable:
            log.warning("without a store, what is sealed now cannot be opened after a restart")
            return secrets.token_bytes(KEY)

    async def save_turns(self, owner: str, rows: Sequence[StoredTurn]) -> None:
        """What models said, for `memory`."""
        store = await self.get_store()
        await store.write(lambda tx: tx.key_values.put_turns(owner, rows))

    async def load_turns(self, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
        store = await self.get_store()
        return await store.read(lambda tx: tx.key_values.get_turns(owner, keys))

    async def aclose(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()


def _unavailable() -> Unavailable:
    return Unavailable(
        "The server's store is not available. With `store: false` it is not needed.",
        code="store_unavailable",
    )
