"""Bring your own engine: ten lines behind a real client, standalone or in a FastAPI app."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastapi
import httpx
import openai
import pytest
import uvicorn
from openai import OpenAI

import dragoman
from dragoman import runtime
from dragoman.errors import ModelBroken
from dragoman.types import Job, Step
from tests.support.serving import make_chat, make_scripted_app, serve_scripted


class Echo:
    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        for word in str(job.prompt).split():
            yield Step(text=word + " ", tokens=1)
        yield Step(finish="stop")


class Cumulative:
    async def generate_request(self, obj: Any) -> AsyncIterator[dict[str, Any]]:
        meta: dict[str, Any] = {"prompt_tokens": 2, "completion_tokens": 1, "finish_reason": None}
        for text in ("Hel", "Hello", "Hello you"):
            yield {"text": text, "output_ids": [], "meta_info": meta}
        meta |= {"finish_reason": {"type": "stop"}, "completion_tokens": 3}
        yield {"text": "Hello you", "output_ids": [], "meta_info": meta}


class ContradictsItself:
    async def generate_request(self, obj: Any) -> AsyncIterator[dict[str, Any]]:
        for text in ("Hello you", "Goodbye"):
            yield {"text": text, "output_ids": [], "meta_info": {"finish_reason": None}}


class OpenJob:
    """A job that runs from `generate` on, and yields nothing until it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def __aiter__(self) -> OpenJob:
        return self

    async def __anext__(self) -> Step:
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        self.is_closed = True


class StartsAtOnce:
    """Starts each job when `generate` is called, and then calls a function of the test."""

    def __init__(self) -> None:
        self.jobs: list[OpenJob] = []
        self.on_start: Callable[[], object] = bool

    def generate(self, job: Job) -> OpenJob:
        self.jobs.append(OpenJob())
        asyncio.get_running_loop().call_soon(self.on_start)
        return self.jobs[-1]


def make_client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def complete(client: OpenAI, stream: bool = False) -> str:
    messages: Any = [{"role": "user", "content": "one two"}]
    if not stream:
        answer = client.chat.completions.create(model="default", messages=messages)
        return answer.choices[0].message.content or ""
    chunks = client.chat.completions.create(model="default", messages=messages, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("engine", "answer"), [(Echo(), "one two "), (Cumulative(), "Hello you")])
def test_an_engine_of_ten_lines_answers_the_client(engine: Any, answer: str, stream: bool) -> None:
    with serve_scripted(engine, name=None) as server, make_client(server.url) as client:
        assert complete(client, stream) == answer


def test_an_engine_without_choices_serves_several_choices() -> None:
    with serve_scripted(Echo(), name=None) as server:
        body = {"model": "default", "prompt": ["a b", "c"], "n": 2, "max_tokens": 9}
        answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
        assert [choice["text"] for choice in answer["choices"]] == ["a b ", "a b ", "c ", "c "]
        rejected = httpx.post(f"{server.url}/v1/completions", json=body | {"logprobs": 1})
        assert rejected.status_code == 400
        assert rejected.json()["error"]["param"] == "logprobs"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_cancelled_when_its_job_starts_closes_the_job(stream: bool) -> None:
    body = json.dumps(make_chat(stream=stream)).encode()
    incoming: list[Any] = [{"type": "http.request", "body": body}]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}

    async def receive() -> Any:
        return incoming.pop() if incoming else await asyncio.Event().wait()

    async def send(_: Any) -> None: ...

    async def scenario(engine: StartsAtOnce) -> None:
        app = make_scripted_app(engine)
        request = asyncio.ensure_future(app(scope, receive, send))
        engine.on_start = request.cancel
        await asyncio.wait([request])
        await app.aclose()

    engine = StartsAtOnce()
    asyncio.run(scenario(engine))
    assert [job.is_closed for job in engine.jobs] == [True]


