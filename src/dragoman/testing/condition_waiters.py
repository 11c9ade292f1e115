"""Lets tests wait until something is true of a scripted engine or server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ConditionWaiters(Generic[T]):
    """Those who wait for conditions of one object, which calls `notify` whenever it changes."""

    def __init__(self, subject: T) -> None:
        self._subject = subject
        self._waiters: list[tuple[Callable[[T], bool], asyncio.Future[None]]] = []

    async def wait_until(self, condition: Callable[[T], bool], timeout: float) -> None:
        """Return when the condition is true; raise `TimeoutError` if it does not become true."""
        if condition(self._subject):
            return
        waiter = (condition, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter[1]
        finally:
            self._waiters.remove(waiter)

    def notify(self) -> None:
        for condition, future in self._waiters:
            if not future.done() and condition(self._subject):
                future.set_result(None)
