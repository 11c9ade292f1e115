"""The GGUF engine with the default model: what it reports, what it is told, what it refuses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.engines.llamacpp.engine import LlamaCppEngine, create
from dragoman.engines.llamacpp.grammar import HEADER
from dragoman.errors import BadRequest, ContextOverflow, Unsupported
from dragoman.types import Adapter
from tests.support.llama_engine import (
    CONTEXT,
    MULTIBYTE,
    QUESTION,
    EngineRunner,
    generate,
    get_error,
    make_job,
)
from tests.support.lora import make_adapter


@pytest.fixture(scope="module")
def runner(default_model: Path) -> Iterator[EngineRunner]:
    made = EngineRunner(path=str(default_model), context=CONTEXT, slots=3, threads=1)
    yield made
    made.close()


def starting(rule: str) -> str:
    """A grammar of one rule."""
    return f"{HEADER} {{}}\nstart: {rule}"


# logprobs


async def table(engine: LlamaCppEngine, before: list[int]) -> dict[int, float]:
    """The logprob of every token after these, in one look at the whole vocabulary."""
    size = engine.vocabulary.size
    body = {
        "prompt": before,
        "n_predict": 1,
        "n_probs": size,
        "temperature": 0,
        "grammar": 'root ::= "a"',
    }
    _, answer = await engine.client.post("/completion", body)
    (prob,) = msgspec.json.decode(answer)["completion_probabilities"]
    found = {each["id"]: each["logprob"] for each in prob["top_logprobs"]}
    assert len(found) == size
    assert math.isclose(sum(map(math.exp, found.values())), 1.0, rel_tol=1e-3)
    return found


@pytest.mark.parametrize("top", [0, 3])
def test_every_token_has_one_logprob(runner: EngineRunner, top: int) -> None:
    answer = runner.generate(max_tokens=40, logprobs=top)
    marks = answer.get_logprobs()
    assert [mark.id for mark in marks] == [*answer.get_ids(), 2]
    assert {len(mark.top) for mark in marks} == {top}
    for mark in marks:
        assert mark.logprob is not None
        assert [other.id for other in mark.top[:1]] == [mark.id][:top]  # greedy


def test_tokens_inside_a_character_are_all_told_of(runner: EngineRunner) -> None:
    answer = runner.generate(max_tokens=60, logprobs=2, grammar=starting(f'"{MULTIBYTE}"'))
    ids, marks = answer.get_ids(), answer.get_logprobs()
    assert answer.get_text() == MULTIBYTE
    assert answer.get_finish() == "stop"
    assert [mark.id for mark in marks[: len(ids)]] == ids
    assert sum(len(step.ids) > 1 for step in answer.steps) >= 4  # the server kept silent there
    before = runner.encode(QUESTION)
    for at in (0, 1, 3, len(ids) - 1):
        truth = runner.run(table(runner.engine, [*before, *ids[:at]]))
        said = marks[at]
        assert said.logprob is not None
        assert math.isclose(said.logprob, truth[ids[at]], abs_tol=2e-2)
        likeliest = sorted(truth.values(), reverse=True)[:2]
        for other, value in zip(said.top, likeliest, strict=True):
            assert other.logprob is not None
            assert math.isclose(other.logprob, value, abs_tol=2e-2)


@pytest.mark.parametrize("grammar", [True, False])
@pytest.mark.parametrize("most", [1, 2, 4, 5])
def test_a_limit_inside_a_character_is_kept(runner: EngineRunner, most: int, grammar: bool) -> None:
    if grammar:
        prompt, said = QUESTION, {"grammar": starting(f'"{MULTIBYTE}"')}
    else:
        prompt, said = "😀😀😀😀😀😀😀😀", {}
    whole = runner.generate(prompt, max_tokens=9, logprobs=0, **said)
    answer = runner.generate(prompt, max_tokens=most, logprobs=0, **said)
    assert answer.get_ids() == whole.get_ids()[:most]
    assert len(answer.get_logprobs()) == most
    assert (answer.count_tokens(), answer.get_finish()) == (most, "length")


def test_logprobs_of_the_prompt(runner: EngineRunner) -> None:
    prompt = f"<|im_start|>user\n{MULTIBYTE}<|im_end|>\nHi"
    ids = runner.encode(prompt)
    answer = runner.generate(prompt, prompt_logprobs=1, logprobs=1, max_tokens=2)
    marks = [mark for step in answer.steps for mark in step.prompt_logprobs]
    assert [mark.id for mark in marks] == ids
    assert marks[0].logprob is None
    for at in (1, 4, len(ids) - 3, len(ids) - 1):
        truth = runner.run(table(runner.engine, ids[:at]))
        said = marks[at].logprob
        assert said is not None
        assert math.isclose(said, truth[ids[at]], abs_tol=2e-2)
    assert len(answer.get_logprobs()) == answer.count_tokens() == 2


# prompts in memory, grammars, adapters


def test_a_prompt_is_read_once_unless_that_is_not_wanted(runner: EngineRunner) -> None:
    prompt = "Prompts that nothing else has begun with. " * 4
    count = len(runner.encode(prompt))
    cached = [
        runner.generate(prompt, cache_prompt=c).count_cached() for c in (True, True, False, True)
    ]
    assert cached == [0, count - 1, 0, count - 1]


def test_a_grammar_is_kept_to(runner: EngineRunner) -> None:
    answer = runner.generate(grammar=starting("/[xy]+/"), temperature=1.0, seed=1)
    assert answer.get_text()
    assert set(answer.get_text()) <= set("xy")


@pytest.mark.parametrize(
    "grammar",
    [starting("nosuch"), starting("("), "", 'root ::= "a"'],
)
def test_a_grammar_that_cannot_be_kept_to_is_refused(runner: EngineRunner, grammar: str) -> None:
    """One in another language is none for this engine, whatever its own server could read."""
    error = runner.run(get_error(runner.engine.admit(make_job([1], grammar=grammar))))
    assert type(error) is BadRequest
    assert error.param == "grammar"
    assert runner.generate(max_tokens=40).get_text() == "The capital of France is Paris."


def test_a_bias_against_the_grammar_ends_nothing(runner: EngineRunner) -> None:
    only = runner.encode("a")[0]
    answer = runner.generate(grammar=starting('"a"'), logit_bias={only: -100.0}, temperature=1.0)
    assert answer.get_text() == "a"


def test_adapters_by_name_and_the_plain_model_after_them(
    default_model: Path, tmp_path: Path
) -> None:
    files = {name: make_adapter(tmp_path / f"{name}.gguf", seed=at) for at, name in enumerate("ab")}
    settings = {
        "path": str(default_model),
        "context": CONTEXT,
        "slots": 1,
        "threads": 1,
        "lora": {name: str(file) for name, file in files.items()},
    }

    async def go() -> None:
        engine = create(**settings)
        assert engine.capabilities.lora == ("a", "b")
        prompt = await engine.tokenize(QUESTION, True)

        async def first(*adapters: Adapter, of: list[int] = prompt) -> float:
            answer = await generate(engine, of, lora=adapters, logprobs=0, max_tokens=1)
            return answer.get_logprobs()[0].logprob or 0.0

        plain = await first()
        ways = [
            (Adapter("a"),),
            (Adapter("b"),),
            (Adapter("a"), Adapter("b")),
            (Adapter("a", 0.5),),
        ]
        found = []
        for way in ways:
            found.append(await first(*way))
            await first(of=prompt[3:])  # pushes the adapter's prompt out of the slot
            assert math.isclose(await first(), plain, abs_tol=1e-2)
        assert len({round(value, 2) for value in (*found, plain)}) == 5
        assert math.isclose(await first(Adapter("a", 0.0)), plain, abs_tol=1e-2)
        error = await get_error(engine.admit(make_job(prompt, lora=(Adapter("c"),))))
        assert (error.status, error.param) == (400, "lora")
        assert "`c`" in error.message
        assert "a, b" in error.message
        await engine.aclose()

    asyncio.run(go())


# other doors


def test_embeddings(runner: EngineRunner) -> None:
    texts = ["a cat on a mat", "a cat on a rug", "the stock markets fell today", "yes"]
    ids = [runner.encode(text) for text in texts]
    vectors = runner.run(runner.engine.embed([*ids, *texts]))
    assert {len(vector) for vector in vectors} == {576}
    assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-4) for vector in vectors)
    for at in range(4):  # as text or ids, in company or alone
        (alone,) = runner.run(runner.engine.embed([ids[at]]))
        assert math.dist(vectors[at], vectors[at + 4]) < 1e-3
        assert math.dist(vectors[at], alone) < 1e-3
    assert math.dist(vectors[0], vectors[1]) < math.dist(vectors[0], vectors[2])
    assert runner.run(runner.engine.embed([])) == []
    error = runner.run(get_error(runner.engine.embed([[5] * (CONTEXT + 1)])))
    assert (type(error), error.param) == (ContextOverflow, "input")


def test_tokenizing(runner: EngineRunner) -> None:
    plain = runner.run(runner.engine.tokenize("<|im_end|>", False))
    assert runner.run(runner.engine.tokenize("<|im_end|>", True)) == [2]
    assert 2 not in plain
    assert len(plain) > 1


@pytest.mark.parametrize(
    ("prompt", "said", "kind", "param"),
    [
        ([5] * CONTEXT, {}, ContextOverflow, "messages"),
        ([], {}, BadRequest, "prompt"),
        ([5, 999_999], {}, BadRequest, "prompt"),
        ([-1], {}, BadRequest, "prompt"),
        ([5], {"n": 0}, BadRequest, "n"),
        ([5], {"n": 129}, BadRequest, "n"),
        ([5], {"logprobs": 21}, Unsupported, "logprobs"),
        ([5], {"lora": (Adapter("none"),)}, BadRequest, "lora"),
        ([5], {"logit_bias": {999_999: 1.0}}, BadRequest, "logit_bias"),
        ([5], {"stop_token_ids": (999_999,)}, BadRequest, "stop_token_ids"),
        ([5], {"grammar": starting("/./"), "min_tokens": 3}, Unsupported, "min_tokens"),
        ([5], {"grammar": starting("/./"), "ignore_eos": True}, Unsupported, "ignore_eos"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_done_is_refused_by_name(
    runner: EngineRunner, prompt: list[int], said: dict[str, Any], kind: type[Exception], param: str
) -> None:
    error = runner.run(get_error(runner.engine.admit(make_job(prompt, **said))))
    assert type(error) is kind
    assert error.param == param
    assert "/" not in error.message
