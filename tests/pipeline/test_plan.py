"""What engines get: the id of the response, and the fields that somebody set."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

from dragoman.engines.request_engine import GenerateRequest
from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Job, Sampling, Step
from tests.support.serving import RunningServer, make_chat, make_scripted_app, run_app

USER = [{"role": "user", "content": "hi"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
}
PREFIXES = {
    "/v1/chat/completions": "chatcmpl-",
    "/v1/completions": "cmpl-",
    "/v1/messages": "msg_",
    "/v1/responses": "resp_",
}


class OwnEngine:
    """Records its jobs."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self.jobs.append(job)
        yield Step(text="yes", tokens=1, finish="stop")


class EngineWithDefaults(OwnEngine):
    capabilities = Capabilities(
        sampling=frozenset({"temperature", "max_tokens"}), sampling_defaults=True
    )


class RequestsEngine:
    """Records its requests."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []

    async def generate_request(self, obj: GenerateRequest) -> AsyncGenerator[Any, None]:
        self.requests.append(obj)
        yield {"text": "yes", "meta_info": {"finish_reason": "stop", "completion_tokens": 1}}


@pytest.fixture(scope="module")
def own() -> Iterator[tuple[RunningServer, OwnEngine]]:
    engine = OwnEngine()
    with run_app(make_scripted_app(engine)) as server:
        yield server, engine


@pytest.fixture(scope="module")
def requests() -> Iterator[tuple[RunningServer, RequestsEngine]]:
    engine = RequestsEngine()
    with run_app(make_scripted_app(engine)) as server:
        yield server, engine


def find_response_id(response: httpx.Response) -> str:
    """Return the id of a response, whole or streamed."""
    assert response.status_code == 200, response.text
    if "event-stream" not in response.headers["content-type"]:
        body = response.json()
    else:
        [first, *_] = [line for line in response.text.splitlines() if line.startswith("data: ")]
        body = json.loads(first.removeprefix("data: "))
    for key in ("response", "message"):
        body = body.get(key, body) if isinstance(body.get(key, body), dict) else body
    found: str = body["id"]
    return found


def post(server: RunningServer, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "scripted"} | CALLS[path] | fields
    return httpx.post(f"{server.url}{path}", json=body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
def test_the_id_of_a_job_is_the_id_of_the_response(
    own: tuple[RunningServer, OwnEngine],
    requests: tuple[RunningServer, RequestsEngine],
    path: str,
    stream: bool,
) -> None:
    response_id = find_response_id(post(own[0], path, stream=stream))
    assert response_id.startswith(PREFIXES[path])
    assert own[1].jobs[-1].id == response_id
    response_id = find_response_id(post(requests[0], path, stream=stream))
    assert requests[1].requests[-1].rid == response_id


SEVERAL: list[tuple[str, dict[str, Any], list[str]]] = [
    ("/v1/chat/completions", {"n": 2}, ["-0", "-1"]),
    ("/v1/completions", {"n": 3}, ["-0", "-1", "-2"]),
    ("/v1/completions", {"prompt": ["a", "b"]}, ["-0", "-1"]),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, ["-0-0", "-0-1", "-1-0", "-1-1"]),
    ("/v1/completions", {"prompt": ["a"]}, [""]),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "suffixes"), SEVERAL)
def test_choices_and_prompts_are_numbered(
    own: tuple[RunningServer, OwnEngine],
    requests: tuple[RunningServer, RequestsEngine],
    path: str,
    fields: dict[str, Any],
    suffixes: list[str],
    stream: bool,
) -> None:
    own[1].jobs.clear()
    requests[1].requests.clear()
    response_id = find_response_id(post(own[0], path, stream=stream, **fields))
    expected = [response_id + suffix for suffix in suffixes]
    assert sorted(job.id for job in own[1].jobs) == expected
    response_id = find_response_id(post(requests[0], path, stream=stream, **fields))
    expected = [response_id + suffix for suffix in suffixes]
    assert sorted(request.rid for request in requests[1].requests) == expected


def test_the_continuation_of_an_answer_is_numbered() -> None:
    """When reasoning is cut short, another job continues the answer."""
    engine = ScriptedEngine(
        {"</think>": "Forty-two.", "it": Reply("<think>" + "hm " * 20, chunks="words")}
    )
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    with run_app(make_scripted_app(engine, chat_template=template)) as server:
        body = make_chat("it", thinking_budget=4)
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    response_id = find_response_id(response)
    assert [job.id for job in engine.jobs] == [response_id, f"{response_id}-c1"]


def test_ids_are_never_repeated(own: tuple[RunningServer, OwnEngine]) -> None:
    own[1].jobs.clear()
    for path in CALLS:
        for _ in range(3):
            post(own[0], path)
    ids = [job.id for job in own[1].jobs]
    assert len(set(ids)) == len(ids) == 12


RECEIVED: list[tuple[str, dict[str, Any], Sampling, dict[str, Any]]] = [
    ("/v1/chat/completions", {}, Sampling(), {}),
    ("/v1/chat/completions", {"temperature": None, "top_p": None}, Sampling(), {}),
    (
        "/v1/chat/completions",
        {"temperature": 0, "top_k": 5, "seed": 3},
        Sampling(temperature=0.0, top_k=5, seed=3),
        {"temperature": 0.0, "top_k": 5, "sampling_seed": 3},
    ),
    (
        "/v1/chat/completions",
        {"max_completion_tokens": 7},
        Sampling(max_tokens=7),
        {"max_new_tokens": 7},
    ),
    ("/v1/completions", {}, Sampling(max_tokens=16), {"max_new_tokens": 16}),
    ("/v1/messages", {}, Sampling(max_tokens=9), {"max_new_tokens": 9}),
    ("/v1/responses", {"top_p": 0.5}, Sampling(top_p=0.5), {"top_p": 0.5}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "sampling", "params"), RECEIVED)
def test_an_engine_hears_only_what_was_set(
    own: tuple[RunningServer, OwnEngine],
    requests: tuple[RunningServer, RequestsEngine],
    path: str,
    fields: dict[str, Any],
    sampling: Sampling,
    params: dict[str, Any],
    stream: bool,
) -> None:
    for server in (own[0], requests[0]):
        assert post(server, path, stream=stream, **fields).status_code == 200
    assert own[1].jobs[-1].sampling == sampling
    assert requests[1].requests[-1].sampling_params == params


def test_an_engine_that_asks_for_defaults_gets_them() -> None:
    engine = EngineWithDefaults()
    with run_app(make_scripted_app(engine)) as server:
        post(server, "/v1/chat/completions", temperature=0.5)
    assert engine.jobs[0].sampling == Sampling(temperature=0.5).with_defaults(DEFAULT_SAMPLING)


def test_what_the_operator_sets_counts_as_set() -> None:
    engine = OwnEngine()
    with run_app(make_scripted_app(engine, sampling={"temperature": 0.25})) as server:
        post(server, "/v1/chat/completions")
        post(server, "/v1/chat/completions", temperature=1)
    assert [job.sampling for job in engine.jobs] == [
        Sampling(temperature=0.25),
        Sampling(temperature=1.0),
    ]


def test_several_choices_keep_their_seeds() -> None:
    engine = OwnEngine()
    with run_app(make_scripted_app(engine)) as server:
        post(server, "/v1/chat/completions", n=3, seed=5)
        post(server, "/v1/chat/completions", n=2)
    seeds = {job.id.rpartition("-")[2]: job.sampling.seed for job in engine.jobs[:3]}
    assert seeds == {"0": 5, "1": 6, "2": 7}
    assert [job.sampling for job in engine.jobs[3:]] == [Sampling()] * 2


class WithTokenizer(OwnEngine):
    tokenizer = ByteTokenizer()


def test_stop_strings_are_not_the_business_of_an_engine() -> None:
    engine = WithTokenizer()
    with run_app(make_scripted_app(engine)) as server:
        post(server, "/v1/chat/completions", stop=["END"])
    assert [job.sampling for job in engine.jobs] == [Sampling()]
