"""The clock of a scripted engine, and tests that wait for what it or a scripted server does.

A real engine makes one step for all its streams at once. So does this: all streams with the same
pace share one timer, and each tick allows one more step to every open stream. Two thousand streams
need one timer, not two thousand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PacedStream:
    """One stream on the clock: counts the steps that it may make and has not made yet."""

    def __init__(self) -> None:
        # looking the loop up each time costs a system call
        self._create_future = asyncio.get_running_loop().create_future
        self._allowed = 0
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until the next step is allowed, and use it up."""
        if not self._allowed:
            self._waiter = self._create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._allowed -= 1

    def allow(self) -> None:
        """Allow one more step."""
        self._allowed += 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class UnpacedStream(PacedStream):
    """A stream without a clock: it makes a step in every iteration of the event loop."""

    async def wait(self) -> None:
        await asyncio.sleep(0)


class CalledStream(PacedStream):
    """A stream that makes its steps in a function, which the clock calls."""

    def __init__(self, make_step: Callable[[], None]) -> None:
        super().__init__()
        self.allow = make_step  # type: ignore[method-assign]


class OpenStream:
    """A stream that is on a clock inside its block, unless it needs none."""

    __slots__ = ("_clock", "_stream")

    def __init__(self, clock: StepClock, stream: PacedStream) -> None:
        self._clock = clock
        self._stream = stream

    def __enter__(self) -> PacedStream:
        if not isinstance(self._stream, UnpacedStream):
            self._clock.add(self._stream)
        return self._stream

    def __exit__(self, *_: object) -> None:
        if not isinstance(self._stream, UnpacedStream):
            self._clock.remove(self._stream)


class StepClock:
    """Allows every open stream a step each `pace` seconds; if `pace` is None, only on `allow`."""

    def __init__(self, pace: float | None) -> None:
        self._pace = pace
        self._streams: dict[PacedStream, None] = {}
        self._timer: asyncio.Handle | None = None

    def open_stream(self, make_step: Callable[[], None] | None = None) -> OpenStream:
        """Put a stream on the clock. With `make_step`, each tick calls that for its next step."""
        if make_step is not None:
            return OpenStream(self, CalledStream(make_step))
        return OpenStream(self, UnpacedStream() if self._pace == 0 else PacedStream())

    def add(self, stream: PacedStream) -> None:
        self._streams[stream] = None
        if self._pace is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(loop.time() + self._pace, self._tick, loop, loop.time())

    def remove(self, stream: PacedStream) -> None:
        del self._streams[stream]
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def allow(self) -> None:
        for stream in self._streams:
            stream.allow()

    def _tick(self, loop: asyncio.AbstractEventLoop, last: float) -> None:
        """Allow a step; ticks that were missed while the loop was busy are dropped."""
        self.allow()
        if not self._pace:
            self._timer = loop.call_soon(self._tick, loop, last)
            return
        due = max(last + self._pace, loop.time() - self._pace)
        self._timer = loop.call_at(due + self._pace, self._tick, loop, due)


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
