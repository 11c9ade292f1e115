"""The gate of one engine: which requests run now, which wait, and which are rejected.

A request takes a place at the gate before any header is sent; where there is none, it is rejected
at once. Then each of its jobs acquires slots, one after the other, and returns them when it ends.
So a request with many prompts takes turns with all others. A job of several choices runs with as
many slots as it is assigned, and its other choices ask again.

The number of places is limited. With API keys, the requests of one key and one priority may take
no more places than are left free, so one key never fills them all. Without keys that holds only
for the lower priorities.

While an engine restarts, the gate is paused: nothing starts, and what waits keeps its place, up to
a time limit. Releasing a ticket that still waits removes it from the queue; the engine never sees
that request.

An owner with one request at a time would lose its turn whenever its answer ends, because its next
request is not there yet. So if its next request would go before all that waits, because it has used
less or because what waits has a lower priority, its slot is kept for it for a moment.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Self

from dragoman.errors import EngineDown, Overloaded
from dragoman.pipeline.admission.fair_queue import (
    ACTIVE_SECONDS,
    SMOOTHING,
    FairQueue,
    SlotClaim,
)
from dragoman.types.limits import PRIORITIES, FindLimits, Priority, find_no_limits

MAX_RETRY_AFTER = 60  # seconds
MAX_KEEP_SECONDS = 0.25  # to keep a slot for an owner whose answer has just ended
KEEP_FRACTION = 0.1  # a slot is kept for at most this part of the mean duration of jobs
DOWN_RETRY_AFTER = 5.0  # seconds
RESTARTING = "The engine is being restarted."


class Ticket:
    """The place of one request: `acquire` slots, work, `release`."""

    def __init__(self, gate: Gate, owner: str, priority: Priority) -> None:
        self._gate = gate
        self.owner = owner
        self.priority: Priority = priority
        self.claims: dict[SlotClaim, asyncio.Future[None] | None] = {}  # a future: it waits

    @property
    def slots(self) -> int | None:
        """How many slots the engine has; None is any number."""
        return self._gate.slots

    async def acquire(
        self,
        wanted: int = 1,
        prompt_tokens: int = 0,
        max_tokens: int | None = None,
        *,
        after: SlotClaim | None = None,
    ) -> SlotClaim:
        """Return once the request may run another job, with at least one slot for it.

        The slots of the job `after` which it runs are returned first, so that others may go before.
        """
        claim = SlotClaim(self.owner, self.priority, wanted, prompt_tokens)
        if max_tokens is not None:
            claim.max_tokens = max_tokens
        if after in self.claims:
            del self.claims[after]
            self._gate.free(after, keeps_order=True)
        self.claims[claim] = None
        try:
            self._gate.push(self, claim)
            if not claim.slots:
                future = self.claims[claim] = asyncio.get_running_loop().create_future()
                await future
        except BaseException:
            self.free(claim)
            raise
        return claim

    def free(self, claim: SlotClaim) -> None:
        """Return the slots of a job. Doing so twice is harmless."""
        if claim not in self.claims:
            return
        future = self.claims.pop(claim)
        if future is not None and future.done() and not future.cancelled():
            future.exception()  # retrieve it, or asyncio logs that it never was
        self._gate.free(claim)

    def wait_until_open(self) -> Awaitable[None]:
        """Wait while the engine restarts; `EngineDown` if that takes too long."""
        return self._gate.wait_until_open()

    @property
    def others_were_running(self) -> bool:
        """Whether jobs were running when the engine stopped, so that one may be the cause."""
        return self._gate.lost_slots > 0

    def release(self) -> None:
        self._gate.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Gate:
    """Runs `slots` choices at once (None: no limit); up to `queue` requests wait."""

    def __init__(
        self,
        slots: int | None,
        queue: int,
        find_limits: FindLimits = find_no_limits,
        clock: Callable[[], float] = time.monotonic,
        *,
        shares_compute: bool = False,
    ) -> None:
        self.slots = slots
        self._places = queue
        self._find_limits = find_limits
        self._clock = clock
        self._queue = FairQueue(slots, shares_compute=shares_compute)
        self._busy_slots = 0
        self._running: set[Ticket] = set()
        self._waiting: dict[Ticket, None] = {}
        self._waiting_counts: dict[tuple[str, Priority], int] = {}
        self._tickets: dict[SlotClaim, Ticket] = {}
        self._kept: dict[str, asyncio.TimerHandle] = {}  # slots kept for owners
        self._assign_timer: asyncio.TimerHandle | None = None
        self._is_open = asyncio.Event()  # the engine does not restart
        self._is_open.set()
        self._problem: str | None = None  # why the engine cannot be used
        self.lost_slots = 0  # slots that were busy when the engine last stopped
        self._restart_timer: asyncio.TimerHandle | None = None
        self._mean_seconds = 1.0  # how long a job runs, a moving average

    @property
    def running(self) -> int:
        """How many requests run, or have run some of their jobs."""
        return len(self._running)

    @property
    def busy_slots(self) -> int:
        return self._busy_slots

    @property
    def waiting(self) -> int:
        """How many requests wait to start."""
        return len(self._waiting)

    def resize(self, queue: int) -> None:
        """Let this many requests wait; those that wait already stay."""
        self._places = queue

    def count_waiting(self, priority: Priority) -> int:
        return sum(count for (_, name), count in self._waiting_counts.items() if name == priority)

    def count_tokens(self) -> int:
        """Count the tokens of the running jobs: their prompts, and their answers so far."""
        counts = [claim.count_tokens() for claim in self._queue.list_running()]
        return sum(count.prompt + count.generated for count in counts)

    # Places

    def enter(
        self, owner: str = "", priority: Priority = "live", already_admitted: bool = False
    ) -> Ticket:
        """Return a ticket for a request, or raise `Overloaded`.

        A request that was `already_admitted` continues a started answer, so a full queue does not
        reject it.
        """
        if not already_admitted and not self._has_place(owner, priority):
            raise Overloaded(
                "Too many requests are waiting for this model. Try again in a moment.",
                retry_after=self.estimate_wait(owner),
            )
        ticket = Ticket(self, owner, priority)
        self._waiting[ticket] = None
        self._waiting_counts[owner, priority] = self._count_waiting_of(owner, priority) + 1
        return ticket

    def _has_place(self, owner: str, priority: Priority) -> bool:
        free = self._places + self._count_free_slots() - len(self._waiting)
        if not owner and priority == PRIORITIES[0]:
            return free > 0
        waiting = self._count_waiting_of(owner, priority)
        return waiting < self._get_weight(owner) * max(0.0, free)

    def _count_waiting_of(self, owner: str, priority: Priority) -> int:
        return self._waiting_counts.get((owner, priority), 0)

    def _get_weight(self, owner: str) -> float:
        return self._find_limits(owner).queue_share

    def leave(self, ticket: Ticket) -> None:
        """Give up a place, and all slots. Doing so twice is harmless."""
        if ticket in self._waiting:
            self._forget_waiting(ticket)
        self._running.discard(ticket)
        for claim in [*ticket.claims]:
            ticket.free(claim)

    def _forget_waiting(self, ticket: Ticket) -> None:
        del self._waiting[ticket]
        key = ticket.owner, ticket.priority
        left = self._waiting_counts.pop(key) - 1
        if left:
            self._waiting_counts[key] = left

    def estimate_wait(self, owner: str = "") -> float:
        """Estimate in how many seconds an owner's next request runs, from how long jobs took."""
        weight = self._get_weight(owner)
        slots = max(1, self.slots or 1) * self._queue.compute_share(owner, weight)
        ahead = sum(self._count_waiting_of(owner, priority) for priority in PRIORITIES)
        seconds = (ahead + 1) * self._mean_seconds / slots
        return float(min(MAX_RETRY_AFTER, max(1, math.ceil(seconds))))

    # Slots

    def _count_free_slots(self) -> float:
        return math.inf if self.slots is None else self.slots - self._busy_slots

    def push(self, ticket: Ticket, claim: SlotClaim) -> None:
        """Add a job to the queue, and run it if it is its turn."""
        kept = self._kept.pop(claim.owner, None)
        if kept is not None:
            kept.cancel()
        self._tickets[claim] = ticket
        self._check_problem()
        now = self._clock()
        self._queue.push(claim, self._find_limits(claim.owner).queue_share, now)
        self._assign_slots(now)

    def free(self, claim: SlotClaim, *, keeps_order: bool = False) -> None:
        """Return the slots of a job, or remove it from the queue.

        With `keeps_order` nothing starts yet: another job of the same request is about to wait.
        """
        del self._tickets[claim]
        slots, now = claim.slots, self._clock()
        self._queue.remove(claim, now)
        if slots:
            self._busy_slots -= slots
            self._mean_seconds += SMOOTHING * (now - claim.started - self._mean_seconds)
            if self.slots is not None and not keeps_order and self._should_keep_slot(claim):
                self._keep_slot(claim.owner)
        if self._queue.wanted_slots and not keeps_order:
            self._assign_slots(now)

    def _should_keep_slot(self, claim: SlotClaim) -> bool:
        return claim.priority == PRIORITIES[0] and self._queue.goes_first(claim.owner)

    def _keep_slot(self, owner: str) -> None:
        seconds = min(MAX_KEEP_SECONDS, KEEP_FRACTION * self._mean_seconds)
        loop = asyncio.get_running_loop()
        self._kept[owner] = loop.call_later(seconds, self._stop_keeping, owner)

    def _stop_keeping(self, owner: str) -> None:
        del self._kept[owner]
        self._assign_slots()

    def _assign_slots(self, now: float | None = None) -> None:
        """Let the jobs whose turn it is run."""
        ready: dict[SlotClaim, None] = {}
        if now is None:
            now = self._clock()
        queue, kept = self._queue, self._kept
        is_open = self._is_open.is_set() and self._problem is None
        while is_open and queue.wanted_slots:
            free = math.inf if self.slots is None else self.slots - self._busy_slots - len(kept)
            claim = queue.take_turn(now, free, kept) if free > 0 else None
            if claim is None:
                if free > 0:
                    self._assign_later()
                break
            self._busy_slots += 1
            ready[claim] = None
        for claim in ready:
            ticket, claim.started = self._tickets[claim], now
            queue.start(claim)
            if ticket in self._waiting:
                self._forget_waiting(ticket)
            self._running.add(ticket)
            future = ticket.claims[claim]
            if future is not None and not future.done():
                future.set_result(None)

    def _assign_later(self) -> None:
        """Try again when owners for which slots stay free may no longer be active."""
        if self._assign_timer is None:
            loop = asyncio.get_running_loop()
            self._assign_timer = loop.call_later(ACTIVE_SECONDS, self._assign_again)

    def _assign_again(self) -> None:
        self._assign_timer = None
        self._assign_slots()

    # Restarts of the engine

    def pause(self, timeout: float) -> None:
        """Start nothing until `resume`. After `timeout` seconds, what waits fails."""
        if self._restart_timer is None:
            self._problem = None
            self.lost_slots = self._busy_slots
            self._is_open.clear()
            loop = asyncio.get_running_loop()
            self._restart_timer = loop.call_later(timeout, self.close, RESTARTING)

    def resume(self) -> None:
        """Let requests run again; harmless if the gate is not paused."""
        self._stop_timer()
        self._problem = None
        self._is_open.set()
        self._assign_slots()

    def close(self, problem: str) -> None:
        """Fail all waiting and new requests until `resume`."""
        self._stop_timer()
        self._problem = problem
        self._is_open.set()  # wakes those who wait for it
        for claim, ticket in list(self._tickets.items()):
            future = ticket.claims[claim]
            if not claim.slots and future is not None and not future.done():
                future.set_exception(make_down_error(problem))

    def _stop_timer(self) -> None:
        if self._restart_timer is not None:
            self._restart_timer.cancel()
            self._restart_timer = None

    @property
    def is_open(self) -> bool:
        """Whether the engine neither restarts nor has failed."""
        return self._problem is None and self._is_open.is_set()

    async def wait_until_open(self) -> None:
        """Wait while the engine restarts; `EngineDown` if that takes too long."""
        if not self._is_open.is_set():
            await self._is_open.wait()
        self._check_problem()

    def _check_problem(self) -> None:
        if self._problem is not None:
            raise make_down_error(self._problem)


def make_down_error(problem: str) -> EngineDown:
    return EngineDown(problem, retry_after=DOWN_RETRY_AFTER)
