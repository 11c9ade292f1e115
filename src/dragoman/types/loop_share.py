"""Keeps many short pieces of work from blocking the event loop.

A request may have thousands of prompts. Each is prepared in a moment, but together they would keep
the event loop from all other requests. So code that works through such a list yields to the loop at
times. So does each stage that goes through the tokens of a very long prompt.

Many requests may come at once, too. Decoding and preparing one takes a fraction of a millisecond,
and asyncio would do that for all of them before it sends the next token of an answer in progress.
So only a few begin in each turn of the event loop, in order of arrival, and running answers go
first.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque

MAX_TOKENS = 16_384  # of a prompt that one piece of work goes through between two turns of others
MAX_SECONDS = 0.005  # of work between two turns of others
STARTS_PER_TURN = 2  # requests that begin in one turn of the event loop


async def yield_after(tokens: int) -> None:
    """Yield to the event loop after work on this many tokens of a prompt, unless they are few."""
    if tokens > MAX_TOKENS:
        await asyncio.sleep(0)


async def unpack_ids(ids: array[int]) -> list[int]:
    """Return token ids as a list; yield to the event loop between the slices of a long prompt."""
    if len(ids) <= MAX_TOKENS:
        return ids.tolist()
    unpacked: list[int] = []
    for start in range(0, len(ids), MAX_TOKENS):
        unpacked += ids[start : start + MAX_TOKENS].tolist()
        await asyncio.sleep(0)
    return unpacked


class LoopShare:
    """One request's share of the event loop while it works through a list."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    @property
    def is_used_up(self) -> bool:
        """Whether this request has kept the event loop busy for long enough."""
        return time.perf_counter() - self._since > MAX_SECONDS

    async def yield_if_due(self) -> None:
        """Yield to the event loop if this request has kept it busy for long enough."""
        if self.is_used_up:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


class StartQueue:
    """Lets a few requests begin in each turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._started = 0  # in this turn
        self._is_scheduled = False

    async def wait_turn(self) -> None:
        """Return once this request may begin."""
        if self._started < STARTS_PER_TURN and not self._waiting:
            self._started += 1
            self._schedule()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._started = 0
        while self._waiting and self._started < STARTS_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # it is done if its client has disconnected
                turn.set_result(None)
                self._started += 1
        if self._started or self._waiting:
            self._schedule()
