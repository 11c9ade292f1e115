"""Responses over a WebSocket: one after another on one connection, by the real client."""

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
LAST = ("response.completed", "response.failed", "response.incomplete", "error")


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(SCRIPT, tokens=True)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine, chat_template=TEMPLATE, api_key=["anna"]) as made:
        yield made


@pytest.fixture
def socket(server: RunningServer) -> Iterator[ClientConnection]:
    address = server.url.replace("http", "ws") + "/v1/responses"
    headers = {"Authorization": "Bearer anna"}
    with connect(address, additional_headers=headers) as made:
        yield made


def ask(socket: ClientConnection, text: Any, **more: Any) -> list[Any]:
    """The events of one response."""
    said = {"type": "response.create", "model": "scripted", "input": text} | more
    socket.send(json.dumps(said))
    return hear(socket)


def hear(socket: ClientConnection) -> list[Any]:
    events: list[Any] = []
    while not events or events[-1]["type"] not in LAST:
        events.append(json.loads(socket.recv(timeout=20)))
    return events


def checked(events: list[Any]) -> Any:
    """The response, after its events were found to be in order."""
    frames = [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]
    check_responses(frames)
    return events[-1]["response"]


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
def test_the_real_client(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="anna")
    with client, client.responses.connect() as connection:
        for _ in range(2):
            connection.response.create(model="scripted", input="hello")
            for event in connection:
                if event.type == "response.completed":
                    assert event.response.output_text == "Hello there!"
                    break


def test_one_after_another(socket: ClientConnection) -> None:
    first = checked(ask(socket, "hello"))
    second = checked(ask(socket, "and?", previous_response_id=first["id"]))
    assert second["previous_response_id"] == first["id"]
    assert second["output"][0]["content"][0]["text"] == "Hello there!"


def test_what_is_not_kept_can_be_followed_on_the_same_connection(
    server: RunningServer, socket: ClientConnection, engine: ScriptedEngine
) -> None:
    first = checked(ask(socket, "I am Anna.", store=False))
    second = checked(ask(socket, "and?", store=False, previous_response_id=first["id"]))
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


def test_what_failed_to_go_on_is_forgotten(socket: ClientConnection) -> None:
    first = checked(ask(socket, "hello", store=False))
    broken = ask(socket, "hello", model="nobody", previous_response_id=first["id"])
    assert broken[-1]["type"] == "error"
    assert broken[-1]["status"] == 404
    again = ask(socket, "hello", store=False, previous_response_id=first["id"])
    assert again[-1]["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("{", None),
        ('{"type": "response.create"}', "model"),
        ('{"type": "response.steer", "model": "scripted"}', "type"),
        (
            '{"type": "response.create", "model": "scripted", "input": "x", "stream": false}',
            "stream",
        ),
        ('{"type": "response.create", "model": "nobody", "input": "x"}', "model"),
    ],
)
def test_an_error_leaves_it_open(socket: ClientConnection, text: str, param: str | None) -> None:
    socket.send(text)
    (event,) = hear(socket)
    assert event["type"] == "error"
    assert event["error"]["param"] == param
    assert checked(ask(socket, "hello"))["status"] == "completed"


def test_a_response_that_breaks_leaves_it_open(socket: ClientConnection) -> None:
    assert checked(ask(socket, "break"))["status"] == "failed"
    assert checked(ask(socket, "hello"))["status"] == "completed"


def test_only_reading(socket: ClientConnection) -> None:
    first = ask(socket, "hello", generate=False)[-1]["response"]
    assert first["status"] == "completed"
    assert first["output"] == []
    assert checked(ask(socket, "and?", previous_response_id=first["id"]))["status"] == "completed"


def test_what_is_not_kept_to_is_told_first(socket: ClientConnection) -> None:
    first, *events = ask(socket, "hello", tools=[{"type": "web_search"}])
    assert first["type"] == "dragoman.warning"
    assert "`web_search`" in first["warnings"][0]
    assert checked(events)["status"] == "completed"


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
def test_the_real_client_passes_over_what_it_does_not_know(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="anna")
    with client, client.responses.connect() as connection:
        said: list[str] = []
        tool: Any = {"type": "web_search"}
        connection.response.create(model="scripted", input="hello", tools=[tool], stream_id="a")
        for event in connection:
            assert getattr(event, "stream_id", None) == "a"
            said.append(event.type)
            if event.type == "response.completed":
                break
    assert said[:2] == ["dragoman.warning", "response.created"]


@pytest.mark.parametrize("text", ["hello", "break"])
def test_the_id_of_a_stream_goes_back(socket: ClientConnection, text: str) -> None:
    events = ask(socket, text, stream_id='"\\ü', tools=[{"type": "web_search"}])
    assert {event["stream_id"] for event in events} == {'"\\ü'}
    assert "stream_id" not in events[-1]["response"]
    for event in ask(socket, text):
        assert "stream_id" not in event


def test_an_error_goes_back_to_its_stream(socket: ClientConnection) -> None:
    for wrong in ({"model": "nobody"}, {"temperature": "hot"}, {"type": "response.steer"}):
        (event,) = ask(socket, "hello", stream_id="a", **wrong)
        assert event["type"] == "error"
        assert event["stream_id"] == "a"
    (event,) = ask(socket, "hello", stream_id=1)
    assert event["error"]["param"] == "stream_id"
    assert "stream_id" not in event


def test_failures_are_counted(server: RunningServer, socket: ClientConnection) -> None:
    errors = server.app.metrics.errors
    before = errors.copy()
    ask(socket, "break")
    ask(socket, "hello", model="nobody")
    ask(socket, "hello")
    assert errors - before == {"engine_error": 1, "model_not_found": 1}


def test_a_stop_is_told() -> None:
    with serve_scripted(ScriptedEngine(SCRIPT), drain=0.1) as server:
        with connect(server.url.replace("http", "ws") + "/v1/responses") as socket:
            said = {"type": "response.create", "model": "scripted", "input": "hang"}
            socket.send(json.dumps(said))
            while json.loads(socket.recv(timeout=20))["type"] != "response.output_text.delta":
                pass
            server._server.handle_exit(15, None)
            last = hear(socket)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "server_is_overloaded"


def test_leaving_ends_the_work(
    server: RunningServer, socket: ClientConnection, engine: ScriptedEngine
) -> None:
    said = {"type": "response.create", "model": "scripted", "input": "hang"}
    socket.send(json.dumps(said))
    while json.loads(socket.recv(timeout=20))["type"] != "response.output_text.delta":
        pass
    socket.close()
    server.run_coroutine(engine.wait_until(lambda one: one.active == 0))
    assert engine.active == 0
