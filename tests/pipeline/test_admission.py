"""The gate: slots, a bounded queue, first come first served."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import Overloaded
from dragoman.pipeline.admission import Gate, Ticket


def run(check: object) -> None:
    asyncio.run(check)  # type: ignore[arg-type]


async def waits(ticket: Ticket) -> bool:
    """Whether it is not yet this ticket's turn."""
    return bool((await asyncio.wait([asyncio.ensure_future(ticket.wait())], timeout=0))[1])


def test_d85_what_does_not_fit_in_the_queue_is_refused_with_a_time() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=1)
        gate.enter(1)
        gate.enter(1)
        assert (gate.running, gate.waiting) == (1, 1)
        with pytest.raises(Overloaded) as refusal:
            gate.enter(1)
        assert refusal.value.status == 429
        assert refusal.value.retry_after is not None
        assert refusal.value.retry_after >= 1

    run(check())


def test_who_comes_again_is_not_turned_away() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=0)
        running = gate.enter(1)
        again = gate.enter(1, already_admitted=True)
        assert await waits(again)
        with pytest.raises(Overloaded):
            gate.enter(1)
        running.release()
        assert not await waits(again)

    run(check())


def test_places_go_to_the_first_who_came() -> None:
    async def check() -> None:
        gate = Gate(slots=2, queue=9)
        first, wide, small = gate.enter(1), gate.enter(2), gate.enter(1)
        assert not await waits(first)
        assert await waits(wide)
        assert await waits(small)  # it would fit, but it came after the wide one
        first.release()
        assert not await waits(wide)
        assert await waits(small)
        wide.release()
        assert not await waits(small)

    run(check())


def test_leaving_the_queue_frees_the_place() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=1)
        running, waiting = gate.enter(1), gate.enter(1)
        waiting.release()
        assert gate.waiting == 0
        again = gate.enter(1)
        running.release()
        running.release()  # twice is once
        assert not await waits(again)
        assert (gate.running, gate.waiting) == (1, 0)

    run(check())


def test_more_choices_than_slots_take_all_slots() -> None:
    async def check() -> None:
        gate = Gate(slots=2, queue=1)
        with gate.enter(128) as ticket:
            assert not await waits(ticket)
            assert await waits(gate.enter(1))
        assert gate.running == 1

    run(check())


def test_without_slots_everyone_runs() -> None:
    async def check() -> None:
        gate = Gate(slots=None, queue=0)
        tickets = [gate.enter(3) for _ in range(1000)]
        assert gate.running == 1000
        for ticket in tickets:
            ticket.release()
        assert gate.running == 0

    run(check())
