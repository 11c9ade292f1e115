"""Fields that a wire API does not have, and bodies without a content type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.serving import RunningServer, serve_scripted

CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"model": "scripted", "prompt": "hi"}
INPUT = {"model": "scripted", "input": "hi"}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/completions": PROMPT,
    "/v1/responses": INPUT,
    "/v1/responses/input_tokens": INPUT,
    "/v1/messages": CHAT | {"max_tokens": 9},
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": INPUT,
    "/v1/conversations": {},
    "/tokenize": PROMPT,
    "/apply-template": CHAT,
    "/detokenize": {"model": "scripted", "tokens": [97]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted(ScriptedEngine("Hello.", tokens=True)) as running:
        yield running


@pytest.fixture(scope="module")
def strict_server() -> Iterator[RunningServer]:
    with serve_scripted(ScriptedEngine("Hello.", tokens=True), strict_params=True) as running:
        yield running


def post(server: RunningServer, path: str, body: Any) -> tuple[httpx.Response, list[str]]:
    response = httpx.post(server.url + path, json=body)
    return response, response.headers.get_list("x-dragoman-warning")


@pytest.mark.parametrize("path", BODIES)
def test_unknown_field_is_reported_in_every_wire_api(server: RunningServer, path: str) -> None:
    response, warnings = post(server, path, BODIES[path])
    assert (response.status_code, warnings) == (200, [])
    response, warnings = post(server, path, BODIES[path] | {"zzz": 1})
    assert (response.status_code, warnings) == (200, ["`zzz` is unknown and has no effect."])


@pytest.mark.parametrize("path", BODIES)
def test_strict_server_rejects_unknown_fields(strict_server: RunningServer, path: str) -> None:
    assert post(strict_server, path, BODIES[path])[0].status_code == 200
    response, _ = post(strict_server, path, BODIES[path] | {"zzz": 1})
    assert response.status_code == 400
    assert "`zzz`" in response.json()["error"]["message"]


# A path, an unknown field, and the field that was probably meant.
TYPOS = [
    ("/v1/chat/completions", "max_token", "max_tokens"),
    ("/v1/chat/completions", "temprature", "temperature"),
    ("/v1/chat/completions", "Top_P", "top_p"),
    ("/v1/chat/completions", "chat_template_kwarg", "chat_template_kwargs"),
    ("/v1/completions", "max_tokns", "max_tokens"),
    ("/v1/responses", "max_output_token", "max_output_tokens"),
    ("/v1/messages", "stop_sequence", "stop_sequences"),
    ("/v1/embeddings", "dimension", "dimensions"),
]


@pytest.mark.parametrize(("path", "sent", "meant"), TYPOS)
def test_typo_gets_a_suggestion(
    server: RunningServer, strict_server: RunningServer, path: str, sent: str, meant: str
) -> None:
    body = BODIES[path] | {sent: 3}
    response, [warning] = post(server, path, body)
    assert response.status_code == 200
    assert warning == f"`{sent}` is unknown and has no effect. Did you mean `{meant}`?"
    response, _ = post(strict_server, path, body)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message == f"Unrecognized field `{sent}`. Did you mean `{meant}`?"
    if path != "/v1/messages":
        assert response.json()["error"]["param"] == sent


@pytest.mark.parametrize(
    ("path", "fields", "sent", "meant"),
    [
        (
            "/v1/chat/completions",
            {"stream": True, "stream_options": {"include_usag": True}},
            "stream_options.include_usag",
            "include_usage",
        ),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "text", "json_shema": {}}},
            "response_format.json_shema",
            "json_schema",
        ),
        ("/v1/responses", {"text": {"verbose": "low"}}, "text.verbose", "verbosity"),
        (
            "/v1/messages",
            {"thinking": {"type": "disabled", "budget_token": 5}},
            "thinking.budget_token",
            "budget_tokens",
        ),
    ],
)
def test_unknown_fields_of_objects_are_reported(
    server: RunningServer, path: str, fields: Any, sent: str, meant: str
) -> None:
    response, warnings = post(server, path, BODIES[path] | fields)
    assert response.status_code == 200
    assert warnings == [f"`{sent}` is unknown and has no effect. Did you mean `{meant}`?"]


def test_warnings_of_a_stream_come_with_its_headers(server: RunningServer) -> None:
    _, warnings = post(server, "/v1/chat/completions", CHAT | {"stream": True, "max_token": 3})
    assert len(warnings) == 1


def test_an_error_carries_the_warnings_too(server: RunningServer) -> None:
    response, [warning] = post(server, "/v1/chat/completions", CHAT | {"n": 0, "max_token": 3})
    assert response.status_code == 400
    assert "`max_tokens`" in warning


def test_headers_stay_safe_and_few(server: RunningServer) -> None:
    names = ["a\r\nset-cookie: x=1", "naïve 日本 😀", "x" * 100_000, ""]
    names += [f"field {i}" for i in range(900)]
    response, warnings = post(server, "/v1/chat/completions", CHAT | dict.fromkeys(names, 1))
    assert response.status_code == 200
    assert len(warnings) == 16
    assert "set-cookie" not in response.headers
    assert all(warning.isprintable() and len(warning) <= 300 for warning in warnings)


def test_unknown_fields_hide_no_other_warning(server: RunningServer) -> None:
    """The number of headers is limited, so what was asked and has no effect comes first."""
    body = CHAT | {"reasoning_effort": "high"} | {f"unknown{number}": 1 for number in range(30)}
    _, warnings = post(server, "/v1/chat/completions", body)
    assert warnings[0].startswith("`reasoning_effort` has no effect")


def test_fields_that_clients_always_send_are_known(server: RunningServer) -> None:
    """No warning for what well-known clients send with every request."""
    fields: dict[str, Any] = {
        "/v1/chat/completions": {"user": "u", "store": False, "service_tier": "auto"}
        | {"prompt_cache_key": "k", "parallel_tool_calls": True, "metadata": {}},
        "/v1/responses": {"client_metadata": {}, "include": ["reasoning.encrypted_content"]}
        | {"prompt_cache_key": "k", "parallel_tool_calls": True, "store": False},
        "/v1/messages": {"metadata": {"user_id": "{}"}, "tools": [], "context_management": {}},
    }
    for path, extra in fields.items():
        response, warnings = post(server, path, BODIES[path] | extra)
        assert (response.status_code, warnings) == (200, []), path


HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/vnd.api+json"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
        # a page of this server itself
        ({"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}, 200),
        # pages of other sites: browsers send such requests without asking first
        ({"sec-fetch-site": "cross-site"}, 415),
        ({"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, 415),
        ({"origin": "http://localhost:3000"}, 415),
        ({"origin": "null"}, 403),
        ({"origin": "https://evil.example"}, 403),
        # these say that they are JSON, for which browsers ask first
        ({"origin": "http://localhost:3000", "content-type": "application/json"}, 200),
    ],
)
def test_body_without_content_type_is_json_unless_another_site_sends_it(
    server: RunningServer, headers: dict[str, str], status: int
) -> None:
    request = httpx.Request(
        "POST", f"{server.url}/v1/chat/completions", content=json.dumps(CHAT), headers=headers
    )
    with httpx.Client() as client:
        response = client.send(request)
    assert response.status_code == status, response.text
    if status == 415:
        message = response.json()["error"]["message"]
        assert message.startswith("Set `Content-Type: application/json`")
        assert ("curl" in message) == ("form" in headers.get("content-type", ""))
