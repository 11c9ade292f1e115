"""The fields of a request reach the engine, whether the answer is streamed or whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from dragoman.events import Completion, Delta
from dragoman.pipeline import pipeline
from dragoman.testing import ScriptedEngine
from dragoman.types import (
    DEFAULT_SAMPLING,
    Chat,
    Job,
    Message,
    Request,
    Sampling,
    make_text_content,
)
from tests.protocols.test_decode import SAMPLING
from tests.support.serving import RunningServer, make_chat, serve_scripted


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine("Hello there!", tokens=True, context=4096)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine) as running:
        yield running


def post_for_job(
    server: RunningServer, engine: ScriptedEngine, path: str = "chat/completions", **fields: Any
) -> Job:
    """Send a request and return the job that the engine got."""
    body = make_chat("hi", **fields) if path.startswith("chat") else {"prompt": "hi", **fields}
    url = f"{server.url}/v1/{path}"
    response = httpx.post(url, json={"model": "scripted", **body})
    assert response.status_code == 200, response.text
    return engine.jobs[-1]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize(("field", "value", "name", "expected_value"), SAMPLING)
def test_every_sampling_field_reaches_the_engine(
    server: RunningServer,
    engine: ScriptedEngine,
    path: str,
    streamed: bool,
    field: str,
    value: Any,
    name: str,
    expected_value: Any,
) -> None:
    if field == "max_completion_tokens" and path == "completions":
        return
    fields = {"stream": streamed, "max_tokens": 7, field: value}
    job = post_for_job(server, engine, path, **fields)
    expected = msgspec.structs.replace(DEFAULT_SAMPLING, max_tokens=7)
    assert job.sampling == msgspec.structs.replace(expected, **{name: expected_value})


def test_without_fields_the_engine_gets_exactly_the_defaults(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    job = post_for_job(server, engine)
    assert isinstance(job.prompt, list)
    room = 4096 - len(job.prompt)
    assert job.sampling == msgspec.structs.replace(DEFAULT_SAMPLING, max_tokens=room)
    assert job.cache_prompt
    assert job.n == 1
    assert job.logprobs is None


def test_temperature_0_and_top_k_1_are_greedy(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    assert post_for_job(server, engine, temperature=0).sampling.is_greedy
    assert post_for_job(server, engine, temperature=1.9, top_k=1).sampling.is_greedy
    assert not post_for_job(server, engine).sampling.is_greedy


def test_completion_of_a_streamed_answer_is_complete(server: RunningServer) -> None:
    """The fold gets the same deltas as the stream."""
    services = server.app.runtime.services
    completion, written = Completion(), []

    def deliver(delta: Delta) -> None:
        written.append(delta.text)
        completion.add(delta)

    async def answer() -> None:
        chat = Chat(messages=(Message(role="user", content=make_text_content("hi")),))
        request = Request(model="scripted", prompts=(chat,), stream=True)
        plan = await pipeline.prepare(request, services)
        try:
            await pipeline.generate(plan, deliver)
        finally:
            plan.close()

    server.run_coroutine(answer())
    assert len(written) > 3
    assert completion.build_choices()[0].text == "".join(written) == "Hello there!"
    assert completion.build_choices()[0].finish == "stop"


def test_sampling_with_defaults() -> None:
    request = Sampling(temperature=0.0, top_k=0)
    model = Sampling(temperature=0.6, top_k=20, min_p=0.1)
    combined = request.with_defaults(model)
    assert (combined.temperature, combined.top_k, combined.min_p) == (0.0, 0, 0.1)


def test_seeded_request_skips_the_prompt_cache_by_default(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    assert post_for_job(server, engine).cache_prompt
    assert not post_for_job(server, engine, seed=1).cache_prompt
    assert post_for_job(server, engine, seed=1, cache_prompt=True).cache_prompt
    assert not post_for_job(server, engine, cache_prompt=False).cache_prompt
