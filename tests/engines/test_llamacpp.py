"""The GGUF engine with the default model: what it says, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp.engine import create
from dragoman.testing import check_engine
from tests.support.llama_engine import CONTEXT, QUESTION, STORY, Bench, ask, job_of


@pytest.fixture(scope="module")
def bench(default_model: Path) -> Iterator[Bench]:
    made = Bench(path=str(default_model), context=CONTEXT, slots=3, threads=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def narrow(default_model: Path) -> Iterator[Bench]:
    """One slot, so that whoever comes next must wait until it is free."""
    made = Bench(path=str(default_model), context=2048, slots=1, threads=1)
    yield made
    made.close()


def test_it_keeps_the_contract_of_an_engine(default_model: Path) -> None:
    async def go() -> list[str]:
        engine = create(path=str(default_model), context=CONTEXT, slots=2, threads=1)
        return [each.outcome for each in await check_engine(engine)]

    outcomes = asyncio.run(go())
    assert set(outcomes) <= {"kept", "skipped"}
    assert outcomes.count("kept") >= 17


def test_it_answers(bench: Bench) -> None:
    answer = bench.answer(max_tokens=40)
    assert answer.text() == "The capital of France is Paris."
    assert answer.finish() == "stop"


def test_d44_the_end_token_is_told_apart_from_the_text(bench: Bench) -> None:
    last = bench.answer(max_tokens=40).steps[-1]
    assert (last.finish, last.stop_id, last.ids, last.tokens) == ("stop", 2, [], 1)
    assert bench.engine.vocabulary.eos_ids == {0, 2, 4}


@pytest.mark.parametrize("most", [1, 3])
def test_d6_an_answer_cut_by_its_limit_says_length(bench: Bench, most: int) -> None:
    answer = bench.answer(max_tokens=most)
    assert (answer.tokens(), answer.finish()) == (most, "length")


def test_no_tokens_at_all(bench: Bench) -> None:
    answer = bench.answer(max_tokens=0, n=2)
    assert [answer.finish(choice) for choice in range(2)] == ["length", "length"]
    assert answer.steps[0].prompt_tokens == len(bench.ids(QUESTION))


def test_a_prompt_may_be_text(bench: Bench) -> None:
    answer = bench.run(ask(bench.engine, QUESTION))
    assert answer.ids() == bench.answer().ids()


def test_the_answer_ends_where_the_context_does(bench: Bench) -> None:
    full = (bench.ids("Far away and long ago, ") * CONTEXT)[: CONTEXT - 8]
    answer = bench.run(ask(bench.engine, full, max_tokens=None, ignore_eos=True))
    assert answer.finish() == "length"
    assert 6 <= answer.tokens() <= 8


# sampling


def test_d25_greedy_is_the_same_every_time(bench: Bench) -> None:
    answers = {
        tuple(bench.answer(STORY, cache_prompt=cache, **said).ids())
        for said in ({}, {"temperature": 2.0, "top_k": 1, "seed": 5}, {"seed": 9})
        for cache in (True, False)
    }
    assert len(answers) == 1


def test_a_seed_gives_the_same_answer_twice(bench: Bench) -> None:
    def said(seed: int | None) -> list[int]:
        return bench.answer(STORY, temperature=1.0, seed=seed).ids()

    assert said(7) == said(7)
    assert said(7) != said(8)
    assert said(None) != said(None)


def test_exact_engines_do_not_care_what_else_runs(default_model: Path) -> None:
    async def go() -> list[list[int]]:
        engine = create(path=str(default_model), context=768, slots=4, threads=1, exact=True)
        prompt = (await engine.tokenize(STORY, False)) * 20
        other = await engine.tokenize(QUESTION, True)
        said = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
        alone = [await ask(engine, prompt, cache_prompt=cache, **said) for cache in (False, True)]
        beside = await asyncio.gather(
            ask(engine, prompt, cache_prompt=False, **said),
            *(ask(engine, other[at:], ignore_eos=True, max_tokens=40) for at in range(3)),
        )
        await engine.aclose()
        assert alone[1].cached() > 300
        return [answer.ids() for answer in (*alone, beside[0])]

    alone, cached, beside = asyncio.run(go())
    assert alone == cached == beside


def test_d28_choices_are_independent_and_numbered(bench: Bench) -> None:
    said = {"temperature": 1.0, "seed": 100, "max_tokens": 6}
    answer = bench.answer(STORY, n=5, **said)
    assert {step.choice for step in answer.steps} == set(range(5))
    assert len({tuple(answer.ids(choice)) for choice in range(5)}) > 1
    assert sum(step.prompt_tokens is not None for step in answer.steps) == 1
    for choice in range(5):
        alone = bench.answer(STORY, **{**said, "seed": 100 + choice})
        assert answer.ids(choice) == alone.ids()


@pytest.mark.parametrize(
    "said",
    [
        {"top_p": 0.01},
        {"min_p": 0.99},
        {"top_k": 1},
        {"typical_p": 0.01},
        {"temperature": 0.01},
    ],
    ids=str,
)
def test_d23_narrow_sampling_is_narrow(bench: Bench, said: dict[str, Any]) -> None:
    wide = {tuple(bench.answer(STORY, temperature=1.0, seed=s).ids()) for s in range(3)}
    narrow = {
        tuple(bench.answer(STORY, **{"temperature": 1.0, "seed": s, "max_tokens": 4, **said}).ids())
        for s in range(3)
    }
    assert len(wide) == 3
    assert len(narrow) == 1


@pytest.mark.parametrize(
    "said",
    [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 1.8, "repeat_last_n": -1},
    ],
    ids=str,
)
def test_d23_penalties_act(bench: Bench, said: dict[str, Any]) -> None:
    plain = bench.answer("ha ha ha ha ha ha ha", max_tokens=24).ids()
    assert bench.answer("ha ha ha ha ha ha ha", max_tokens=24, **said).ids() != plain
    off = bench.answer("ha ha ha ha ha ha ha", max_tokens=24, repeat_last_n=0, **{
        name: value for name, value in said.items() if name != "repeat_last_n"
    })  # fmt: skip
    assert off.ids() == plain


def test_a_bias_forbids_or_forces_a_token(bench: Bench) -> None:
    usual = bench.answer(max_tokens=1).ids()[0]
    assert bench.answer(max_tokens=1, logit_bias={usual: -100.0}).ids() != [usual]
    rare = bench.ids(" zebra")[0]
    assert bench.answer(max_tokens=3, logit_bias={rare: 100.0}).ids() == [rare] * 3


def test_stop_tokens_end_an_answer(bench: Bench) -> None:
    paris = bench.ids(" Paris")[0]
    answer = bench.answer(stop_token_ids=(paris,))
    assert answer.text() == "The capital of France is"
    assert (answer.steps[-1].finish, answer.steps[-1].stop_id) == ("stop", paris)


def test_ignoring_the_end_goes_on_to_the_limit(bench: Bench) -> None:
    answer = bench.answer(max_tokens=24, ignore_eos=True)
    assert (answer.tokens(), answer.finish()) == (24, "length")
    assert not set(answer.ids()) & bench.engine.vocabulary.eos_ids


@pytest.mark.parametrize("said", [{}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_min_tokens_are_reached_before_an_end(bench: Bench, said: dict[str, Any]) -> None:
    answers = [bench.answer(min_tokens=20, max_tokens=60, n=2, **said) for _ in range(2)]
    for choice in range(2):
        assert answers[0].tokens(choice) >= 20
        assert not set(answers[0].ids(choice)) & bench.engine.vocabulary.eos_ids
        assert answers[0].ids(choice) == answers[1].ids(choice)
    if not said:
        assert answers[0].ids()[:7] == bench.answer().ids()


def test_d1_closing_a_job_frees_its_slot(narrow: Bench) -> None:
    async def go() -> None:
        prompt = await narrow.engine.tokenize(STORY, False)
        endless = job_of(prompt, max_tokens=1900, ignore_eos=True)
        async with aclosing(narrow.engine.generate(endless)) as steps:
            for _ in range(3):
                await anext(steps)
        async with asyncio.timeout(3):  # the whole answer would take far longer
            await ask(narrow.engine, prompt, max_tokens=1)

    narrow.run(go())


def test_d21_leaving_while_the_prompt_is_read_frees_the_slot(narrow: Bench) -> None:
    async def go() -> int:
        prompt = [20 + at * 7919 % 40_000 for at in range(1900)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await ask(narrow.engine, prompt)
        async with aclosing(narrow.engine.generate(job_of(prompt[:1000]))) as steps:
            first = await anext(steps)
        return first.cached_tokens or 0

    assert narrow.run(go()) < 900  # how far the server had come


def test_waiting_jobs_cost_the_server_nothing_and_can_walk_away(narrow: Bench) -> None:
    async def go() -> None:
        prompt = await narrow.engine.tokenize(STORY, False)
        running = narrow.engine.generate(job_of(prompt, max_tokens=1900, ignore_eos=True))
        async with aclosing(running) as steps:
            await anext(steps)
            waiting = [asyncio.create_task(ask(narrow.engine, prompt)) for _ in range(20)]
            await narrow.engine.tokenize("a", False)  # still answered at once
            for task in waiting[1:]:
                task.cancel()
        assert (await waiting[0]).tokens() == 16
        assert narrow.engine.slots.free == 1

    narrow.run(go())
