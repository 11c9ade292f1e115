"""The frames of one running response, numbered from 0, for any number of listeners.

A listener says which frame it has heard last and gets all that follow, at its own pace: a slow one
holds up nobody. Frames stay in memory while the response runs; the store has them too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class Feed:
    """What a response has said so far."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.done = False
        self._news = asyncio.Event()

    def push(self, frames: list[bytes]) -> None:
        self.frames += frames
        self._tell()

    def close(self) -> None:
        """Nothing follows."""
        self.done = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, after: int = -1) -> AsyncGenerator[list[bytes], None]:
        """All frames behind one, in batches as they come."""
        at = after + 1
        while True:
            news = self._news
            if at < len(self.frames):
                batch = self.frames[at:]
                at = len(self.frames)
                yield batch
            elif self.done:
                return
            else:
                await news.wait()

    async def wait_closed(self) -> None:
        """Until nothing follows."""
        while not self.done:
            await self._news.wait()
