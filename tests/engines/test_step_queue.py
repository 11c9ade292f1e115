"""Merging steps, and the queue in which they wait."""

from __future__ import annotations

import asyncio
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
@settings(max_examples=300, deadline=None)
def test_merging_changes_no_totals(steps: list[Step]) -> None:
    assert fold(merge_steps(steps)) == fold(steps)


@given(sequences())
@settings(max_examples=200, deadline=None)
def test_merging_twice_is_merging_once(steps: list[Step]) -> None:
    once = merge_steps(steps)
    assert merge_steps(once) == once


@given(sequences(), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_merging_in_parts_is_merging_at_once(steps: list[Step], cut: int) -> None:
    assert merge_steps(merge_steps(steps[:cut]) + steps[cut:]) == merge_steps(steps)


@given(sequences())
@settings(max_examples=200, deadline=None)
def test_at_most_two_steps_remain_for_each_choice(steps: list[Step]) -> None:
    assert len(merge_steps(steps)) <= 2 * len({step.choice for step in steps})


@given(sequences())
@settings(max_examples=200, deadline=None)
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
