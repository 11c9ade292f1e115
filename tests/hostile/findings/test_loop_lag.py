"""The event loop waits for no request, however large."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.testing import ScriptedEngine
from tests.support.default_tokenizer import read_chat_template, read_tokenizer
from tests.support.large_bodies import BODIES, STATUSES, list_large_bodies
from tests.support.loop_lag import LAG_LIMIT, LagReport, measure_thread_lag
from tests.support.process_cost import MIB
from tests.support.serving import RunningServer, serve_scripted
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow

HEADERS = {"content-type": "application/json"}
SENTENCE = "The quick brown fox jumps over the lazy dog while 1,024 engines wait. "


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    engine = ScriptedEngine("x", tokens=True, context=8192, embeddings=384, scores=True, slots=4)
    with serve_scripted(
        engine,
        tokenizer=read_tokenizer(default_model),
        chat_template=read_chat_template(default_model),
    ) as running:
        yield running


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@measures_time
def test_two_thousand_large_embeddings(
    server: RunningServer, encoding_format: str, add_figures: Callable[..., None]
) -> None:
    inputs = [f"{number} " + SENTENCE * 8 for number in range(2048)]
    body = {"model": "scripted", "input": inputs, "encoding_format": encoding_format}
    content = json.dumps(body).encode()
    with httpx.Client(base_url=server.url, timeout=120, headers=HEADERS) as client:
        with measure_thread_lag(server) as lag:
            response = client.post("/v1/embeddings", content=content)
        assert response.status_code == 200, response.text[:300]
        vectors = response.json()
    assert [item["index"] for item in vectors["data"]] == list(range(2048))
    assert vectors["usage"]["prompt_tokens"] > 300_000
    print(f"\n2,048 embeddings as {encoding_format}: {lag}")
    assert lag.get_quantile(0.99) <= LAG_LIMIT, lag
    add_figures("lag", **{f"embeddings {encoding_format}": str(lag)})


@measures_time
def test_too_many_tokens_to_embed_are_refused(server: RunningServer) -> None:
    body = {"model": "scripted", "input": [SENTENCE * 40] * 2048}
    with (
        httpx.Client(base_url=server.url, timeout=120) as client,
        measure_thread_lag(server) as lag,
    ):
        response = client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert "400000 tokens in all" in response.json()["error"]["message"]
    assert lag.get_quantile(0.99) <= LAG_LIMIT, lag


MANY = 2000
MANY_PROMPTS: dict[str, tuple[str, dict[str, object]]] = {
    "texts": ("/v1/completions", {"prompt": [f"{number} {SENTENCE}" for number in range(MANY)]}),
    "token ids": ("/v1/completions", {"prompt": [[number, 5, 6] for number in range(MANY)]}),
    "stream": ("/v1/completions", {"prompt": ["Hi"] * MANY, "stream": True}),
    "parts of a text": (
        "/tokenize",
        {"content": [f"{number} {SENTENCE}" for number in range(MANY)]},
    ),
}


def measure_lag(
    server: RunningServer, path: str, fields: dict[str, object], count: int
) -> LagReport:
    """Send a request several times; return how long the event loop was busy meanwhile."""
    content = json.dumps({"model": "scripted", "max_tokens": 1} | fields).encode()
    with (
        httpx.Client(base_url=server.url, timeout=120, headers=HEADERS) as client,
        measure_thread_lag(server) as lag,
    ):
        responses = [client.post(path, content=content) for _ in range(count)]
    assert [response.status_code for response in responses] == [200] * count, responses[0].text[
        :300
    ]
    return lag


@pytest.mark.parametrize("case", MANY_PROMPTS)
@measures_time
def test_a_request_of_many_prompts_gives_way(
    server: RunningServer, case: str, add_figures: Callable[..., None]
) -> None:
    lag = measure_lag(server, *MANY_PROMPTS[case], count=3)
    print(f"\n{MANY} prompts as {case}: {lag}")
    assert lag.get_quantile(0.99) <= LAG_LIMIT, lag
    add_figures("lag", **{f"prompts as {case}": str(lag)})


@measures_time
def test_many_choices_that_echo_a_long_prompt(
    server: RunningServer, add_figures: Callable[..., None]
) -> None:
    fields = {"prompt": SENTENCE * 420, "echo": True, "logprobs": 5, "max_tokens": 1}
    content = json.dumps({"model": "scripted", "n": 8} | fields).encode()
    with (
        httpx.Client(base_url=server.url, timeout=120, headers=HEADERS) as client,
        measure_thread_lag(server) as lag,
    ):
        response = client.post("/v1/completions", content=content)
    assert response.status_code == 200, response.text[:300]
    assert len(response.json()["choices"][7]["logprobs"]["tokens"]) > 7_000
    print(f"\n8 choices that echo: {lag}")
    assert lag.get_quantile(0.99) <= LAG_LIMIT, lag
    add_figures("lag", **{"choices that echo": str(lag)})


LONG = 390_000  # tokens of a prompt
LONG_PROMPTS: dict[str, tuple[str, dict[str, object]]] = {
    "token ids": ("/v1/completions", {"prompt": [500] * LONG}),
    "a chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": " engine" * LONG}]},
    ),
    "a context to continue": ("/api/generate", {"prompt": " engine" * LONG, "stream": False}),
}


@pytest.fixture(scope="module")
def long_server(default_model: Path) -> Iterator[RunningServer]:
    """A server whose engine is in a child process, as the default one, and has a long context."""
    settings = {"script": "x", "tokens": True, "context": 1_000_000}
    engine = SubprocessEngine("dragoman.testing.scripted:create", settings, name="scripted")
    engine.capabilities = ScriptedEngine("x", tokens=True, context=1_000_000).capabilities
    with serve_scripted(
        engine,
        tokenizer=read_tokenizer(default_model),
        chat_template=read_chat_template(default_model),
    ) as running:
        running.run_coroutine(engine.start())
        try:
            yield running
        finally:
            running.run_coroutine(engine.aclose())


@pytest.mark.parametrize("case", LONG_PROMPTS)
@measures_time
def test_a_very_long_prompt(
    long_server: RunningServer, case: str, add_figures: Callable[..., None]
) -> None:
    lag = measure_lag(long_server, *LONG_PROMPTS[case], count=2)
    print(f"\n{LONG} tokens as {case}: {lag}")
    assert lag.get_quantile(1) <= LAG_LIMIT, lag
    add_figures("lag", **{f"{LONG:,} tokens as {case}": str(lag)})


def check_lag_of_large_bodies(server: RunningServer, every: int) -> str:
    """Send each `every`-th of the bodies; return the lag of the loop in words."""
    with httpx.Client(base_url=server.url, timeout=60, headers=HEADERS) as client:
        conversation = client.post("/v1/conversations", json={}).json()["id"]
        bodies = [*list_large_bodies([*BODIES], MIB, ("quotes",))][::every]
        with measure_thread_lag(server) as lag:
            for body in bodies:
                path = body.route.split()[1].replace("{id}", conversation)
                response = client.post(path, content=body.content)
                assert response.status_code in STATUSES, body[:2]
    print(f"\n{len(bodies)} large bodies: {lag}")
    assert lag.get_quantile(0.99) <= LAG_LIMIT, lag
    return str(lag)


@measures_time
def test_no_route_blocks_the_loop_with_its_largest_bodies(server: RunningServer) -> None:
    check_lag_of_large_bodies(server, every=5)
