"""The beat of a scripted engine.

A real engine makes one step for all its streams at once. So does this: all streams of a pace share
one timer, and each beat grants a step to every stream that is open. Two thousand streams are one
timer, not two thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class PacedStream:
    """One stream's place in the beat: steps that were granted and not taken yet."""

    def __init__(self) -> None:
        self._new_future = (
            asyncio.get_running_loop().create_future
        )  # asking anew costs a system call
        self._granted = 0
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Take one step, or wait for it."""
        if not self._granted:
            self._waiter = self._new_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._granted -= 1

    def grant(self) -> None:
        self._granted += 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class UnpacedStream(PacedStream):
    """No beat: the next step is due as soon as the loop has seen to the others."""

    async def wait(self) -> None:
        await asyncio.sleep(0)


class StepClock:
    """Grants a step to every open stream each `pace` seconds, or by hand where pace is None."""

    def __init__(self, pace: float | None) -> None:
        self._pace = pace
        self._turns: dict[PacedStream, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def open(self) -> Generator[PacedStream, None, None]:
        if self._pace == 0:
            yield UnpacedStream()
            return
        turn = PacedStream()
        self._turns[turn] = None
        if self._pace and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(loop.time() + self._pace, self._strike, loop, loop.time())
        try:
            yield turn
        finally:
            del self._turns[turn]
            if not self._turns and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def grant(self) -> None:
        for turn in self._turns:
            turn.grant()

    def _strike(self, loop: asyncio.AbstractEventLoop, last: float) -> None:
        """Beats that were missed while the loop was busy are not caught up."""
        assert self._pace
        self.grant()
        due = max(last + self._pace, loop.time() - self._pace)
        self._timer = loop.call_at(due + self._pace, self._strike, loop, due)
