"""The log line of every kind of request, in text and in JSON, and what is never in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from dragoman.testing import Reply, ScriptedEngine
from tests.support.logs import LogLines, collect_logs
from tests.support.scripted_chats import THINKER, TOOLS
from tests.support.serving import RunningServer, make_chat, serve_scripted

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SECRET = "canary-5ecret"
MESSAGES = {"model": "scripted", "max_tokens": 9, "messages": make_chat("hi")["messages"]}
KEY = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    replies = [
        Reply("fails here", when="bad", raise_at=1),
        Reply(f"{CALL}\n{CALL}", when="call"),
        Reply("Hello there, you!"),
    ]
    engine = ScriptedEngine(replies, tokens=True, markup=("<tool_call>",), cached=2, slots=2)
    options = {"chat_template": THINKER, "api_key": (SECRET,), "store": "sqlite://"}
    with serve_scripted(engine, **options, shared_cache=True) as running:
        yield running


def post(server: RunningServer, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=KEY | headers, timeout=30)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", make_chat()),
        ("/v1/completions", {"model": "scripted", "prompt": "hi", "max_tokens": 99}),
        ("/v1/messages", MESSAGES | {"max_tokens": 99}),
        ("/v1/responses", {"model": "scripted", "input": "hi"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_api_logs_tokens_and_times(
    server: RunningServer, path: str, body: dict[str, Any], stream: bool
) -> None:
    request_id = f"req-{path.replace('/', '.')}-{stream}"
    with collect_logs("json") as logs:
        post(server, path, body | {"stream": stream}, **{"x-request-id": request_id})
        event = logs.wait_for_event(request_id)
    assert event["method"] == "POST"
    assert event["path"] == path
    assert event["status"] == 200
    assert event["model"] == "scripted"
    assert event["finish"] == ["stop"]
    assert event["prompt_tokens"] >= 2
    assert event["cached_tokens"] == 2
    assert event["completion_tokens"] == len("Hello there, you!")
    assert event["tokens_per_second"] > 0
    for name in ("duration_ms", "queue_ms", "prefill_ms", "first_token_ms"):
        assert event[name] >= 0, name
    assert len(event["owner"]) == 8
    assert SECRET not in json.dumps(event)


def test_one_token_has_no_speed(server: RunningServer) -> None:
    with collect_logs("json") as logs:
        body = make_chat(max_tokens=1)
        post(server, "/v1/chat/completions", body, **{"x-request-id": "one-token"})
        event = logs.wait_for_event("one-token")
    assert event["completion_tokens"] == 1
    assert "tokens_per_second" not in event


def test_text_line_is_readable(server: RunningServer) -> None:
    with collect_logs() as logs:
        post(
            server, "/v1/chat/completions", make_chat("call", tools=TOOLS), **{"x-request-id": "a1"}
        )
        [line] = logs.wait_for("request_id=a1")
    assert " INFO POST /v1/chat/completions 200 " in line
    for part in (" ms model=scripted ", "finish=tool_calls", "tools=2", "tool_calls=weather×2"):
        assert part in line
    assert "Paris" not in line


def test_embeddings_are_logged(server: RunningServer) -> None:
    with collect_logs("json") as logs:
        post(server, "/v1/embeddings", {"model": "scripted", "input": "some words"})
        event = logs.wait_for_event("/v1/embeddings")
    assert event["model"] == "scripted"
    assert event["prompt_tokens"] > 0
    assert event["queue_ms"] >= 0


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/v1/chat/completions", make_chat("bad"), 500, "engine_error"),
        ("/v1/chat/completions", make_chat("bad", stream=True), 200, "engine_error"),
        ("/v1/chat/completions", make_chat(n=0), 400, "invalid_value"),
        ("/v1/chat/completions", make_chat(model="other"), 404, "model_not_found"),
        ("/v1/unknown", {}, 404, "not_found"),
    ],
)
def test_failed_requests_are_logged(
    server: RunningServer, path: str, body: dict[str, Any], status: int, error: str
) -> None:
    with collect_logs("json") as logs:
        post(server, path, body, **{"x-request-id": "failing"})
        event = logs.wait_for_event("failing")
    assert (event["status"], event["error"]) == (status, error)
    if error == "model_not_found":
        assert event["model"] == "other"


def test_disconnect_is_logged_with_the_cancelled_tokens() -> None:
    engine = ScriptedEngine("one two three four", pace=None)
    with serve_scripted(engine) as server, collect_logs("json") as logs:
        body = make_chat(stream=True)
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
            server.run_coroutine(engine.wait_until(lambda engine: engine.active == 1))
            server.loop.call_soon_threadsafe(engine.tick, 2)
            text = ""
            for text in response.iter_text():
                if "two" in text:
                    break
        event = logs.wait_for_event("/v1/chat/completions")
        page = httpx.get(f"{server.url}/metrics").text
    assert event["status"] == 499
    assert event["error"] == "client_disconnected"
    assert event["cancelled_tokens"] == event["completion_tokens"] == 2
    assert "finish" not in event
    assert 'dragoman_cancelled_tokens_total{model="scripted"} 2.0' in page


def test_background_response_has_a_line_of_its_own(server: RunningServer) -> None:
    with collect_logs("json") as logs:
        body = {"model": "scripted", "input": "hi", "background": True}
        created = post(server, "/v1/responses", body, **{"x-request-id": "bg-1"}).json()
        event = logs.wait_for_event("BACKGROUND")
    assert event["response_id"] == created["id"]
    assert event["request_id"] == "bg-1"
    assert event["status"] == 200
    assert event["completion_tokens"] == len("Hello there, you!")


def test_failed_background_response_says_so(server: RunningServer) -> None:
    with collect_logs("json") as logs:
        post(server, "/v1/responses", {"model": "scripted", "input": "bad", "background": True})
        event = logs.wait_for_event("BACKGROUND")
    assert (event["status"], event["error"]) == (500, "engine_error")


def test_each_message_of_a_websocket_has_a_line(server: RunningServer) -> None:
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    with collect_logs("json") as logs:
        with connect(url, additional_headers=KEY, proxy=None) as socket:
            for text in ("hi", "bad"):
                request = {"type": "response.create", "model": "scripted", "input": text}
                socket.send(json.dumps(request))
                while json.loads(socket.recv())["type"] not in (
                    "response.completed",
                    "response.failed",
                ):
                    pass
        lines = logs.wait_for("WEBSOCKET", 3)
    first, second, connection = map(json.loads, lines)
    assert (first["status"], first["finish"]) == (200, ["stop"])
    assert (second["status"], second["error"]) == (500, "engine_error")
    assert connection["status"] == 101


def test_warnings_are_logged(server: RunningServer) -> None:
    with collect_logs("json") as logs:
        post(server, "/v1/chat/completions", make_chat(verbosity="low"), **{"x-request-id": "w"})
        event = logs.wait_for_event('"w"')
    assert "verbosity" in event["warnings"][0]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("field", ["path", "model"])
def test_client_data_cannot_break_a_line(
    server: RunningServer, field: str, log_format: str
) -> None:
    hostile = "x\r\nINFO forged\x1b[31m\u2028\u0085\x00" + "y" * 400
    with collect_logs(log_format) as logs:
        if field == "path":
            httpx.get(server.url + "/" + hostile.encode().hex("%").join(["%", ""]), headers=KEY)
        else:
            post(server, "/v1/chat/completions", make_chat(model=hostile))
        [line] = logs.wait_for("forged")
    assert line.isprintable()
    assert len(line) < 1500
    if log_format == "json":
        assert "forged" in json.loads(line)[field]


@pytest.mark.parametrize("log_prompts", [False, True])
def test_debug_log_tells_parameters_calls_and_usage(log_prompts: bool) -> None:
    engine = ScriptedEngine(CALL)
    options = {"chat_template": THINKER, "log_prompts": log_prompts}
    body = make_chat("private words", tools=TOOLS, temperature=0.5, stop=["END"], max_tokens=99)
    with serve_scripted(engine, **options) as server, collect_logs("json", logging.DEBUG) as logs:
        httpx.post(f"{server.url}/v1/chat/completions", json=body)
        logs.wait_for("/v1/chat/completions")
        request, answer = (find_event(logs, message) for message in ("request", "answer"))
    assert request["sampling"] == {"temperature": 0.5, "max_tokens": 99}
    assert request["tools"] == ["weather", "now"]
    assert request["stop"] == ["END"]
    assert answer["tool_calls"] == ["weather"]
    assert answer["usage"]["completion"] > 0
    assert answer["stages_ms"]["generate"] >= 0
    text = "\n".join(logs.lines)
    assert ("private words" in text) is log_prompts
    assert ("Paris" in text) is log_prompts


def find_event(logs: LogLines, message: str) -> dict[str, Any]:
    events: list[dict[str, Any]] = [json.loads(line) for line in logs.lines]
    [event] = [event for event in events if event["message"] == message]
    return event


def test_probes_are_logged_at_level_debug_only(server: RunningServer) -> None:
    with collect_logs() as logs:
        httpx.get(f"{server.url}/health/ready")
        httpx.get(f"{server.url}/v1/models", headers=KEY)
        logs.wait_for("/v1/models")
    assert not [line for line in logs.lines if "/health" in line]


@pytest.mark.parametrize(
    ("output", "reasons"),
    [
        (
            '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
            ["`nobody` is not declared"],
        ),
        ("Well. <tool_call>\nI am not sure.\n</tool_call>", ["malformed"]),
        (f"<think>Maybe {CALL}?</think>No.", ["inside reasoning"]),
        (CALL, None),
        ('{"an": "object"}', None),
        ("a < b", None),
    ],
)
def test_log_says_why_it_was_not_a_call(output: str, reasons: list[str] | None) -> None:
    with serve_scripted(output, chat_template=THINKER) as server, collect_logs("json") as logs:
        body, headers = make_chat(tools=TOOLS), {"x-dragoman-debug": "output"}
        url = f"{server.url}/v1/chat/completions"
        answer = httpx.post(url, json=body, headers=headers).json()
        event = logs.wait_for_event("/v1/chat/completions")
    assert event["tools"] == 2
    assert event.get("rejected_calls") == reasons
    assert answer["debug"].get("rejected_calls") == reasons
    assert answer["debug"]["output"] == output
