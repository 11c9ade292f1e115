"""The GGUF engine with the default model: answers, sampling and cancellation."""

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

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def runner(default_model: Path) -> Iterator[EngineRunner]:
    runner = EngineRunner(path=str(default_model), context=CONTEXT, slots=3, threads=1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def single_slot(default_model: Path) -> Iterator[EngineRunner]:
    """An engine with one slot, for which the next job must wait."""
    runner = EngineRunner(path=str(default_model), context=2048, slots=1, threads=1)
    yield runner
    runner.close()


def test_it_keeps_the_contract_of_an_engine(default_model: Path) -> None:
    async def go() -> list[str]:
        engine = create(path=str(default_model), context=CONTEXT, slots=2, threads=1)
        return [result.outcome for result in await check_engine(engine)]

    outcomes = asyncio.run(go())
    assert set(outcomes) <= {"passed", "skipped"}
    assert outcomes.count("passed") >= 17


def test_it_answers(runner: EngineRunner) -> None:
    answer = runner.generate(max_tokens=40)
    assert answer.get_text() == "The capital of France is Paris."
    assert answer.get_finish() == "stop"


def test_the_stop_token_is_not_part_of_the_text(runner: EngineRunner) -> None:
    last = runner.generate(max_tokens=40).steps[-1]
    assert (last.finish, last.stop_id, last.ids, last.tokens) == ("stop", 2, [], 1)
    assert runner.engine.vocabulary.eos_ids == {0, 2, 4}


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_an_answer_that_reaches_its_limit_finishes_by_length(
    runner: EngineRunner, max_tokens: int
) -> None:
    answer = runner.generate(max_tokens=max_tokens)
    assert (answer.count_tokens(), answer.get_finish()) == (max_tokens, "length")


def test_an_answer_may_have_no_tokens(runner: EngineRunner) -> None:
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


def test_greedy_answers_are_always_the_same(runner: EngineRunner) -> None:
    answers = {
        tuple(runner.generate(STORY, cache_prompt=cache, **fields).get_ids())
        for fields in ({}, {"temperature": 2.0, "top_k": 1, "seed": 5}, {"seed": 9})
        for cache in (True, False)
    }
    assert len(answers) == 1


def test_a_seed_gives_the_same_answer_twice(runner: EngineRunner) -> None:
    def generate_ids(seed: int | None) -> list[int]:
        return runner.generate(STORY, temperature=1.0, seed=seed).get_ids()

    assert generate_ids(7) == generate_ids(7)
    assert generate_ids(7) != generate_ids(8)
    assert generate_ids(None) != generate_ids(None)


def test_answers_of_an_exact_engine_do_not_depend_on_other_jobs(default_model: Path) -> None:
    async def go() -> list[list[int]]:
        engine = create(path=str(default_model), context=768, slots=4, threads=1, exact=True)
        prompt = (await engine.tokenize(STORY, False)) * 20
        other = await engine.tokenize(QUESTION, True)
        fields = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
        alone = [
            await generate(engine, prompt, cache_prompt=cache, **fields) for cache in (False, True)
        ]
        beside = await asyncio.gather(
            generate(engine, prompt, cache_prompt=False, **fields),
            *(
                generate(engine, other[start:], ignore_eos=True, max_tokens=40)
                for start in range(3)
            ),
        )
        await engine.aclose()
        assert alone[1].count_cached() > 300
        return [answer.get_ids() for answer in (*alone, beside[0])]

    alone, cached, beside = asyncio.run(go())
    assert alone == cached == beside


def test_choices_are_independent_and_numbered(runner: EngineRunner) -> None:
    fields = {"temperature": 1.0, "seed": 100, "max_tokens": 6}
    answer = runner.generate(STORY, n=5, **fields)
    assert {step.choice for step in answer.steps} == set(range(5))
    assert len({tuple(answer.get_ids(choice)) for choice in range(5)}) > 1
    assert sum(step.prompt_tokens is not None for step in answer.steps) == 1
    for choice in range(5):
        alone = runner.generate(STORY, **{**fields, "seed": 100 + choice})
        assert answer.get_ids(choice) == alone.get_ids()


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0.01},
        {"min_p": 0.99},
        {"top_k": 1},
        {"typical_p": 0.01},
        {"temperature": 0.01},
    ],
    ids=str,
)
def test_each_field_narrows_the_sampling(runner: EngineRunner, fields: dict[str, Any]) -> None:
    wide = {
        tuple(runner.generate(STORY, temperature=1.0, seed=seed).get_ids()) for seed in range(3)
    }
    narrow = {
        tuple(
            runner.generate(
                STORY, **{"temperature": 1.0, "seed": seed, "max_tokens": 4, **fields}
            ).get_ids()
        )
        for seed in range(3)
    }
    assert len(wide) == 3
    assert len(narrow) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 1.8, "repeat_last_n": -1},
    ],
    ids=str,
)
def test_penalties_have_an_effect(runner: EngineRunner, fields: dict[str, Any]) -> None:
    plain = runner.generate("ha ha ha ha ha ha ha", max_tokens=24).get_ids()
    assert runner.generate("ha ha ha ha ha ha ha", max_tokens=24, **fields).get_ids() != plain
    off = runner.generate("ha ha ha ha ha ha ha", max_tokens=24, repeat_last_n=0, **{
        name: value for name, value in fields.items() if name != "repeat_last_n"
    })  # fmt: skip
    assert off.get_ids() == plain


def test_a_bias_forbids_or_forces_a_token(runner: EngineRunner) -> None:
    likely = runner.generate(max_tokens=1).get_ids()[0]
    assert runner.generate(max_tokens=1, logit_bias={likely: -100.0}).get_ids() != [likely]
    rare = runner.encode(" zebra")[0]
    assert runner.generate(max_tokens=3, logit_bias={rare: 100.0}).get_ids() == [rare] * 3


def test_stop_tokens_end_an_answer(runner: EngineRunner) -> None:
    paris = runner.encode(" Paris")[0]
    answer = runner.generate(stop_token_ids=(paris,))
    assert answer.get_text() == "The capital of France is"
    assert (answer.steps[-1].finish, answer.steps[-1].stop_id) == ("stop", paris)


def test_ignore_eos_generates_up_to_the_limit(runner: EngineRunner) -> None:
    answer = runner.generate(max_tokens=24, ignore_eos=True)
    assert (answer.count_tokens(), answer.get_finish()) == (24, "length")
    assert not set(answer.get_ids()) & runner.engine.vocabulary.eos_ids


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_min_tokens_come_before_an_end(runner: EngineRunner, fields: dict[str, Any]) -> None:
    answers = [runner.generate(min_tokens=20, max_tokens=60, n=2, **fields) for _ in range(2)]
    for choice in range(2):
        assert answers[0].count_tokens(choice) >= 20
        assert not set(answers[0].get_ids(choice)) & runner.engine.vocabulary.eos_ids
        assert answers[0].get_ids(choice) == answers[1].get_ids(choice)
    if not fields:
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


def test_cancelling_during_prefill_frees_the_slot(single_slot: EngineRunner) -> None:
    async def go() -> int:
        prompt = [20 + index * 7919 % 40_000 for index in range(1900)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await generate(single_slot.engine, prompt)
        async with aclosing(single_slot.engine.generate(make_job(prompt[:640]))) as steps:
            first = await anext(steps)
        return first.cached_tokens or 0

    assert single_slot.run(go()) < 600  # where the server stopped: it works on 512 at a time


def test_waiting_jobs_cost_the_server_nothing_and_can_be_cancelled(
    single_slot: EngineRunner,
) -> None:
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
