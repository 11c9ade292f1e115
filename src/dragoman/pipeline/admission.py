"""Who may start now, who waits, and who is told to come back later.

A `Gate` stands before an engine. It lets as many choices run as the engine has slots, keeps a
bounded first-come queue behind them, and refuses what does not fit in the queue at once, before
anything was promised. A ticket that is given back while it waits leaves the queue without having
touched the engine.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from dragoman.errors import Overloaded


class Ticket:
    """A place at the gate: first `wait`, then work, always `release`."""

    def __init__(self, gate: Gate, weight: int) -> None:
        self._gate = gate
        self._weight = weight
        self._turn: asyncio.Future[None] | None = None
        self._since: float | None = None

    async def wait(self) -> None:
        """Return when it is this ticket's turn."""
        if self._turn is not None:
            await self._turn

    def release(self) -> None:
        self._gate.leave(self)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def weight(self) -> int:
        return self._weight

    @property
    def running(self) -> bool:
        return self._since is not None

    def begin(self) -> None:
        self._since = time.monotonic()
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def queue(self) -> None:
        self._turn = asyncio.get_running_loop().create_future()

    def end(self) -> float | None:
        """How long it ran, once; None if it never did or has ended before."""
        since, self._since = self._since, None
        return None if since is None else time.monotonic() - since


class Gate:
    """`slots` choices run at once (None: no limit), `queue` requests may wait."""

    def __init__(self, slots: int | None, queue: int) -> None:
        self.slots = slots
        self._queue = queue
        self._busy = 0
        self._running = 0
        self._waiting: deque[Ticket] = deque()
        self._typical = 1.0  # seconds a request runs, a moving average

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, choices: int, again: bool = False) -> Ticket:
        """A ticket for a request of so many choices, or `Overloaded`.

        One that comes `again` has been let in before, and is not turned away half done.
        """
        ticket = Ticket(self, min(choices, self.slots) if self.slots else 0)
        if not self._waiting and self._fits(ticket):
            self._start(ticket)
        elif len(self._waiting) >= self._queue and not again:
            raise Overloaded(
                "Too many requests are waiting for this model. Try again in a moment.",
                retry_after=self.retry_after(),
            )
        else:
            ticket.queue()
            self._waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        ran = ticket.end()
        if ran is not None:
            self._typical += 0.2 * (ran - self._typical)
            self._busy -= ticket.weight
            self._running -= 1
        elif ticket in self._waiting:
            self._waiting.remove(ticket)
        while self._waiting and self._fits(self._waiting[0]):
            self._start(self._waiting.popleft())

    def retry_after(self) -> float:
        """When a place should be free, from how long requests have taken."""
        rounds = (len(self._waiting) + 1) / max(1, self.slots or 1)
        return float(min(60, max(1, math.ceil(rounds * self._typical))))

    def _fits(self, ticket: Ticket) -> bool:
        return self.slots is None or self._busy + ticket.weight <= self.slots

    def _start(self, ticket: Ticket) -> None:
        self._busy += ticket.weight
        self._running += 1
        ticket.begin()
