"""Opens the store and the signing key of this server when they are first needed.

A server whose store cannot be opened still serves requests that need none; its signatures are then
valid until it stops.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.errors import StoreUnavailable, Unavailable
from dragoman.protocols import responses
from dragoman.signing import Signer
from dragoman.store.rows import StoredTurn, StoreError, StoreLimits

if TYPE_CHECKING:
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.store")
KEY_NAME = "signing_key"  # in the table of secrets
KEY_SIZE = 32
IN_MEMORY = ("sqlite://", "sqlite:///", "sqlite:///:memory:")
RETRY_INTERVAL = 5.0  # seconds before opening a store that failed is tried again


class PersistentState:
    """Opens the store and the signer, and holds them."""

    def __init__(self, url: str, limits: StoreLimits | None = None) -> None:
        self._url = url
        self._limits = limits or StoreLimits()
        self._store: Store | None = None
        self._signer: Signer | None = None
        self._opening = asyncio.Lock()
        self._retry_at = float("-inf")  # after a failure, the store is not opened before this time

    @property
    def is_persistent(self) -> bool:
        """Whether the store outlives the server."""
        return self._url not in IN_MEMORY

    async def get_store(self) -> Store:
        """Return the open store. Raises `Unavailable` if it cannot be opened."""
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    self._store = await self._open()
        return self._store

    async def open_now(self) -> None:
        """Open the store; a `StoreError` or `Unavailable` says why it cannot be opened."""
        async with self._opening:
            self._store = self._store or await self._open_store()

    async def _open_store(self) -> Store:
        from dragoman.store.store import Store

        return await Store.open(self._url, self._limits, fail_body=responses.mark_failed)

    async def _open(self) -> Store:
        if time.monotonic() < self._retry_at:
            raise _make_unavailable_error()
        try:
            return await self._open_store()
        except (StoreError, Unavailable) as error:
            log.error("the store cannot be opened; requests that need it get 503: %s", error)
            self._retry_at = time.monotonic() + RETRY_INTERVAL
            raise _make_unavailable_error() from None

    async def get_signer(self) -> Signer:
        if self._signer is None:
            key = await self._load_key()
            # of two concurrent calls, the first sets the signer for both
            self._signer = self._signer or Signer(key)
        return self._signer

    async def _load_key(self) -> bytes:
        try:
            store = await self.get_store()
            # reading first: a lock that another process holds delays only writes
            key: bytes | None = await store.read(lambda tx: tx.key_values.get_secret(KEY_NAME))
            if key is None:
                key = await store.write(
                    lambda tx: tx.key_values.get_or_create_secret(KEY_NAME, KEY_SIZE)
                )
            return key
        except Unavailable:
            log.warning("without a store, signatures made now are invalid after a restart")
            return secrets.token_bytes(KEY_SIZE)

    async def save_turns(self, owner: str, rows: Sequence[StoredTurn]) -> None:
        """Store turns of the replay cache."""
        store = await self.get_store()
        await store.write(lambda tx: tx.key_values.put_turns(owner, rows))

    async def load_turns(self, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
        store = await self.get_store()
        return await store.read(lambda tx: tx.key_values.get_turns(owner, keys))

    async def aclose(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()


def _make_unavailable_error() -> Unavailable:
    return StoreUnavailable(
        "The server's store is not available. With `store: false` it is not needed.",
    )
