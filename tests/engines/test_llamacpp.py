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
from tests.support.llama_engine import CONTEXT, QUESTION, STORY, EngineRunner, generate, make_job


@pytest.fixture(scope="module")
def runner(default_model: Path) -> Iterator[EngineRunner]:
    made = EngineRunner(path=str(default_model), context=CONTEXT, slots=3, threads=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def single_slot(default_model: Path) -> Iterator[EngineRunner]:
    """One slot, so that whoever comes next must wait until it is free."""
    made = EngineRunner(path=str(default_model), context=2048, slots=1, threads=1)
    yield made
    made.close()


def test_it_keeps_the_contract_of_an_engine(default_model: Path) -> None:
    async def go() -> list[str]:
        engine = create(path=str(default_model), context=CONTEXT, slots=2, threads=1)
        return [each.outcome for each in await check_engine(engine)]

    outcomes = asyncio.run(go())
    assert set(outcomes) <= {"kept", "skipped"}
    assert outcomes.count("kept") >= 17


def test_it_answers(runner: EngineRunner) -> None:
    answer = runner.generate(max_tokens=40)
    assert answer.get_text() == "The capital of France is Paris."
    assert answer.get_finish() == "stop"


def test_the_end_token_is_told_apart_from_the_text(runner: EngineRunner) -> None:
    last = runner.generate(max_tokens=40).steps[-1]
    assert (last.finish, last.stop_id, last.ids, last.tokens) == ("stop", 2, [], 1)
    assert runner.engine.vocabulary.eos_ids == {0, 2, 4}


@pytest.mark.parametrize("most", [1, 3])
def test_an_answer_cut_by_its_limit_says_length(runner: EngineRunner, most: int) -> None:
    answer = runner.generate(max_tokens=most)
    assert (answer.count_tokens(), answer.get_finish()) == (most, "length")


def test_no_tokens_at_all(runner: EngineRunner) -> None:
    answer = runner.generate(max_tokens=0, n=2)
    assert [answer.get_finish(choice) for choice in range(2)] == ["length", "length"]
    assert answer.steps[0].prompt_tokens == len(runner.encode(QUESTION))


def test_a_prompt_may_be_text(runner: EngineRunner) -> None:
    answer = runner.run(generate(runner.engine, QUESTION))
    assert answer.get_ids() == runner.generate().get_ids()


def test_the_answer_ends_where_the_context_does(runner: EngineRunner) -> None:
    full = (runner.encode("Far away and long ago, ") * CONTEXT)[: CONTEXT - 8]
    answer = runner.run(generate(runner.engine, full, max_tokens=None, ignore_eos=True))
    assert answer.get_finish() == "length"
    assert 6 <= answer.count_tokens() <= 8


# sampling


def test_greedy_is_the_same_every_time(runner: EngineRunner) -> None:
    answers = {
        tuple(runner.generate(STORY, cache_prompt=cache, **said).get_ids())
        for said in ({}, {"temperature": 2.0, "top_k": 1, "seed": 5}, {"seed": 9})
        for cache in (True, False)
    }
    assert len(answers) == 1


def test_a_seed_gives_the_same_answer_twice(runner: EngineRunner) -> None:
    def said(seed: int | None) -> list[int]:
        return runner.generate(STORY, temperature=1.0, seed=seed).get_ids()

    assert said(7) == said(7)
    assert said(7) != said(8)
    assert said(None) != said(None)


def test_exact_engines_do_not_care_what_else_runs(default_model: Path) -> None:
    async def go() -> list[list[int]]:
        engine = create(path=str(default_model), context=768, slots=4, threads=1, exact=True)
        prompt = (await engine.tokenize(STORY, False)) * 20
        other = await engine.tokenize(QUESTION, True)
        said = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
        alone = [
            await generate(engine, prompt, cache_prompt=cache, **said) for cache in (False, True)
        ]
        beside = await asyncio.gather(
            generate(engine, prompt, cache_prompt=False, **said),
            *(generate(engine, other[at:], ignore_eos=True, max_tokens=40) for at in range(3)),
        )
        await engine.aclose()
        assert alone[1].count_cached() > 300
        return [answer.get_ids() for answer in (*alone, beside[0])]

    alone, cached, beside = asyncio.run(go())
    assert alone == cached == beside


def test_choices_are_independent_and_numbered(runner: EngineRunner) -> None:
    said = {"temperature": 1.0, "seed": 100, "max_tokens": 6}
    answer = runner.generate(STORY, n=5, **said)
    assert {step.choice for step in answer.steps} == set(range(5))
    assert len({tuple(answer.get_ids(choice)) for choice in range(5)}) > 1
    assert sum(step.prompt_tokens is not None for step in answer.steps) == 1
    for choice in range(5):
        alone = runner.generate(STORY, **{**said, "seed": 100 + choice})
        assert answer.get_ids(choice) == alone.get_ids()


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
def test_narrow_sampling_is_narrow(runner: EngineRunner, said: dict[str, Any]) -> None:
    wide = {tuple(runner.generate(STORY, temperature=1.0, seed=s).get_ids()) for s in range(3)}
    single_slot = {
        tuple(
            runner.generate(
                STORY, **{"temperature": 1.0, "seed": s, "max_tokens": 4, **said}
            ).get_ids()
        )
        for s in range(3)
    }
    assert len(wide) == 3
    assert len(single_slot) == 1


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
def test_penalties_act(runner: EngineRunner, said: dict[str, Any]) -> None:
    plain = runner.generate("ha ha ha ha ha ha ha", max_tokens=24).get_ids()
    assert runner.generate("ha ha ha ha ha ha ha", max_tokens=24, **said).get_ids() != plain
    off = runner.generate("ha ha ha ha ha ha ha", max_tokens=24, repeat_last_n=0, **{
        name: value for name, value in said.items() if name != "repeat_last_n"
    })  # fmt: skip
    assert off.get_ids() == plain


def test_a_bias_forbids_or_forces_a_token(runner: EngineRunner) -> None:
    usual = runner.generate(max_tokens=1).get_ids()[0]
    assert runner.generate(max_tokens=1, logit_bias={usual: -100.0}).get_ids() != [usual]
    rare = runner.encode(" zebra")[0]
    assert runner.generate(max_tokens=3, logit_bias={rare: 100.0}).get_ids() == [rare] * 3


def test_stop_tokens_end_an_answer(runner: EngineRunner) -> None:
    paris = runner.encode(" Paris")[0]
    answer = runner.generate(stop_token_ids=(paris,))
    assert answer.get_text() == "The capital of France is"
    assert (answer.steps[-1].finish, answer.steps[-1].stop_id) == ("stop", paris)


def test_ignoring_the_end_goes_on_to_the_limit(runner: EngineRunner) -> None:
    answer = runner.generate(max_tokens=24, ignore_eos=True)
    assert (answer.count_tokens(), answer.get_finish()) == (24, "length")
    assert not set(answer.get_ids()) & runner.engine.vocabulary.eos_ids


@pytest.mark.parametrize("said", [{}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_min_tokens_are_reached_before_an_end(runner: EngineRunner, said: dict[str, Any]) -> None:
    answers = [runner.generate(min_tokens=20, max_tokens=60, n=2, **said) for _ in range(2)]
    for choice in range(2):
        assert answers[0].count_tokens(choice) >= 20
        assert not set(answers[0].get_ids(choice)) & runner.engine.vocabulary.eos_ids
        assert answers[0].get_ids(choice) == answers[1].get_ids(choice)
    if not said:
        assert answers[0].get_ids()[:7] == runner.generate().get_ids()


def test_closing_a_job_frees_its_slot(single_slot: EngineRunner) -> None:
    async def go() -> None:
        prompt = await single_slot.engine.tokenize(STORY, False)
        endless = make_job(prompt, max_tokens=1900, ignore_eos=True)
        async with aclosing(single_slot.engine.generate(endless)) as steps:
            for _ in range(3):
                await anext(steps)
        async with asyncio.timeout(3):  # the whole answer would take far longer
            await generate(single_slot.engine, prompt, max_tokens=1)

    single_slot.run(go())


def test_leaving_while_the_prompt_is_read_frees_the_slot(single_slot: EngineRunner) -> None:
    async def go() -> int:
        prompt = [20 + at * 7919 % 40_000 for at in range(1900)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await generate(single_slot.engine, prompt)
        async with aclosing(single_slot.engine.generate(make_job(prompt[:1000]))) as steps:
            first = await anext(steps)
        return first.cached_tokens or 0

    assert single_slot.run(go()) < 900  # how far the server had come


def test_waiting_jobs_cost_the_server_nothing_and_can_walk_away(single_slot: EngineRunner) -> None:
    async def go() -> None:
        prompt = await single_slot.engine.tokenize(STORY, False)
        running = single_slot.engine.generate(make_job(prompt, max_tokens=1900, ignore_eos=True))
        async with aclosing(running) as steps:
            await anext(steps)
            waiting = [asyncio.create_task(generate(single_slot.engine, prompt)) for _ in range(20)]
            await single_slot.engine.tokenize("a", False)  # still answered at once
            for task in waiting[1:]:
                task.cancel()
        assert (await waiting[0]).count_tokens() == 16
        assert single_slot.engine.slots.free == 1

    single_slot.run(go())
