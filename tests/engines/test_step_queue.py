"""Merging steps, and the queue in which they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engines.step_queue import MERGE_THRESHOLD, StepQueue, merge_steps
from dragoman.errors import EngineFailed
from dragoman.types import Logprob, Step

pytestmark = pytest.mark.slow

logprobs = st.builds(Logprob, st.integers(0, 9), st.floats(-9, 0))


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    """Steps as an engine may yield them: a few choices, each with text, ids or both."""
    steps: list[Step] = []
    for choice in range(draw(st.integers(1, 3))):
        fields = draw(st.sampled_from(["text", "ids", "both"]))
        with_logprobs = draw(st.booleans())
        own = [
            _draw_step(draw, choice, fields, with_logprobs) for _ in range(draw(st.integers(0, 6)))
        ]
        ending = draw(st.sampled_from(["none", "bare", "stop"]))
        if ending == "bare":
            own.append(Step(choice, finish="length"))
        elif ending == "stop":
            own.append(Step(choice, tokens=1, finish="stop", stop_id=2))
        steps += own
    order = draw(st.permutations(range(len(steps))))
    waiting = {choice: [step for step in steps if step.choice == choice] for choice in range(3)}
    return [waiting[steps[index].choice].pop(0) for index in order]


def _draw_step(draw: st.DrawFn, choice: int, fields: str, with_logprobs: bool) -> Step:
    count = draw(st.integers(1, 3))
    ids = draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
    text = draw(st.text(max_size=3))
    drawn = draw(st.lists(logprobs, min_size=count, max_size=count)) if with_logprobs else []
    return Step(
        choice,
        None if fields == "ids" else text,
        [] if fields == "text" else ids,
        count,
        drawn,
        prompt_tokens=draw(st.none() | st.integers(1, 5)) if choice == 0 else None,
    )


def fold(steps: list[Step]) -> dict[int, Any]:
    """Add the steps of each choice up."""
    totals: dict[int, Any] = {}
    for step in steps:
        entry = totals.setdefault(step.choice, ["", [], 0, [], None, None, None])
        entry[0] += step.text or ""
        entry[1] += step.ids
        entry[2] += step.tokens
        entry[3] += step.logprobs
        entry[4] = step.finish or entry[4]
        entry[5] = entry[5] if step.stop_id is None else step.stop_id
        entry[6] = entry[6] if step.prompt_tokens is None else step.prompt_tokens
    return totals


@given(sequences())
@settings(max_examples=300)
def test_merging_changes_no_totals(steps: list[Step]) -> None:
    assert fold(merge_steps(steps)) == fold(steps)


@given(sequences())
@settings(max_examples=200)
def test_merging_twice_is_merging_once(steps: list[Step]) -> None:
    once = merge_steps(steps)
    assert merge_steps(once) == once


@given(sequences(), st.integers(0, 20))
@settings(max_examples=200)
def test_merging_in_parts_is_merging_at_once(steps: list[Step], cut: int) -> None:
    assert merge_steps(merge_steps(steps[:cut]) + steps[cut:]) == merge_steps(steps)


@given(sequences())
@settings(max_examples=200)
def test_at_most_two_steps_remain_for_each_choice(steps: list[Step]) -> None:
    assert len(merge_steps(steps)) <= 2 * len({step.choice for step in steps})


@given(sequences())
@settings(max_examples=200)
def test_ids_and_their_logprobs_stay_together(steps: list[Step]) -> None:
    for step in merge_steps(steps):
        if step.ids:
            assert step.tokens == len(step.ids)
            assert len(step.logprobs) in (0, len(step.ids))


# the queue


def test_a_queue_is_bounded_by_the_answer_and_loses_nothing() -> None:
    async def go() -> None:
        queue, sent = StepQueue(), []
        for token in range(5000):
            step = Step(token % 2, None, [token], 1)
            sent.append(step)
            queue.put([step])
            assert len(queue) <= MERGE_THRESHOLD
        assert fold(await queue.take()) == fold(sent)

    asyncio.run(go())


def test_a_queue_returns_all_steps_before_its_end() -> None:
    async def go() -> None:
        ended, failed = StepQueue(), StepQueue()
        for queue in (ended, failed):
            queue.put([Step(text="a")])
        ended.end()
        failed.end(EngineFailed("broken"))
        failed.end(None)
        assert [step.text for step in await ended.take()] == ["a"]
        assert await ended.take() == []
        assert [step.text for step in await failed.take()] == ["a"]
        with pytest.raises(EngineFailed):
            await failed.take()

    asyncio.run(go())


def test_a_waiting_reader_is_woken() -> None:
    async def go() -> None:
        queue = StepQueue()
        waiting = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        queue.put([Step(text="a")])
        queue.put([Step(text="b")])
        assert "".join(step.text or "" for step in await waiting) == "ab"

    asyncio.run(go())


# delivery: a consumer is called where steps arrive


class Collector:
    """A consumer that collects steps, and waits or fails where a test asks for it."""

    def __init__(self, count: int = 99) -> None:
        self.steps: list[Step] = []
        self.calls = 0
        self.gate: asyncio.Future[None] | None = None
        self.error: Exception | None = None
        self._count = count

    @property
    def is_complete(self) -> bool:
        return len(self.steps) >= self._count

    def consume(self, steps: list[Step]) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.steps += steps
        return None if self.gate is None else self._wait(self.gate)

    async def _wait(self, gate: asyncio.Future[None]) -> None:
        await asyncio.shield(gate)


def run_delivery(work: Callable[[StepQueue, asyncio.Task[None]], Any], consumer: Collector) -> None:
    async def go() -> None:
        queue = StepQueue()
        delivery = asyncio.create_task(queue.deliver(consumer))
        await asyncio.sleep(0)
        await work(queue, delivery)

    asyncio.run(go())


def test_a_consumer_is_called_where_steps_arrive() -> None:
    consumer = Collector()

    async def work(queue: StepQueue, delivery: asyncio.Task[None]) -> None:
        for text in "abc":
            queue.put([Step(text=text)])
            assert consumer.steps[-1].text == text  # without a turn of the event loop
        queue.end()
        await delivery

    run_delivery(work, consumer)


def test_steps_wait_while_a_consumer_does() -> None:
    consumer = Collector()

    async def work(queue: StepQueue, delivery: asyncio.Task[None]) -> None:
        gate = consumer.gate = asyncio.get_running_loop().create_future()
        sent = [Step(0, None, [token], 1) for token in range(5000)]
        for step in sent:
            queue.put([step])
            assert len(queue) <= MERGE_THRESHOLD
        assert consumer.calls == 1
        consumer.gate = None
        gate.set_result(None)
        queue.end()
        await delivery
        assert fold(consumer.steps) == fold(sent)
        assert consumer.calls == 2

    run_delivery(work, consumer)


def test_a_complete_consumer_ends_the_delivery() -> None:
    consumer = Collector(count=2)

    async def work(queue: StepQueue, delivery: asyncio.Task[None]) -> None:
        for text in "abc":
            queue.put([Step(text=text)])
        await delivery
        assert [step.text for step in consumer.steps] == ["a", "b"]

    run_delivery(work, consumer)


def test_what_a_consumer_raises_ends_the_delivery_and_nothing_else() -> None:
    consumer = Collector()
    consumer.error = ValueError("broken")

    async def work(queue: StepQueue, delivery: asyncio.Task[None]) -> None:
        queue.put([Step(text="a")])
        queue.put([Step(text="b")])
        with pytest.raises(ValueError, match="broken"):
            await delivery

    run_delivery(work, consumer)


def test_the_error_of_the_queue_comes_after_its_steps() -> None:
    consumer = Collector()

    async def work(queue: StepQueue, delivery: asyncio.Task[None]) -> None:
        queue.put([Step(text="a")])
        queue.end(EngineFailed("broken"))
        with pytest.raises(EngineFailed):
            await delivery
        assert [step.text for step in consumer.steps] == ["a"]

    run_delivery(work, consumer)


@pytest.mark.parametrize("cancels_first", [True, False])
def test_a_cancelled_delivery_awaits_nothing_more(cancels_first: bool) -> None:
    """Warnings are errors: a coroutine that nobody awaits is closed."""
    consumer = Collector()

    async def work(queue: StepQueue, delivery: asyncio.Task[None]) -> None:
        consumer.gate = asyncio.get_running_loop().create_future()
        if cancels_first:
            delivery.cancel()
        queue.put([Step(text="a")])
        delivery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivery
        queue.put([Step(text="b")])
        assert [step.text for step in consumer.steps] == ["a"]

    run_delivery(work, consumer)
