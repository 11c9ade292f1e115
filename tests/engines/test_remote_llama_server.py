"""The default model on llama.cpp's own server, in another process, against the embedded engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp.gguf import read_header
from dragoman.engines.remote.engine import RemoteEngine, connect
from dragoman.engines.remote.settings import RemoteSettings, Upstream
from dragoman.testing import check_engine
from dragoman.tokenizers.from_gguf import vocabulary_from_gguf
from tests.support.llama_engine import MULTIBYTE, STORY, EngineRunner, make_job
from tests.support.llama_server import run_llama_server
from tests.support.remote_engines import wait_for

pytestmark = pytest.mark.real_model

CONTEXT = 512
DIGITS = "%llguidance {}\nstart: /[0-9]{3,8}/"


class RemoteRunner(EngineRunner):
    """A remote engine and the event loop that it runs in."""

    engine: RemoteEngine  # type: ignore[assignment]

    @staticmethod
    async def _create(settings: dict[str, Any]) -> Any:
        upstream = Upstream(protocol="llama-server", model="", context=CONTEXT, slots=2)
        header = read_header(settings["path"])
        remote = RemoteSettings(url=settings["url"], grammars=True)
        return await connect(remote, upstream, vocabulary_from_gguf(header.metadata))


@pytest.fixture(scope="module")
def embedded(default_model: Path) -> Iterator[EngineRunner]:
    runner = EngineRunner(path=str(default_model), context=CONTEXT, slots=2, threads=1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def remote(default_model: Path) -> Iterator[RemoteRunner]:
    with run_llama_server(default_model, slots=2, context=2 * CONTEXT) as url:
        runner = RemoteRunner(path=default_model, url=url)
        yield runner
        runner.close()


@pytest.mark.slow
def test_the_engine_keeps_the_contract_on_a_real_server(default_model: Path) -> None:
    async def check(url: str) -> list[str]:
        engine = await RemoteRunner._create({"path": default_model, "url": url})
        return [result.outcome for result in await check_engine(engine)]

    with run_llama_server(default_model, slots=2, context=2 * CONTEXT) as url:
        outcomes = asyncio.run(check(url))
    assert set(outcomes) <= {"passed", "skipped"}
    assert outcomes.count("passed") >= 17


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 40},
        {"prompt": f"Repeat: {MULTIBYTE} {MULTIBYTE}", "max_tokens": 24},
        {"prompt": STORY, "max_tokens": 8, "logit_bias": {28: -100.0}},
        {"prompt": STORY, "max_tokens": 8, "repetition_penalty": 1.3},
        {"prompt": STORY, "temperature": 0.8, "seed": 7},
        {"prompt": STORY, "stop_token_ids": (28,)},
        {"grammar": DIGITS, "max_tokens": 10},
    ],
    ids=str,
)
def test_both_engines_give_the_same_tokens(
    embedded: EngineRunner, remote: RemoteRunner, fields: dict[str, Any]
) -> None:
    ours, theirs = (runner.generate(**dict(fields)) for runner in (embedded, remote))
    assert theirs.get_ids() == ours.get_ids()
    assert theirs.get_finish() == ours.get_finish()
    assert theirs.count_tokens() == ours.count_tokens()
    assert theirs.get_steps()[-1].stop_id == ours.get_steps()[-1].stop_id


def test_both_engines_give_the_same_logprobs(embedded: EngineRunner, remote: RemoteRunner) -> None:
    ours, theirs = (runner.generate(logprobs=3) for runner in (embedded, remote))
    assert [entry.id for entry in theirs.get_logprobs()] == [
        entry.id for entry in ours.get_logprobs()
    ]
    for left, right in zip(ours.get_logprobs(), theirs.get_logprobs(), strict=True):
        assert right.logprob == pytest.approx(left.logprob, abs=0.05)
        assert len(right.top) == 3


def test_choices_differ_and_repeat_with_their_seed(remote: RemoteRunner) -> None:
    first, second = (
        remote.generate(STORY, n=3, temperature=1.0, seed=5, max_tokens=8, cache_prompt=False)
        for _ in range(2)
    )
    answers = [first.get_ids(choice) for choice in range(3)]
    assert answers == [second.get_ids(choice) for choice in range(3)]
    assert len({*map(tuple, answers)}) == 3


def test_a_grammar_is_enforced(remote: RemoteRunner) -> None:
    answer = remote.generate(grammar=DIGITS, max_tokens=12)
    assert answer.get_text().isdecimal()
    assert answer.get_finish() == "stop"


def test_the_cache_of_the_server_is_counted(remote: RemoteRunner) -> None:
    prompt = f"A story about caches. {STORY}"
    remote.generate(prompt)
    again = remote.generate(prompt)
    assert again.count_cached() >= 0.9 * len(remote.encode(prompt)) - 1


async def wait_for_idle_slots(engine: RemoteEngine) -> None:
    """Wait until the server works on nothing."""
    slots = await engine.client.fetch("/slots")
    while any(slot["is_processing"] for slot in slots):
        slots = await engine.client.fetch("/slots")


def test_closing_frees_the_slot_of_the_server(remote: RemoteRunner) -> None:
    engine = remote.engine

    async def cancel() -> None:
        job = make_job(await engine.tokenize(STORY, True), max_tokens=400, ignore_eos=True)
        async with aclosing(engine.generate(job)) as steps:
            await anext(steps)
        await wait_for(lambda: engine.running_requests == 0)
        await wait_for_idle_slots(engine)

    remote.run(cancel())
