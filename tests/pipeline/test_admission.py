"""Admission: places, slots, and what happens to both while an engine restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from dragoman.errors import EngineDown, Overloaded
from dragoman.models.model import Model
from dragoman.pipeline.admission import Admission, Gate, SlotClaim, Ticket
from dragoman.prompt.renderer import PromptRenderer
from dragoman.testing import ScriptedEngine
from dragoman.types import Capabilities, KeyLimits


def run(check: Coroutine[object, object, None]) -> None:
    asyncio.run(check)


def start(ticket: Ticket, wanted: int = 1) -> asyncio.Task[SlotClaim]:
    return asyncio.ensure_future(ticket.acquire(wanted))


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_full_queue_rejects_with_retry_after() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=1)
        tasks = [start(gate.enter()) for _ in range(2)]
        await settle()
        assert (gate.running, gate.waiting) == (1, 1)
        with pytest.raises(Overloaded) as rejection:
            gate.enter()
        assert rejection.value.status == 429
        assert rejection.value.retry_after is not None
        assert rejection.value.retry_after >= 1
        tasks[1].cancel()

    run(check())


def test_requests_that_are_being_prepared_take_places() -> None:
    gate = Gate(slots=2, queue=3)
    for _ in range(5):
        gate.enter()
    assert (gate.running, gate.waiting) == (0, 5)
    with pytest.raises(Overloaded):
        gate.enter()


def test_admitted_request_is_not_rejected_again() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=0)
        ticket = gate.enter()
        await ticket.acquire()
        continuation = start(gate.enter(already_admitted=True))
        await settle()
        assert not continuation.done()
        with pytest.raises(Overloaded):
            gate.enter()
        ticket.release()
        await continuation

    run(check())


def test_leaving_the_queue_makes_room() -> None:
    async def check() -> None:
        gate = Gate(slots=1, queue=1)
        running, waiting = gate.enter(), gate.enter()
        await running.acquire()
        task = start(waiting)
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert gate.waiting == 1  # its place is its own until it is released
        waiting.release()
        assert gate.waiting == 0
        continuation = start(gate.enter())
        running.release()
        running.release()  # releasing twice is harmless
        await continuation
        assert (gate.running, gate.waiting, gate.busy_slots) == (1, 0, 1)

    run(check())


def test_more_choices_than_slots_take_all_slots() -> None:
    async def check() -> None:
        gate = Gate(slots=2, queue=1)
        with gate.enter() as ticket:
            assert (await ticket.acquire(128)).slots == 2
            waiting = start(gate.enter())
            await settle()
            assert not waiting.done()
        assert (await waiting).slots == 1
        assert gate.running == 1

    run(check())


def test_jobs_of_one_request_take_turns_with_other_requests() -> None:
    async def check() -> None:
        gate, order = Gate(slots=1, queue=9), []

        async def work(name: str, jobs: int) -> None:
            with gate.enter() as ticket:
                for _ in range(jobs):
                    claim = await ticket.acquire()
                    order.append(name)
                    await asyncio.sleep(0)
                    ticket.free(claim)

        await asyncio.gather(work("many", 5), work("one", 1), work("two", 2))
        assert order == ["many", "one", "two", "many", "two", "many", "many", "many"]
        assert (gate.running, gate.waiting, gate.busy_slots) == (0, 0, 0)

    run(check())


def test_without_a_slot_limit_every_request_runs() -> None:
    async def check() -> None:
        gate = Gate(slots=None, queue=0)
        tickets = [gate.enter() for _ in range(1000)]
        for ticket in tickets:
            assert (await ticket.acquire(3)).slots == 3
        assert gate.running == 1000
        for ticket in tickets:
            ticket.release()
        assert (gate.running, gate.busy_slots) == (0, 0)

    run(check())


def fill(gate: Gate, owner: str, **options: str) -> int:
    """Enter requests until one is rejected, and return how many have entered."""
    count = 0
    try:
        while True:
            gate.enter(owner, **options)  # type: ignore[arg-type]
            count += 1
    except Overloaded:
        return count


@pytest.mark.parametrize(
    ("queue", "owners", "expected"),
    [
        (64, ["a"], [32]),
        (64, ["a", "b", "c", "d"], [32, 16, 8, 4]),
        (1, ["a", "b"], [1, 0]),
        (2, ["a", "b", "c"], [1, 1, 0]),
        (64, ["half", "a"], [22, 21]),
        (64, ["twice", "a"], [43, 11]),
        (64, [""], [64]),  # without keys
    ],
)
def test_one_key_never_fills_the_queue(queue: int, owners: list[str], expected: list[int]) -> None:
    shares = {"half": 0.5, "twice": 2.0}
    gate = Gate(0, queue, lambda owner: KeyLimits(queue_share=shares.get(owner, 1.0)))
    assert [fill(gate, owner) for owner in owners] == expected


@pytest.mark.parametrize("owner", ["", "key"])
def test_background_requests_leave_places_for_live_ones(owner: str) -> None:
    gate = Gate(slots=0, queue=64)
    assert fill(gate, owner, priority="background") == 32
    assert gate.count_waiting("background") == 32
    assert fill(gate, owner) >= 16
    assert gate.count_waiting("live") >= 16


def test_retry_after_depends_on_the_owner() -> None:
    now = 0.0
    gate = Gate(1, 64, clock=lambda: now)

    async def check() -> None:
        nonlocal now
        for _ in range(20):  # a job takes four seconds
            with gate.enter("flood") as ticket:
                await ticket.acquire()
                now += 4
        tickets = [gate.enter("flood") for _ in range(9)]
        tasks = [start(ticket) for ticket in tickets]
        await settle()
        assert gate.estimate_wait("other") <= 8
        assert gate.estimate_wait("flood") >= 32
        for task in tasks:
            task.cancel()

    run(check())


def test_a_slot_is_kept_for_an_owner_that_used_less() -> None:
    """The owner with one request at a time is not overtaken between two of its requests."""

    async def check() -> None:
        gate = Gate(slots=1, queue=64)
        first = gate.enter("flood")
        claim = await first.acquire()
        flood = start(gate.enter("flood"))
        light = start(ticket := gate.enter("light"))
        await settle()
        claim.count_generated = lambda: 1000
        first.release()
        for _ in range(5):
            (await light).count_generated = lambda: 10
            ticket.release()
            await settle()
            assert not flood.done()
            light = start(ticket := gate.enter("light"))
        await light
        ticket.release()
        await flood  # the slot is not kept for long

    run(check())


def test_what_waits_keeps_its_place_while_the_engine_restarts() -> None:
    async def check() -> None:
        gate = Gate(slots=2, queue=64)
        running = gate.enter()
        await running.acquire(2)
        waiting = [start(gate.enter()) for _ in range(2)]
        arriving = asyncio.ensure_future(gate.enter().wait_until_open())
        gate.pause(60)
        running.release()
        await settle()
        assert not any(task.done() for task in [*waiting, arriving][:2])
        gate.resume()
        await asyncio.gather(*waiting, arriving)
        assert gate.busy_slots == 2

    run(check())


@pytest.mark.parametrize("stops", [False, True])
def test_an_engine_that_stays_away_fails_what_waits(stops: bool) -> None:
    async def check() -> None:
        gate = Gate(slots=0, queue=64)
        waiting = start(gate.enter())
        await settle()
        gate.pause(0 if not stops else 60)
        arriving = asyncio.ensure_future(gate.enter().wait_until_open())
        await settle()
        if stops:
            gate.close("The engine has been stopped.")
        for task in (waiting, arriving, start(gate.enter())):
            with pytest.raises(EngineDown) as failure:
                await task
            assert failure.value.retry_after is not None

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
    gates[0].enter()
    with pytest.raises(Overloaded):
        gates[0].enter()
    models.clear()
    assert len(admission._gates) == 0  # a gate goes away with its model
