"""What a request says is what the engine is told, whichever way it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from dragoman.events import Completion, Delta
from dragoman.pipeline import pipeline
from dragoman.testing import ScriptedEngine
from dragoman.types import DEFAULT_SAMPLING, Chat, Job, Message, Request, Sampling, text_content
from tests.protocols.test_decode import SAMPLING
from tests.support.serving import RunningServer, make_chat, serve_scripted


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine("Hello there!", tokens=True, context=4096)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine) as made:
        yield made


def told(
    server: RunningServer, engine: ScriptedEngine, path: str = "chat/completions", **said: Any
) -> Job:
    """The job the engine got for a request."""
    body = make_chat("hi", **said) if path.startswith("chat") else {"prompt": "hi", **said}
    url = f"{server.url}/v1/{path}"
    response = httpx.post(url, json={"model": "scripted", **body})
    assert response.status_code == 200, response.text
    return engine.jobs[-1]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(("field", "value", "name", "arrives"), SAMPLING)
def test_d23_d24_d26_every_sampling_field_reaches_the_engine(
    server: RunningServer,
    engine: ScriptedEngine,
    path: str,
    streamed: bool,
    field: str,
    value: Any,
    name: str,
    arrives: Any,
) -> None:
    if field == "max_completion_tokens" and path == "completions":
        return
    said = {"stream": streamed, "max_tokens": 7, field: value}
    job = told(server, engine, path, **said)
    expected = msgspec.structs.replace(DEFAULT_SAMPLING, max_tokens=7)
    assert job.sampling == msgspec.structs.replace(expected, **{name: arrives})


def test_d26_without_fields_the_engine_gets_exactly_the_defaults(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    job = told(server, engine)
    assert isinstance(job.prompt, list)
    room = 4096 - len(job.prompt)
    assert job.sampling == msgspec.structs.replace(DEFAULT_SAMPLING, max_tokens=room)
    assert job.cache_prompt
    assert job.n == 1
    assert job.logprobs is None


def test_d25_temperature_0_and_top_k_1_are_greedy(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    assert told(server, engine, temperature=0).sampling.greedy
    assert told(server, engine, temperature=1.9, top_k=1).sampling.greedy
    assert not told(server, engine).sampling.greedy


def test_d87_what_is_kept_of_a_streamed_answer_is_all_of_it(server: RunningServer) -> None:
    """The fold that keeps an answer sees the very deltas that the stream is written from."""
    services = server.app.runtime.services
    kept, written = Completion(), []

    def deliver(delta: Delta) -> None:
        written.append(delta.text)
        kept.add(delta)

    async def answer() -> None:
        chat = Chat(messages=(Message(role="user", content=text_content("hi")),))
        request = Request(model="scripted", prompts=(chat,), stream=True)
        plan = await pipeline.prepare(request, services)
        try:
            await pipeline.generate(plan, deliver)
        finally:
            plan.close()

    server.run_coroutine(answer())
    assert len(written) > 3
    assert kept.build_choices()[0].text == "".join(written) == "Hello there!"
    assert kept.build_choices()[0].finish == "stop"


def test_layers_of_sampling() -> None:
    mine = Sampling(temperature=0.0, top_k=0)
    model = Sampling(temperature=0.6, top_k=20, min_p=0.1)
    both = mine.with_defaults(model)
    assert (both.temperature, both.top_k, both.min_p) == (0.0, 0, 0.1)


def test_a_seeded_request_goes_without_the_cache_unless_it_asks_for_it(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    assert told(server, engine).cache_prompt
    assert not told(server, engine, seed=1).cache_prompt
    assert told(server, engine, seed=1, cache_prompt=True).cache_prompt
    assert not told(server, engine, cache_prompt=False).cache_prompt
