"""Responses over a WebSocket, one after another on one connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from websockets.sync.client import ClientConnection, connect

from dragoman.testing import Reply, ScriptedEngine
from tests.support.event_order import check_responses
from tests.support.serving import RunningServer, serve_scripted

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCRIPT = [
    Reply("One, two", when="hang", hang_at=2),
    Reply("One, two, three", when="break", raise_at=2),
    Reply("Hello there!"),
]
FINAL_TYPES = ("response.completed", "response.failed", "response.incomplete", "error")


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(SCRIPT, tokens=True)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine, chat_template=TEMPLATE, api_key=["anna"]) as server:
        yield server


@pytest.fixture
def websocket(server: RunningServer) -> Iterator[ClientConnection]:
    address = server.url.replace("http", "ws") + "/v1/responses"
    headers = {"Authorization": "Bearer anna"}
    with connect(address, additional_headers=headers) as websocket:
        yield websocket


def create(websocket: ClientConnection, text: Any, **fields: Any) -> list[Any]:
    """Create a response and return its events."""
    request = {"type": "response.create", "model": "scripted", "input": text} | fields
    websocket.send(json.dumps(request))
    return receive_events(websocket)


def receive_events(websocket: ClientConnection) -> list[Any]:
    events: list[Any] = []
    while not events or events[-1]["type"] not in FINAL_TYPES:
        events.append(json.loads(websocket.recv(timeout=20)))
    return events


def check_events(events: list[Any]) -> Any:
    """Check the order of the events and return the response."""
    frames = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    check_responses([frame.encode() for frame in frames])
    return events[-1]["response"]


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
def test_openai_sdk(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="anna")
    with client, client.responses.connect() as connection:
        for _ in range(2):
            connection.response.create(model="scripted", input="hello")
            for event in connection:
                if event.type == "response.completed":
                    assert event.response.output_text == "Hello there!"
                    break


def test_responses_one_after_another(websocket: ClientConnection) -> None:
    first = check_events(create(websocket, "hello"))
    second = check_events(create(websocket, "and?", previous_response_id=first["id"]))
    assert second["previous_response_id"] == first["id"]
    assert second["output"][0]["content"][0]["text"] == "Hello there!"


def test_unstored_response_can_be_continued_on_the_same_connection(
    server: RunningServer, websocket: ClientConnection, engine: ScriptedEngine
) -> None:
    first = check_events(create(websocket, "I am Anna.", store=False))
    second = check_events(create(websocket, "and?", store=False, previous_response_id=first["id"]))
    prompt = engine.jobs[-1].prompt
    assert engine.tokenizer is not None
    text = b"".join(engine.tokenizer.pieces[token] for token in prompt).decode()  # type: ignore[index]
    assert text.count("Hello there!") == 1
    assert "I am Anna." in text
    client = OpenAI(base_url=f"{server.url}/v1", api_key="anna", max_retries=0)
    with client, pytest.raises(Exception, match="to continue"):
        client.responses.create(
            model="scripted", input="and?", previous_response_id=second["id"], store=False
        )


def test_unstored_response_is_dropped_after_a_failed_continuation(
    websocket: ClientConnection,
) -> None:
    first = check_events(create(websocket, "hello", store=False))
    failed = create(websocket, "hello", model="nobody", previous_response_id=first["id"])
    assert failed[-1]["type"] == "error"
    assert failed[-1]["status"] == 404
    again = create(websocket, "hello", store=False, previous_response_id=first["id"])
    assert again[-1]["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("{", None),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.steer", "model": "scripted"}', "type"),
        (
            '{"type": "response.create", "model": "scripted", "input": "x", "stream": false}',
            "stream",
        ),
        ('{"type": "response.create", "model": "nobody", "input": "x"}', "model"),
    ],
)
def test_connection_stays_open_after_an_error(
    websocket: ClientConnection, text: str, param: str | None
) -> None:
    websocket.send(text)
    (event,) = receive_events(websocket)
    assert event["type"] == "error"
    assert event["error"]["param"] == param
    assert check_events(create(websocket, "hello"))["status"] == "completed"


def test_connection_stays_open_after_a_failed_response(websocket: ClientConnection) -> None:
    assert check_events(create(websocket, "break"))["status"] == "failed"
    assert check_events(create(websocket, "hello"))["status"] == "completed"


def test_generate_false_only_prefills(websocket: ClientConnection) -> None:
    first = create(websocket, "hello", generate=False)[-1]["response"]
    assert first["status"] == "completed"
    assert first["output"] == []
    assert (
        check_events(create(websocket, "and?", previous_response_id=first["id"]))["status"]
        == "completed"
    )


def test_warnings_come_first(websocket: ClientConnection) -> None:
    first, *events = create(websocket, "hello", tools=[{"type": "web_search"}])
    assert first["type"] == "dragoman.warning"
    assert "`web_search`" in first["warnings"][0]
    assert check_events(events)["status"] == "completed"


def test_unknown_fields_are_reported(websocket: ClientConnection) -> None:
    first, *events = create(websocket, "hello", max_output_token=3)
    assert first["warnings"] == [
        "`max_output_token` is unknown and has no effect. Did you mean `max_output_tokens`?"
    ]
    assert check_events(events)["status"] == "completed"
    first, *_ = create(websocket, "hello")  # it does not stay
    assert first["type"] == "response.created"


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
def test_openai_sdk_ignores_unknown_events(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="anna")
    with client, client.responses.connect() as connection:
        types: list[str] = []
        tool: Any = {"type": "web_search"}
        connection.response.create(model="scripted", input="hello", tools=[tool], stream_id="a")
        for event in connection:
            assert getattr(event, "stream_id", None) == "a"
            types.append(event.type)
            if event.type == "response.completed":
                break
    assert types[:2] == ["dragoman.warning", "response.created"]


@pytest.mark.parametrize("text", ["hello", "break"])
def test_stream_id_is_returned(websocket: ClientConnection, text: str) -> None:
    events = create(websocket, text, stream_id='"\\ü', tools=[{"type": "web_search"}])
    assert {event["stream_id"] for event in events} == {'"\\ü'}
    assert "stream_id" not in events[-1]["response"]
    for event in create(websocket, text):
        assert "stream_id" not in event


def test_error_carries_the_stream_id(websocket: ClientConnection) -> None:
    for fields in ({"model": "nobody"}, {"temperature": "hot"}, {"type": "response.steer"}):
        (event,) = create(websocket, "hello", stream_id="a", **fields)
        assert event["type"] == "error"
        assert event["stream_id"] == "a"
    (event,) = create(websocket, "hello", stream_id=1)
    assert event["error"]["param"] == "stream_id"
    assert "stream_id" not in event


def test_failures_are_counted(server: RunningServer, websocket: ClientConnection) -> None:
    errors = server.app.metrics.errors
    before = errors.copy()
    create(websocket, "break")
    create(websocket, "hello", model="nobody")
    create(websocket, "hello")
    assert errors - before == {"engine_error": 1, "model_not_found": 1}


def test_stopping_server_ends_the_response_with_a_failure() -> None:
    with serve_scripted(ScriptedEngine(SCRIPT), drain=0.1) as server:
        with connect(server.url.replace("http", "ws") + "/v1/responses") as websocket:
            request = {"type": "response.create", "model": "scripted", "input": "hang"}
            websocket.send(json.dumps(request))
            while json.loads(websocket.recv(timeout=20))["type"] != "response.output_text.delta":
                pass
            server._server.handle_exit(15, None)
            last = receive_events(websocket)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_is_overloaded"


def test_disconnect_cancels_the_run(
    server: RunningServer, websocket: ClientConnection, engine: ScriptedEngine
) -> None:
    request = {"type": "response.create", "model": "scripted", "input": "hang"}
    websocket.send(json.dumps(request))
    while json.loads(websocket.recv(timeout=20))["type"] != "response.output_text.delta":
        pass
    websocket.close()
    server.run_coroutine(engine.wait_until(lambda engine: engine.active == 0))
    assert engine.active == 0
