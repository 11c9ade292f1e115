"""Every answer of OpenAI's routes has the types that OpenAI publishes, checked strictly.

The oracle is the `openai` package: its types say which fields must be there and which may be null.
Where they do not distinguish null from absent, OpenAI's document does; `NEVER_NULL` has those.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionDeleted
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
)
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import TypeAdapter

from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, serve_scripted

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPT = [
    Reply(f"<think>\nLet me look.\n</think>\n\nWait. {CALL}", when="weather"),
    Reply("One, two, three", when="break", raise_at=2),
    Reply("Hello there!"),
]
# Null is forbidden wherever the field is, by the document.
NEVER_NULL = {"user", "first_id", "last_id", "system_fingerprint", "has_more", "object", "id"}
WEATHER = {"name": "weather", "parameters": {"type": "object"}, "strict": False}
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
CHAT_CALL = {
    "messages": [{"role": "user", "content": "weather"}],
    "tools": [{"type": "function", "function": WEATHER}],
}
CHAT_CASES: list[dict[str, Any]] = [
    {},
    CHAT_CALL,
    {"logprobs": True, "top_logprobs": 2},
    {"n": 2, "stop": ["there"]},
    {"store": True, "metadata": {"a": "b"}},
    {"max_tokens": 1, "service_tier": "flex", "user": "me"},
]
RESPONSE_CASES: list[dict[str, Any]] = [
    {},
    {"input": "weather", "tools": [WEATHER | {"type": "function"}]},
    {"input": "weather", "reasoning": {"effort": "low", "summary": "auto"}},
    {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]},
    {"metadata": {"a": "b"}, "user": "me", "instructions": "x", "service_tier": "flex"},
    {"max_output_tokens": 1, "store": False},
    {"background": True},
    {"tools": [{"type": "custom", "name": "c"}], "tool_choice": "none"},
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = ScriptedEngine(SCRIPT, tokens=True, context=4096)
    with serve_scripted(engine, chat_template=TEMPLATES / "thinker.jinja") as running:
        yield running


def call(server: RunningServer, method: str, path: str, **body: Any) -> Any:
    sent = {"json": body} if method == "POST" else {}
    response = httpx.request(method, server.url + path, **sent)  # type: ignore[arg-type]
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return response.json()
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@cache
def get_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check(kind: Any, answer: Any) -> Any:
    get_adapter(kind).validate_json(json.dumps(answer), strict=True)
    assert not [path for path in find_nulls(answer) if path.rsplit(".", 1)[-1] in NEVER_NULL]
    return answer


def find_nulls(value: Any, path: str = "") -> Iterator[str]:
    match value:
        case None:
            yield path
        case dict():
            for name, inner in value.items():
                yield from find_nulls(inner, f"{path}.{name}")
        case list():
            for inner in value:
                yield from find_nulls(inner, path)


@pytest.mark.parametrize("fields", CHAT_CASES)
def test_chat_completions(server: RunningServer, fields: dict[str, Any]) -> None:
    whole = check(ChatCompletion, call(server, "POST", "/v1/chat/completions", **CHAT | fields))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = call(server, "POST", "/v1/chat/completions", **CHAT | fields | options)
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
    for answer in (whole, *chunks):
        assert answer["service_tier"] == fields.get("service_tier", "default")
        assert answer["system_fingerprint"] == whole["system_fingerprint"]
    assert whole["system_fingerprint"].startswith("fp_")


def test_stored_chat_completions(server: RunningServer) -> None:
    path = "/v1/chat/completions"
    created = call(server, "POST", path, **CHAT, store=True)
    own = f"{path}/{created['id']}"
    check(ChatCompletion, call(server, "GET", own))
    check(ChatCompletion, call(server, "POST", own, metadata={"a": "b"}))
    for listed in ("", "?model=none", "?limit=1"):
        page = call(server, "GET", path + listed)
        for item in page["data"]:
            check(ChatCompletion, item)
        assert not [name for name in find_nulls(page) if name[1:] in NEVER_NULL]
    messages = call(server, "GET", f"{own}/messages")
    after = call(server, "GET", f"{own}/messages?after={messages['last_id']}")
    assert (after["data"], after["first_id"], after["last_id"]) == ([], "", "")
    check(ChatCompletionDeleted, call(server, "DELETE", own))


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"n": 2, "max_tokens": 1}])
def test_completions(server: RunningServer, fields: dict[str, Any]) -> None:
    body = {"model": "scripted", "prompt": "hi"} | fields
    check(Completion, call(server, "POST", "/v1/completions", **body))
    for chunk in call(server, "POST", "/v1/completions", **body, stream=True):
        for choice in chunk["choices"]:  # OpenAI streams null until the end, against its document
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        check(Completion, chunk)


def test_models_and_embeddings(server: RunningServer) -> None:
    body = {"model": "scripted", "input": ["a", "b"], "encoding_format": "float"}
    check(CreateEmbeddingResponse, call(server, "POST", "/v1/embeddings", **body))
    for card in call(server, "GET", "/v1/models")["data"]:
        check(Model, card)
    check(Model, call(server, "GET", "/v1/models/scripted"))


@pytest.mark.parametrize("fields", RESPONSE_CASES)
def test_responses(server: RunningServer, fields: dict[str, Any]) -> None:
    body = {"model": "scripted", "input": "hi"} | fields
    response = check(Response, call(server, "POST", "/v1/responses", **body))
    if fields.get("store") is not False:
        check(Response, call(server, "GET", f"/v1/responses/{response['id']}"))
    for event in call(server, "POST", "/v1/responses", **body, stream=True):
        check(ResponseStreamEvent, event)
    assert response.get("user", "absent") == fields.get("user", "absent")


def test_a_response_that_fails(server: RunningServer) -> None:
    body = {"model": "scripted", "input": "break", "stream": True}
    events = call(server, "POST", "/v1/responses", **body)
    assert events[-1]["type"] == "response.failed"
    for event in events:
        check(ResponseStreamEvent, event)


def test_what_belongs_to_responses(server: RunningServer) -> None:
    body = {"model": "scripted", "input": "hi"}
    created = call(server, "POST", "/v1/responses", **body)
    path = f"/v1/responses/{created['id']}/input_items"
    items = check(ResponseItemList, call(server, "GET", path))
    empty = check(ResponseItemList, call(server, "GET", f"{path}?after={items['last_id']}"))
    assert empty["data"] == []
    check(InputTokenCountResponse, call(server, "POST", "/v1/responses/input_tokens", **body))


def test_conversations(server: RunningServer) -> None:
    path = "/v1/conversations"
    message = {"type": "message", "role": "user", "content": "hi"}
    empty = check(Conversation, call(server, "POST", path, metadata={}))
    check(ConversationItemList, call(server, "GET", f"{path}/{empty['id']}/items"))
    created = check(Conversation, call(server, "POST", path, items=[message]))
    own = f"{path}/{created['id']}"
    body = {"model": "scripted", "input": "hi", "conversation": created["id"]}
    check(Response, call(server, "POST", "/v1/responses", **body))
    check(ConversationItemList, call(server, "POST", f"{own}/items", items=[message]))
    items = check(ConversationItemList, call(server, "GET", f"{own}/items"))
    first = f"{own}/items/{items['first_id']}"
    check(ConversationItem, call(server, "GET", first))
    check(Conversation, call(server, "DELETE", first))
    check(Conversation, call(server, "POST", own, metadata={"a": "b"}))
    check(Conversation, call(server, "GET", own))
    check(ConversationDeletedResource, call(server, "DELETE", own))
