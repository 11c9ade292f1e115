"""Admission control: which requests run now, which wait, and which are rejected.

Each loaded model has a `Gate`. A gate runs as many choices at once as the engine has slots, queues
a bounded number of requests behind them in order of arrival, and rejects a request at once when the
queue is full, before any header is sent. Releasing a ticket that still waits removes it from the
queue; the engine never sees that request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Self
from weakref import WeakKeyDictionary

from dragoman.errors import Overloaded
from dragoman.models.model import Model

DEFAULT_QUEUE = 256


class Ticket:
    """A place at the gate: first `wait`, then work, always `release`."""

    def __init__(self, gate: Gate, weight: int) -> None:
        self._gate = gate
        self._weight = weight
        self._admitted: asyncio.Future[None] | None = None
        self._started: float | None = None
        self.count_tokens: Callable[[], int] = lambda: 0  # in the context of the running request

    async def wait(self) -> None:
        """Return when the request may run."""
        if self._admitted is not None:
            await self._admitted

    def release(self) -> None:
        self._gate.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def weight(self) -> int:
        return self._weight

    @property
    def running(self) -> bool:
        return self._started is not None

    def start(self) -> None:
        self._started = time.monotonic()
        if self._admitted is not None and not self._admitted.done():
            self._admitted.set_result(None)

    def enqueue(self) -> None:
        self._admitted = asyncio.get_running_loop().create_future()

    def stop(self) -> float | None:
        """Return how long the request ran; None if it never ran or was stopped before."""
        started, self._started = self._started, None
        return None if started is None else time.monotonic() - started


class Gate:
    """Runs `slots` choices at once (None: no limit); up to `queue` requests wait."""

    def __init__(self, slots: int | None, queue: int) -> None:
        self.slots = slots
        self._queue = queue
        self._busy_slots = 0
        self._running: set[Ticket] = set()
        self._waiting: deque[Ticket] = deque()
        self._mean_seconds = 1.0  # how long a request runs, a moving average

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def busy_slots(self) -> int:
        return self._busy_slots

    def count_tokens(self) -> int:
        """Count the tokens of the running requests: their prompts, and their answers so far."""
        return sum(ticket.count_tokens() for ticket in self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, choices: int, already_admitted: bool = False) -> Ticket:
        """Return a ticket for a request with this many choices, or raise `Overloaded`.

        A request that was `already_admitted` continues a started answer, so a full queue does not
        reject it.
        """
        ticket = Ticket(self, min(choices, self.slots) if self.slots else 0)
        if not self._waiting and self._fits(ticket):
            self._start(ticket)
        elif len(self._waiting) >= self._queue and not already_admitted:
            raise Overloaded(
                "Too many requests are waiting for this model. Try again in a moment.",
                retry_after=self.estimate_wait(),
            )
        else:
            ticket.enqueue()
            self._waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        seconds = ticket.stop()
        if seconds is not None:
            self._mean_seconds += 0.2 * (seconds - self._mean_seconds)
            self._busy_slots -= ticket.weight
            self._running.discard(ticket)
        elif ticket in self._waiting:
            self._waiting.remove(ticket)
        while self._waiting and self._fits(self._waiting[0]):
            self._start(self._waiting.popleft())

    def estimate_wait(self) -> float:
        """Estimate in how many seconds a slot becomes free, from how long requests took."""
        rounds = (len(self._waiting) + 1) / max(1, self.slots or 1)
        return float(min(60, max(1, math.ceil(rounds * self._mean_seconds))))

    def _fits(self, ticket: Ticket) -> bool:
        return self.slots is None or self._busy_slots + ticket.weight <= self.slots

    def _start(self, ticket: Ticket) -> None:
        self._busy_slots += ticket.weight
        self._running.add(ticket)
        ticket.start()


class Admission:
    """The gates of all loaded models. A gate goes away with its model."""

    def __init__(self, queue: int = DEFAULT_QUEUE) -> None:
        self._queue = queue
        self._gates: WeakKeyDictionary[Model, Gate] = WeakKeyDictionary()

    def get_gate(self, model: Model) -> Gate:
        gate = self._gates.get(model)
        if gate is None:
            gate = self._gates[model] = Gate(model.capabilities.slots, self._queue)
        return gate
