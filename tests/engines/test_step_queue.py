"""Steps that wait, and the frames they cross a process boundary in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engines.step_queue import MERGE_THRESHOLD, StepQueue, merge_steps
from dragoman.errors import EngineFailed
from dragoman.types import Logprob, Step

marks = st.builds(Logprob, st.integers(0, 9), st.floats(-9, 0))


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    """Steps as an engine may yield them: a few choices, each in its own manner."""
    steps: list[Step] = []
    for choice in range(draw(st.integers(1, 3))):
        manner = draw(st.sampled_from(["text", "ids", "both"]))
        with_marks = draw(st.booleans())
        mine = [_step(draw, choice, manner, with_marks) for _ in range(draw(st.integers(0, 6)))]
        ending = draw(st.sampled_from(["none", "bare", "stop"]))
        if ending == "bare":
            mine.append(Step(choice, finish="length"))
        elif ending == "stop":
            mine.append(Step(choice, tokens=1, finish="stop", stop_id=2))
        steps += mine
    order = draw(st.permutations(range(len(steps))))
    waiting = {c: [s for s in steps if s.choice == c] for c in range(3)}
    return [waiting[steps[at].choice].pop(0) for at in order]


def _step(draw: st.DrawFn, choice: int, manner: str, with_marks: bool) -> Step:
    count = draw(st.integers(1, 3))
    ids = draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
    text = draw(st.text(max_size=3))
    given_marks = draw(st.lists(marks, min_size=count, max_size=count)) if with_marks else []
    return Step(
        choice,
        None if manner == "ids" else text,
        [] if manner == "text" else ids,
        count,
        given_marks,
        prompt_tokens=draw(st.none() | st.integers(1, 5)) if choice == 0 else None,
    )


def folded(steps: list[Step]) -> dict[int, Any]:
    """All that steps say, choice by choice."""
    said: dict[int, Any] = {}
    for step in steps:
        entry = said.setdefault(step.choice, ["", [], 0, [], None, None, None])
        entry[0] += step.text or ""
        entry[1] += step.ids
        entry[2] += step.tokens
        entry[3] += step.logprobs
        entry[4] = step.finish or entry[4]
        entry[5] = entry[5] if step.stop_id is None else step.stop_id
        entry[6] = entry[6] if step.prompt_tokens is None else step.prompt_tokens
    return said


@given(sequences())
@settings(max_examples=300, deadline=None)
def test_merging_says_the_same(steps: list[Step]) -> None:
    assert folded(merge_steps(steps)) == folded(steps)


@given(sequences())
@settings(max_examples=200, deadline=None)
def test_merging_twice_is_merging_once(steps: list[Step]) -> None:
    once = merge_steps(steps)
    assert merge_steps(once) == once


@given(sequences(), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_merging_part_by_part_is_merging_whole(steps: list[Step], cut: int) -> None:
    assert merge_steps(merge_steps(steps[:cut]) + steps[cut:]) == merge_steps(steps)


@given(sequences())
@settings(max_examples=200, deadline=None)
def test_what_waits_is_two_steps_a_choice_at_most(steps: list[Step]) -> None:
    assert len(merge_steps(steps)) <= 2 * len({step.choice for step in steps})


@given(sequences())
@settings(max_examples=200, deadline=None)
def test_ids_and_their_logprobs_stay_side_by_side(steps: list[Step]) -> None:
    for step in merge_steps(steps):
        if step.ids:
            assert step.tokens == len(step.ids)
            assert len(step.logprobs) in (0, len(step.ids))


# mailbox


def test_a_mailbox_is_bounded_by_the_answer_and_loses_nothing() -> None:
    async def go() -> None:
        box, sent = StepQueue(), []
        for at in range(5000):
            step = Step(at % 2, None, [at], 1)
            sent.append(step)
            box.put([step])
            assert len(box) <= MERGE_THRESHOLD
        assert folded(await box.take()) == folded(sent)

    asyncio.run(go())


def test_a_mailbox_gives_what_came_before_it_tells_of_the_end() -> None:
    async def go() -> None:
        good, bad = StepQueue(), StepQueue()
        for box in (good, bad):
            box.put([Step(text="a")])
        good.end()
        bad.end(EngineFailed("broken"))
        bad.end(None)
        assert [step.text for step in await good.take()] == ["a"]
        assert await good.take() == []
        assert [step.text for step in await bad.take()] == ["a"]
        with pytest.raises(EngineFailed):
            await bad.take()

    asyncio.run(go())


def test_a_waiting_reader_is_woken() -> None:
    async def go() -> None:
        box = StepQueue()
        waiting = asyncio.create_task(box.take())
        await asyncio.sleep(0)
        box.put([Step(text="a")])
        box.put([Step(text="b")])
        assert "".join(step.text or "" for step in await waiting) == "ab"

    asyncio.run(go())
