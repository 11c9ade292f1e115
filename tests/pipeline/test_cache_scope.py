"""The cache scopes of jobs: one for each API key, and what engines without scopes may reuse."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from dragoman.runtime import StartupError
from dragoman.testing import ScriptedEngine
from tests.support.serving import RunningServer, make_chat, make_scripted_app, serve_scripted

KEYS = ("key-of-ann", "key-of-bob")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)


class CachingEngine(ScriptedEngine):
    """Promises to keep scopes apart, and to share public prefixes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("Hello there!", tokens=True, cached=4, **settings)
        self.capabilities = replace(self.capabilities, cache_scopes=True, public_prefixes=True)


def send(
    server: RunningServer, path: str, body: dict[str, Any], key: str = "", status: int = 200
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    response = httpx.post(f"{server.url}{path}", json=body, headers=headers)
    assert response.status_code == status, response.text
    return response


def send_chat(server: RunningServer, key: str = "", **fields: Any) -> httpx.Response:
    body = make_chat("one two three four five", **fields)
    return send(server, "/v1/chat/completions", body, key)


def test_each_key_has_a_scope_of_its_own() -> None:
    """The same in all requests of the key, on every wire API, and not the key or its owner."""
    engine = CachingEngine()
    message = {"role": "user", "content": "hi"}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [message]}),
        ("/v1/chat/completions", {"messages": [message], "n": 2, "stream": True}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [message], "max_tokens": 5}),
    ]
    with serve_scripted(engine, api_key=KEYS) as server:
        scopes = []
        for key in KEYS:
            before = len(engine.jobs)
            for path, body in requests:
                send(server, path, {"model": "scripted"} | body, key)
            [scope] = {job.cache_scope for job in list(engine.jobs)[before:]}
            assert len(engine.jobs) - before == 6
            scopes.append(scope)
    assert len(set(scopes)) == 2
    assert all(
        len(scope) == 24 and key not in scope for key, scope in zip(KEYS, scopes, strict=True)
    )
    assert all(job.cache_prompt for job in engine.jobs)


@pytest.mark.parametrize("options", [{}, {"api_key": KEYS, "shared_cache": True}])
def test_there_is_one_scope_without_keys_or_with_a_shared_cache(options: dict[str, Any]) -> None:
    engine = CachingEngine()
    with serve_scripted(engine, **options) as server:
        for key in options.get("api_key", ("",)):
            cached = send_chat(server, key).json()["usage"]["prompt_tokens_details"]
            assert cached == {"cached_tokens": 4}
    assert {job.cache_scope for job in engine.jobs} == {""}


def test_an_engine_without_scopes_reuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Each job says so, the log once, and a warning to each client that asks for reuse."""
    engine = ScriptedEngine(cached=4)
    caplog.set_level(logging.WARNING)
    with serve_scripted(engine, api_key=KEYS) as server:
        for fields in ({}, {"cache_prompt": True}, {"cache_prompt": False}):
            response = send_chat(server, KEYS[0], **fields)
            details = response.json()["usage"].get("prompt_tokens_details") or {}
            assert not details.get("cached_tokens")
            warning = "`cache_prompt` has no effect" in response.headers.get(
                "x-dragoman-warning", ""
            )
            assert warning is (fields.get("cache_prompt") is True)
    assert not any(job.cache_prompt for job in engine.jobs)
    logged = [record for record in caplog.records if "--shared-cache" in record.getMessage()]
    assert len(logged) == 1


def test_without_keys_an_engine_without_scopes_reuses_prompts() -> None:
    engine = ScriptedEngine(cached=4)
    with serve_scripted(engine) as server:
        assert send_chat(server).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 4


RULES = "Be brief."
PREFIX = f"<|im_start|>system\n{RULES}<|im_end|>\n<|im_start|>user\n"


@pytest.mark.parametrize(
    ("path", "fields", "is_public"),
    [
        ("/v1/chat/completions", {"messages": [("system", RULES), ("user", "hi")]}, True),
        ("/v1/chat/completions", {"messages": [("system", RULES + " "), ("user", "hi")]}, False),
        ("/v1/chat/completions", {"messages": [("user", RULES)]}, False),
        ("/v1/messages", {"messages": [("user", "hi")], "system": RULES, "max_tokens": 9}, True),
        ("/v1/responses", {"input": "hi", "instructions": RULES}, True),
        ("/v1/completions", {"prompt": PREFIX + "hi"}, True),
        ("/v1/completions", {"prompt": PREFIX[:-8]}, False),
    ],
)
def test_a_public_prompt_is_found_at_the_beginning(
    path: str, fields: dict[str, Any], is_public: bool
) -> None:
    engine = CachingEngine()
    options = {"public_prompt": (RULES, "Another."), "chat_template": TEMPLATE, "api_key": KEYS}
    if "messages" in fields:
        messages = [{"role": role, "content": text} for role, text in fields["messages"]]
        fields = fields | {"messages": messages}
    with serve_scripted(engine, **options) as server:
        send(server, path, {"model": "scripted"} | fields, KEYS[0])
    [job] = engine.jobs
    assert engine.tokenizer is not None
    prefix = engine.tokenizer.encode_with_specials(PREFIX)
    assert job.public_prefix == (len(prefix) if is_public else 0)
    assert (list(job.prompt[: len(prefix)]) == prefix) is is_public


def test_an_engine_that_cannot_share_a_prefix_is_not_started_with_one() -> None:
    with pytest.raises(StartupError, match="`public_prompt` has no effect with this engine"):
        make_scripted_app(public_prompt=(RULES,))


def test_equal_schemas_of_two_keys_are_compiled_twice() -> None:
    schema = {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    fields = {"response_format": {"type": "json_schema", "json_schema": schema}}
    with serve_scripted(ScriptedEngine('{"a": "b"}', grammars=True), api_key=KEYS) as server:
        compiler = server.app.runtime.services.compiler
        misses = []
        for key in (KEYS[0], KEYS[0], KEYS[1], KEYS[0]):
            before = compiler.stats.misses
            send_chat(server, key, **fields)
            misses.append(compiler.stats.misses - before)
    assert misses == [1, 0, 1, 0]
