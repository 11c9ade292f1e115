"""Computes the inputs of one request in slices, each of which waits in the queue of the model.

A request may have thousands of inputs to embed or score. They are computed in slices, and
other requests run between two slices (`admission`), so it cannot block the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from dragoman.models.residency import Lease
from dragoman.pipeline.admission import SlotClaim, Ticket
from dragoman.pipeline.services import Services
from dragoman.telemetry.record import get_record
from dragoman.types.limits import get_priority

T = TypeVar("T")
SLICE_INPUTS, SLICE_TOKENS = 32, 4096  # the most that one slice has


@asynccontextmanager
async def lease_model(
    name: str, services: Services, owner: str, keep_alive: float | None = None
) -> AsyncGenerator[Lease, None]:
    """Hold a lease on the model of a request, and set the model in its record."""
    record = get_record()
    record.requested_model = name
    with record.measure("resolve"):
        lease = await services.models.acquire(name, owner=owner, keep_alive=keep_alive)
    with lease as model:
        record.model = model.id
        yield lease


class SliceRunner:
    """Computes inputs of one request in slices."""

    def __init__(self, ticket: Ticket, stage: str) -> None:
        self._ticket = ticket
        self._stage = stage
        self._claim: SlotClaim | None = None

    async def run(
        self,
        items: Sequence[T],
        measure: Callable[[T], int],
        compute: Callable[[list[T]], Awaitable[None]],
    ) -> None:
        """Compute all items; `measure` returns how many tokens one has."""
        record = get_record()
        for part in split_items(items, measure):
            with record.measure("queue"):
                await self._acquire(len(part), sum(map(measure, part)))
            with record.measure(self._stage):
                await compute(part)

    async def _acquire(self, count: int, tokens: int) -> None:
        """Wait for a slot. An input costs a step of the engine, as a generated token."""
        self._claim = await self._ticket.acquire(
            prompt_tokens=tokens, max_tokens=count, after=self._claim
        )
        self._claim.count_generated = lambda: count


@contextmanager
def queue_slices(
    lease: Lease, services: Services, owner: str, tokens: int, stage: str
) -> Iterator[SliceRunner]:
    """Take a place in the queue of the model, for a request with this many tokens."""
    with (
        services.limiter.reserve_tokens(owner, tokens, 0),
        services.admission.get_gate(lease.model).enter(owner, get_priority()) as ticket,
    ):
        yield SliceRunner(ticket, stage)


def split_items(items: Sequence[T], measure: Callable[[T], int]) -> list[list[T]]:
    """Split items into slices of at most `SLICE_INPUTS` items and `SLICE_TOKENS` tokens."""
    slices: list[list[T]] = []
    tokens = 0
    for item in items:
        size = measure(item)
        if not slices or len(slices[-1]) == SLICE_INPUTS or tokens + size > SLICE_TOKENS:
            slices.append([])
            tokens = 0
        slices[-1].append(item)
        tokens += size
    return slices
