"""Many requests at once take turns with what is running."""

from __future__ import annotations

import asyncio

from dragoman.types.loop_share import STARTS_PER_TURN, StartQueue


def run_starts(count: int, *, cancelled: frozenset[int] = frozenset()) -> list[list[int]]:
    """Start requests at once; return which of them began in each turn of the event loop."""

    async def go() -> list[list[int]]:
        queue, turns = StartQueue(), [[]]  # type: ignore[var-annotated]

        async def start(number: int) -> None:
            await queue.wait_turn()
            turns[-1].append(number)

        tasks = [asyncio.create_task(start(number)) for number in range(count)]
        await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
        while not all(task.done() for task in tasks):
            turns.append([])
            await asyncio.sleep(0)
        return [turn for turn in turns if turn]

    return asyncio.run(go())


def test_a_few_requests_begin_in_each_turn_in_order() -> None:
    turns = run_starts(9)
    assert [number for turn in turns for number in turn] == list(range(9))
    assert max(map(len, turns)) == STARTS_PER_TURN


def test_a_request_that_is_cancelled_keeps_nobody_waiting() -> None:
    turns = run_starts(9, cancelled=frozenset({3, 4, 5}))
    assert [number for turn in turns for number in turn] == [0, 1, 2, 6, 7, 8]


def test_one_request_begins_at_once() -> None:
    async def go() -> bool:
        queue = StartQueue()
        for _ in range(3):  # one after the other
            waiting = queue.wait_turn()
            try:
                waiting.send(None)
            except StopIteration:
                await asyncio.sleep(0)
                continue
            return False
        return True

    assert asyncio.run(go())
