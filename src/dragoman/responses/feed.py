"""The frames of one running response, numbered from 0, for any number of readers.

A reader names the last frame that it has and gets all later ones, at its own pace: a slow reader
delays nobody. Frames stay in memory while the response runs; the store has them, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class Feed:
    """The frames that a response has produced so far."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_closed = False
        self._changed = asyncio.Event()

    def push(self, frames: list[bytes]) -> None:
        self.frames += frames
        self._wake_readers()

    def close(self) -> None:
        """No frames follow."""
        self.is_closed = True
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: int = -1) -> AsyncGenerator[list[bytes], None]:
        """Yield all frames after a number, in batches as they arrive."""
        position = after + 1
        while True:
            changed = self._changed
            if position < len(self.frames):
                batch = self.frames[position:]
                position = len(self.frames)
                yield batch
            elif self.is_closed:
                return
            else:
                await changed.wait()

    async def wait_closed(self) -> None:
        while not self.is_closed:
            await self._changed.wait()
