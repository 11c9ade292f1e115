"""Sleep: an engine frees the memory of its device, and its next call wakes it up.

A model that is loaded into a GPU again takes minutes; one that wakes up takes seconds.
"""

from __future__ import annotations

import asyncio

from dragoman.engines.subprocess import messages
from dragoman.engines.subprocess.connection import ChildConnection


class EngineSleep:
    """Whether the engine of a child sleeps. Calls wait until it is awake."""

    def __init__(self) -> None:
        self.is_asleep = False
        self._lock = asyncio.Lock()

    async def sleep(self, connection: ChildConnection) -> None:
        async with self._lock:
            if not self.is_asleep:
                await connection.call(messages.SleepEngine, object)
                self.is_asleep = True

    async def wake(self, connection: ChildConnection) -> None:
        """Wake the engine, if it sleeps or is about to."""
        if not self.is_asleep and not self._lock.locked():
            return
        async with self._lock:
            if self.is_asleep:
                await connection.call(messages.WakeEngine, object)
                self.is_asleep = False
