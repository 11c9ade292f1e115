"""The GGUF engine with the default model: logprobs, grammars, adapters and rejected jobs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.engines.grammar import HEADER
from dragoman.engines.llamacpp.engine import LlamaCppEngine, create
from dragoman.errors import (
    AdapterNotFound,
    BadRequest,
    ContextOverflow,
    InvalidGrammar,
    Unsupported,
)
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

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def runner(default_model: Path) -> Iterator[EngineRunner]:
    runner = EngineRunner(path=str(default_model), context=CONTEXT, slots=3, threads=1)
    yield runner
    runner.close()


def make_grammar(rule: str) -> str:
    """Make a grammar of one rule."""
    return f"{HEADER} {{}}\nstart: {rule}"


# logprobs


async def get_all_logprobs(engine: LlamaCppEngine, before: list[int]) -> dict[int, float]:
    """Return the logprob of every token of the vocabulary after these tokens."""
    size = engine.vocabulary.size
    body = {
        "prompt": before,
        "n_predict": 1,
        "n_probs": size,
        "temperature": 0,
        "grammar": 'root ::= "a"',
    }
    _, answer = await engine.client.post("/completion", body)
    (forced,) = msgspec.json.decode(answer)["completion_probabilities"]
    logprobs = {entry["id"]: entry["logprob"] for entry in forced["top_logprobs"]}
    assert len(logprobs) == size
    assert math.isclose(sum(map(math.exp, logprobs.values())), 1.0, rel_tol=1e-3)
    return logprobs


@pytest.mark.parametrize("top", [0, 3])
def test_every_token_has_one_logprob(runner: EngineRunner, top: int) -> None:
    answer = runner.generate(max_tokens=40, logprobs=top)
    logprobs = answer.get_logprobs()
    assert [logprob.id for logprob in logprobs] == [*answer.get_ids(), 2]
    assert {len(logprob.top) for logprob in logprobs} == {top}
    for logprob in logprobs:
        assert logprob.logprob is not None
        assert [other.id for other in logprob.top[:1]] == [logprob.id][:top]  # greedy


def test_all_tokens_inside_a_character_are_reported(runner: EngineRunner) -> None:
    answer = runner.generate(max_tokens=60, logprobs=2, grammar=make_grammar(f'"{MULTIBYTE}"'))
    ids, logprobs = answer.get_ids(), answer.get_logprobs()
    assert answer.get_text() == MULTIBYTE
    assert answer.get_finish() == "stop"
    assert [logprob.id for logprob in logprobs[: len(ids)]] == ids
    assert sum(len(step.ids) > 1 for step in answer.steps) >= 4  # the server does not report them
    before = runner.encode(QUESTION)
    for position in (0, 1, 3, len(ids) - 1):
        expected = runner.run(get_all_logprobs(runner.engine, [*before, *ids[:position]]))
        logprob = logprobs[position]
        assert logprob.logprob is not None
        assert math.isclose(logprob.logprob, expected[ids[position]], abs_tol=2e-2)
        most_likely = sorted(expected.values(), reverse=True)[:2]
        for other, value in zip(logprob.top, most_likely, strict=True):
            assert other.logprob is not None
            assert math.isclose(other.logprob, value, abs_tol=2e-2)


@pytest.mark.parametrize("has_grammar", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 2, 4, 5])
def test_a_limit_inside_a_character_is_respected(
    runner: EngineRunner, max_tokens: int, has_grammar: bool
) -> None:
    if has_grammar:
        prompt, fields = QUESTION, {"grammar": make_grammar(f'"{MULTIBYTE}"')}
    else:
        prompt, fields = "😀😀😀😀😀😀😀😀", {}
    whole = runner.generate(prompt, max_tokens=9, logprobs=0, **fields)
    answer = runner.generate(prompt, max_tokens=max_tokens, logprobs=0, **fields)
    assert answer.get_ids() == whole.get_ids()[:max_tokens]
    assert len(answer.get_logprobs()) == max_tokens
    assert (answer.count_tokens(), answer.get_finish()) == (max_tokens, "length")


def test_logprobs_of_the_prompt(runner: EngineRunner) -> None:
    prompt = f"<|im_start|>user\n{MULTIBYTE}<|im_end|>\nHi"
    ids = runner.encode(prompt)
    answer = runner.generate(prompt, prompt_logprobs=1, logprobs=1, max_tokens=2)
    logprobs = [logprob for step in answer.steps for logprob in step.prompt_logprobs]
    assert [logprob.id for logprob in logprobs] == ids
    assert logprobs[0].logprob is None
    for position in (1, 4, len(ids) - 3, len(ids) - 1):
        expected = runner.run(get_all_logprobs(runner.engine, ids[:position]))
        value = logprobs[position].logprob
        assert value is not None
        assert math.isclose(value, expected[ids[position]], abs_tol=2e-2)
    assert len(answer.get_logprobs()) == answer.count_tokens() == 2


# the prompt cache, grammars, adapters


def test_a_prompt_is_cached_if_the_job_allows_it(runner: EngineRunner) -> None:
    prompt = "Prompts that no other test begins with. " * 4
    count = len(runner.encode(prompt))
    cached = [
        runner.generate(prompt, cache_prompt=cache).count_cached()
        for cache in (True, True, False, True)
    ]
    assert cached == [0, count - 1, 0, count - 1]


def test_a_grammar_is_enforced(runner: EngineRunner) -> None:
    answer = runner.generate(grammar=make_grammar("/[xy]+/"), temperature=1.0, seed=1)
    assert answer.get_text()
    assert set(answer.get_text()) <= set("xy")


@pytest.mark.parametrize(
    "grammar",
    [make_grammar("nosuch"), make_grammar("("), "", 'root ::= "a"'],
)
def test_an_invalid_grammar_is_rejected(runner: EngineRunner, grammar: str) -> None:
    """A grammar in another language is invalid, even if the native server could parse it."""
    error = runner.run(get_error(runner.engine.admit(make_job([1], grammar=grammar))))
    assert type(error) is InvalidGrammar
    assert error.param == "grammar"
    assert runner.generate(max_tokens=40).get_text() == "The capital of France is Paris."


def test_a_bias_against_the_only_allowed_token_has_no_effect(runner: EngineRunner) -> None:
    only = runner.encode("a")[0]
    answer = runner.generate(
        grammar=make_grammar('"a"'), logit_bias={only: -100.0}, temperature=1.0
    )
    assert answer.get_text() == "a"


def test_adapters_apply_to_the_jobs_that_name_them_only(
    default_model: Path, tmp_path: Path
) -> None:
    files = {
        name: make_adapter(tmp_path / f"{name}.gguf", seed=seed) for seed, name in enumerate("ab")
    }
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

        async def get_first_logprob(*adapters: Adapter, ids: list[int] = prompt) -> float:
            answer = await generate(engine, ids, lora=adapters, logprobs=0, max_tokens=1)
            return answer.get_logprobs()[0].logprob or 0.0

        plain = await get_first_logprob()
        combinations = [
            (Adapter("a"),),
            (Adapter("b"),),
            (Adapter("a"), Adapter("b")),
            (Adapter("a", 0.5),),
        ]
        logprobs = []
        for adapters in combinations:
            logprobs.append(await get_first_logprob(*adapters))
            await get_first_logprob(ids=prompt[3:])  # evicts the adapter's prompt from the slot
            assert math.isclose(await get_first_logprob(), plain, abs_tol=1e-2)
        assert len({round(value, 2) for value in (*logprobs, plain)}) == 5
        assert math.isclose(await get_first_logprob(Adapter("a", 0.0)), plain, abs_tol=1e-2)
        error = await get_error(engine.admit(make_job(prompt, lora=(Adapter("c"),))))
        assert (error.status, error.param) == (400, "lora")
        assert "`c`" in error.message
        assert "a, b" in error.message
        await engine.aclose()

    asyncio.run(go())


# embeddings, tokens and rejected jobs


def test_embeddings(runner: EngineRunner) -> None:
    texts = ["a cat on a mat", "a cat on a rug", "the stock markets fell today", "yes"]
    ids = [runner.encode(text) for text in texts]
    vectors = runner.run(runner.engine.embed([*ids, *texts]))
    assert {len(vector) for vector in vectors} == {576}
    assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-4) for vector in vectors)
    for index in range(4):  # as text or ids, with others or alone
        (alone,) = runner.run(runner.engine.embed([ids[index]]))
        assert math.dist(vectors[index], vectors[index + 4]) < 1e-3
        assert math.dist(vectors[index], alone) < 1e-3
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
    ("prompt", "fields", "error_class", "param"),
    [
        ([5] * CONTEXT, {}, ContextOverflow, "messages"),
        ([], {}, BadRequest, "prompt"),
        ([5, 999_999], {}, BadRequest, "prompt"),
        ([-1], {}, BadRequest, "prompt"),
        ([5], {"n": 0}, BadRequest, "n"),
        ([5], {"n": 129}, BadRequest, "n"),
        ([5], {"logprobs": 21}, Unsupported, "top_logprobs"),
        ([5], {"lora": (Adapter("none"),)}, AdapterNotFound, "lora"),
        ([5], {"logit_bias": {999_999: 1.0}}, BadRequest, "logit_bias"),
        ([5], {"stop_token_ids": (999_999,)}, BadRequest, "stop_token_ids"),
        ([5], {"grammar": make_grammar("/./"), "min_tokens": 3}, Unsupported, "min_tokens"),
        ([5], {"grammar": make_grammar("/./"), "ignore_eos": True}, Unsupported, "ignore_eos"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_jobs_are_rejected_by_name(
    runner: EngineRunner,
    prompt: list[int],
    fields: dict[str, Any],
    error_class: type[Exception],
    param: str,
) -> None:
    error = runner.run(get_error(runner.engine.admit(make_job(prompt, **fields))))
    assert type(error) is error_class
    assert error.param == param
    assert "/" not in error.message
