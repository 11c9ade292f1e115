"""Speculative decoding with the default model: answers stay the same, drafts are accepted."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp.engine import create
from dragoman.testing import check_engine
from tests.support.llama_engine import MULTIBYTE, EngineOutput, EngineRunner

pytestmark = pytest.mark.real_model

PROMPT = f"one two three {MULTIBYTE}. one two three {MULTIBYTE}. one two three"
SHARED = {"context": 512, "slots": 2, "threads": 1, "exact": True}
SPECULATIONS: dict[str, dict[str, Any]] = {
    "draft": {"draft_model": "@", "draft_max": 4},
    "ngram": {"spec_type": "ngram-simple", "spec_ngram": 2, "draft_max": 6},
}
GREEDY_JOBS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 24, "ignore_eos": True},
    "stopped": {"max_tokens": 24, "stop_token_ids": [30]},  # the full stop
    "grammar": {"max_tokens": 24, "grammar": "%llguidance {}\nstart: /( one| two){3}/"},
}


def start(model: Path, **settings: Any) -> EngineRunner:
    if "draft_model" in settings:
        settings["draft_model"] = str(model)
    return EngineRunner(path=str(model), **SHARED, **settings)


@pytest.fixture(scope="module")
def expected(default_model: Path) -> dict[str, EngineOutput]:
    """The answers without speculation."""
    runner = start(default_model)
    answers = {name: runner.generate(PROMPT, **fields) for name, fields in GREEDY_JOBS.items()}
    runner.close()
    return answers


@pytest.fixture(scope="module", params=SPECULATIONS)
def runner(request: pytest.FixtureRequest, default_model: Path) -> Iterator[EngineRunner]:
    runner = start(default_model, **SPECULATIONS[request.param])
    yield runner
    runner.close()


@pytest.mark.parametrize("name", GREEDY_JOBS)
def test_greedy_answers_do_not_change(
    runner: EngineRunner, expected: dict[str, EngineOutput], name: str
) -> None:
    answer = runner.generate(PROMPT, **GREEDY_JOBS[name])
    assert answer.get_ids() == expected[name].get_ids()
    assert answer.get_finish() == expected[name].get_finish()
    assert answer.count_tokens() == expected[name].count_tokens()


def test_every_token_of_a_sampled_answer_has_its_logprob(runner: EngineRunner) -> None:
    fields = {"max_tokens": 8, "temperature": 0.9, "seed": 3, "logprobs": 2, "n": 2}
    answer = runner.generate(PROMPT, **fields)
    for choice in range(2):
        ids = answer.get_ids(choice)
        assert [logprob.id for logprob in answer.get_logprobs(choice)][: len(ids)] == ids
        assert answer.count_tokens(choice) <= 8


def test_drafted_tokens_are_accepted(
    runner: EngineRunner, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "dragoman.llamacpp"):
        answer = runner.generate(PROMPT, **GREEDY_JOBS["greedy"])
    (drafted, accepted) = re.findall(r"drafted (\d+) tokens, (\d+) accepted", caplog.text)[-1]
    assert int(drafted) >= int(accepted) >= 8
    assert answer.steps[-1].drafts == (int(drafted), int(accepted))


def test_an_engine_that_drafts_keeps_the_contract(default_model: Path) -> None:
    async def go() -> list[str]:
        engine = create(path=str(default_model), **SHARED, **SPECULATIONS["ngram"])
        return [result.outcome for result in await check_engine(engine)]

    outcomes = asyncio.run(go())
    assert set(outcomes) <= {"passed", "skipped"}
    assert outcomes.count("passed") >= 17