def test_max_tokens_is_enforced_for_an_engine_that_ignores_it() -> None:
    with serve_scripted(Echo(), name=None) as server:
        body = {"model": "default", "prompt": "a b c d", "max_tokens": 2}
        answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == "a b "
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 2


def test_text_that_does_not_extend_what_was_sent_is_an_error() -> None:
    with (
        serve_scripted(ContradictsItself(), name=None) as server,
        make_client(server.url) as client,
    ):
        with pytest.raises(openai.InternalServerError):
            complete(client)
        with pytest.raises(openai.APIError):
            complete(client, stream=True)


@contextmanager
def mount(inner: Any, path: str) -> Iterator[str]:
    """Serve a FastAPI app in which ours is mounted."""
    outer = fastapi.FastAPI()

    @outer.get("/own")
    def own() -> dict[str, bool]:
        return {"own": True}

    outer.mount(path, inner)
    config = uvicorn.Config(outer, port=0, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


def test_the_app_is_mounted_inside_a_fastapi_app() -> None:
    with mount(dragoman.app(Echo()), "/llm") as url:
        assert httpx.get(f"{url}/own").json() == {"own": True}
        with make_client(f"{url}/llm") as client:
            assert complete(client) == "one two "
            assert complete(client, stream=True) == "one two "
            assert [model.id for model in client.models.list()] == ["default"]
        assert httpx.get(f"{url}/llm/health/ready").status_code == 200
        assert httpx.get(f"{url}/llm/nothing").json()["error"]["code"] == "not_found"
        assert httpx.get(f"{url}/llm/docs").status_code == 200


def test_a_mounted_app_requires_its_api_key() -> None:
    with mount(dragoman.app(Echo(), api_key=("secret",)), "/llm") as url:
        assert httpx.get(f"{url}/llm/v1/models").status_code == 401
        headers = {"x-api-key": "secret"}
        assert httpx.get(f"{url}/llm/v1/models", headers=headers).status_code == 200


def test_a_malformed_template_fails_at_startup() -> None:
    with pytest.raises(ModelBroken):
        dragoman.app(Echo(), chat_template="{% if %}")


def test_the_template_is_used_and_its_exceptions_return_400() -> None:
    template = (
        "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('Not that.') }}"
        "{% endif %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    )
    with serve_scripted(Echo(), chat_template=template) as server:
        url = f"{server.url}/v1/chat/completions"
        answer = httpx.post(url, json=make_chat("yes")).json()
        assert answer["choices"][0]["message"]["content"] == "[user] yes "
        for stream in (False, True):
            rejected = httpx.post(url, json=make_chat("no", stream=stream))
            assert rejected.status_code == 400
            assert "Not that." in rejected.json()["error"]["message"]


def test_the_loaded_models_template_is_used_for_any_model_name() -> None:
    with serve_scripted(
        Echo(), chat_template="[loaded] {{ messages[0].content }}", any_model=True
    ) as server:
        for name in ("scripted", "llama-3", "qwen2.5", "mistral"):
            answer = httpx.post(
                f"{server.url}/v1/chat/completions", json=make_chat("hi", model=name)
            ).json()
            assert answer["choices"][0]["message"]["content"] == "[loaded] hi "


def test_an_object_that_is_not_an_engine_is_rejected_at_startup() -> None:
    with pytest.raises(TypeError, match="generate"):
        dragoman.app(object())


def test_listening_on_other_interfaces_requires_an_api_key() -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::"):
        with pytest.raises(runtime.StartupError, match="API key"):
            make_scripted_app(host=host)
        with pytest.raises(runtime.StartupError, match="API key"):
            make_scripted_app(host=host, admin_key=("boss",))
        make_scripted_app(host=host, api_key=("secret",))
        make_scripted_app(host=host, allow_open=True)


def test_a_missing_key_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(runtime.StartupError, match="--api-key-file"):
        make_scripted_app(api_key_file=str(tmp_path / "missing"))
