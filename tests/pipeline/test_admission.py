"""Admission: slots, and a bounded queue in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from dragoman.errors import Overloaded
from dragoman.models.model import Model
from dragoman.pipeline.admission import Admission, Gate, Ticket
from dragoman.prompt.renderer import PromptRenderer
from dragoman.testing import ScriptedEngine
from dragoman.types import Capabilities


def run(check: Coroutine[object, object, None]) -> None:
    asyncio.run(check)


async def is_waiting(ticket: Ticket) -> bool:
    """Whether the ticket still waits to run."""
    return bool((await asyncio.wait([asyncio.ensure_future(ticket.wait())], timeout=0))[1])


def test_full_queue_rejects_with_retry_after() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=1)
        gate.enter(1)
        gate.enter(1)
        assert (gate.running, gate.waiting) == (1, 1)
        with pytest.raises(Overloaded) as rejection:
            gate.enter(1)
        assert rejection.value.status == 429
        assert rejection.value.retry_after is not None
        assert rejection.value.retry_after >= 1

    run(check())


def test_admitted_request_is_not_rejected_again() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=0)
        running = gate.enter(1)
        continuation = gate.enter(1, already_admitted=True)
        assert await is_waiting(continuation)
        with pytest.raises(Overloaded):
            gate.enter(1)
        running.release()
        assert not await is_waiting(continuation)

    run(check())


def test_slots_are_assigned_in_order_of_arrival() -> None:
    async def check() -> None:
        gate = Gate(slots=2, queue=9)
        first, wide, small = gate.enter(1), gate.enter(2), gate.enter(1)
        assert not await is_waiting(first)
        assert await is_waiting(wide)
        assert await is_waiting(small)  # it would fit, but the wide one came first
        first.release()
        assert not await is_waiting(wide)
        assert await is_waiting(small)
        wide.release()
        assert not await is_waiting(small)

    run(check())


def test_leaving_the_queue_makes_room() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=1)
        running, waiting = gate.enter(1), gate.enter(1)
        waiting.release()
        assert gate.waiting == 0
        continuation = gate.enter(1)
        running.release()
        running.release()  # releasing twice is harmless
        assert not await is_waiting(continuation)
        assert (gate.running, gate.waiting) == (1, 0)

    run(check())


def test_more_choices_than_slots_take_all_slots() -> None:
    async def check() -> None:
        gate = Gate(slots=2, queue=1)
        with gate.enter(128) as ticket:
            assert not await is_waiting(ticket)
            assert await is_waiting(gate.enter(1))
        assert gate.running == 1

    run(check())


def test_without_a_slot_limit_every_request_runs() -> None:
    async def check() -> None:
        gate = Gate(slots=None, queue=0)
        tickets = [gate.enter(3) for _ in range(1000)]
        assert gate.running == 1000
        for ticket in tickets:
            ticket.release()
        assert gate.running == 0

    run(check())


def test_every_model_has_its_own_gate() -> None:
    models = [
        Model(
            id="m",
            engine=ScriptedEngine("x"),
            capabilities=Capabilities(slots=slots),
            renderer=PromptRenderer(None, None),
        )
        for slots in (1, 2)
    ]
    admission = Admission(queue=0)
    gates = [admission.get_gate(model) for model in models]
    assert [gate.slots for gate in gates] == [1, 2]
    assert admission.get_gate(models[0]) is gates[0]
    gates[0].enter(1)
    with pytest.raises(Overloaded):
        gates[0].enter(1)
    models.clear()
    assert len(admission._gates) == 0  # a gate goes away with its model
