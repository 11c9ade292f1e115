"""Responses over HTTP through the openai package: stored, continued, resumed and cancelled."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseCreatedEvent

from dragoman.responses.compaction import CUT_OFF
from dragoman.testing import Reply, ScriptedEngine
from tests.support.event_order import check_responses as check_frames
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, serve_scripted

pytestmark = pytest.mark.slow

THINKER = TEMPLATES / "thinker.jinja"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SLOW_TEXT = "Slowly but surely it comes."
SCRIPT = [
    Reply("<think>\nHm.\n</think>\n\nIt is sunny.", when="sunny"),
    Reply(f"<think>\nLet me look.\n</think>\n\n{CALL}", when="weather"),
    Reply(SLOW_TEXT, when="slow", pace=0.05),
    Reply("One, two", when="hang", hang_at=2),
    Reply("One, two, three", when="break", raise_at=2),
    Reply("Hello there!"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = ScriptedEngine(SCRIPT, tokens=True)
    with serve_scripted(engine, chat_template=THINKER, api_key=["anna", "bert"]) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with make_client(server, "anna") as client:
        yield client


@pytest.fixture
def other(server: RunningServer) -> Iterator[OpenAI]:
    with make_client(server, "bert") as client:
        yield client


def make_client(server: RunningServer, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=30)


def create(client: OpenAI, text: Any, **fields: Any) -> Response:
    response = client.responses.create(model="scripted", input=text, **fields)
    assert isinstance(response, Response)
    return response


def wait_until_ended(client: OpenAI, response_id: str) -> Response:
    """Follow the stream of a response to its end and return the response."""
    for _ in client.responses.retrieve(response_id, stream=True):
        pass
    return client.responses.retrieve(response_id)


def stream_events(server: RunningServer, body: dict[str, Any] | None, path: str = "") -> list[Any]:
    """The events of a stream, as they are on the wire."""
    url, headers = f"{server.url}/v1/responses{path}", {"authorization": "Bearer anna"}
    with httpx.Client(timeout=30, headers=headers) as http:
        response = http.get(url) if body is None else http.post(url, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in response.text.split("\n\n") if block and not block.startswith(":")]
    events = [json.loads(block.split("\ndata: ", 1)[1]) for block in blocks]
    types = [block.split("\n")[0] for block in blocks]
    assert [f"event: {event['type']}" for event in events] == types
    return events


def check_events(events: list[Any]) -> None:
    encoded = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    check_frames([frame.encode() for frame in encoded])


# Stored responses


def test_stored_response_equals_the_sent_one(client: OpenAI) -> None:
    response = create(client, "hello", metadata={"of": "test"}, instructions="Be kind.")
    stored = client.responses.retrieve(response.id)
    assert stored.to_dict() == response.to_dict()
    assert stored.output_text == "Hello there!"
    assert stored.metadata == {"of": "test"}


@pytest.mark.parametrize("text", ["hello", "sunny", "weather"])
def test_streamed_response_equals_the_stored_one(
    server: RunningServer, client: OpenAI, text: str
) -> None:
    events = stream_events(server, {"model": "scripted", "input": text, "tools": [WEATHER]})
    check_events(events)
    final = events[-1]["response"]
    assert client.responses.retrieve(final["id"]).to_dict() == Response.construct(**final).to_dict()
    again = stream_events(server, None, f"/{final['id']}?stream=true")
    check_events(again)
    assert again[-1]["response"] == final


def test_streamed_response_is_stored_with_its_text(server: RunningServer, client: OpenAI) -> None:
    final = stream_events(server, {"model": "scripted", "input": "hello"})[-1]["response"]
    assert client.responses.retrieve(final["id"]).output_text == "Hello there!"


def test_response_with_store_false_is_not_stored(client: OpenAI) -> None:
    response = create(client, "hello", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, "and?", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


def test_deleted_response_is_gone(client: OpenAI) -> None:
    response = create(client, "hello")
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(response.id)


def test_another_key_has_no_access(client: OpenAI, other: OpenAI) -> None:
    response_id = create(client, "hello").id
    conversation = client.conversations.create(items=[{"role": "user", "content": "I am Anna."}])
    item = client.conversations.items.list(conversation.id).data[0].id
    assert item is not None
    for attempt in (
        lambda: other.responses.retrieve(response_id),
        lambda: other.responses.delete(response_id),
        lambda: other.responses.cancel(response_id),
        lambda: other.responses.input_items.list(response_id),
        lambda: other.conversations.retrieve(conversation.id),
        lambda: other.conversations.delete(conversation.id),
        lambda: other.conversations.items.list(conversation.id),
        lambda: other.conversations.items.retrieve(item, conversation_id=conversation.id),
        lambda: create(other, "hello", conversation=conversation.id),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    with pytest.raises(openai.BadRequestError):
        create(other, "and?", previous_response_id=response_id)
    assert client.responses.retrieve(response_id).id == response_id


# Continuing responses


def test_chain_of_responses(server: RunningServer, client: OpenAI) -> None:
    first = create(client, "My name is Anna.")
    second = create(client, "hello", previous_response_id=first.id, instructions="Be brief.")
    third = create(client, "sunny", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    prompt = last_prompt(server)
    assert prompt.count("Hello there!") == 2
    assert "My name is Anna." in prompt
    assert "Be brief." not in prompt  # instructions apply to one response
    items = client.responses.input_items.list(third.id)
    assert [item.type for item in items] == ["message"]


def last_prompt(server: RunningServer) -> str:
    engine: Any = next(iter(server.app.runtime.services.models.list_loaded())).engine
    pieces = engine.tokenizer.pieces
    return b"".join(pieces[token] for token in engine.jobs[-1].prompt).decode()


def test_tool_loop_over_previous_responses(server: RunningServer, client: OpenAI) -> None:
    first = create(client, "weather?", tools=[WEATHER])
    (call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = create(client, [result], tools=[WEATHER], previous_response_id=first.id)
    assert second.output_text.strip() == "It is sunny."
    assert "Let me look." in last_prompt(server)  # the reasoning is kept


def test_conversation_grows(server: RunningServer, client: OpenAI) -> None:
    conversation = client.conversations.create(
        items=[{"role": "user", "content": "I am Anna."}], metadata={"topic": "names"}
    )
    for _ in range(2):
        response = create(client, "hello", conversation=conversation.id)
        assert response.conversation is not None
        assert response.conversation.id == conversation.id
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert len(items) == 5  # the package requests all pages
    assert "I am Anna." in last_prompt(server)
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "names"}
    updated = client.conversations.update(conversation.id, metadata={"topic": "more"})
    assert updated.metadata == {"topic": "more"}
    first = items[0].id
    assert first is not None
    client.conversations.items.delete(first, conversation_id=conversation.id)
    assert len(list(client.conversations.items.list(conversation.id))) == 4
    client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_item_of_a_conversation_is_stored_once(client: OpenAI) -> None:
    """Sending an item again changes nothing; a different item with its id is rejected."""
    item: Any = {"type": "message", "role": "user", "content": "hello", "id": "msg_1"}
    conversation = client.conversations.create(items=[item])
    client.conversations.items.create(conversation.id, items=[item])
    create(client, [item, {"role": "user", "content": "hello"}], conversation=conversation.id)
    before = [entry.id for entry in client.conversations.items.list(conversation.id)]
    assert (len(before), before.count("msg_1")) == (3, 1)
    with pytest.raises(openai.BadRequestError) as caught:
        client.conversations.items.create(conversation.id, items=[item | {"content": "again"}])
    assert (caught.value.param, caught.value.code) == ("items[0].id", "duplicate_item")
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, [item | {"content": "third"}], conversation=conversation.id)
    assert (caught.value.param, caught.value.code) == ("input[0].id", "duplicate_item")
    assert [entry.id for entry in client.conversations.items.list(conversation.id)] == before


def test_item_can_be_referenced_by_id(server: RunningServer, client: OpenAI) -> None:
    first = create(client, "weather?", tools=[WEATHER])
    references: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [{"role": "user", "content": "weather?"}, *references, result]
    assert create(client, items, tools=[WEATHER]).output_text.strip() == "It is sunny."
    assert "Let me look." in last_prompt(server)
    with pytest.raises(openai.NotFoundError) as caught:
        create(client, [{"type": "item_reference", "id": "msg_nothing"}])
    assert caught.value.param == "input[0]"


def test_truncation_drops_the_oldest_messages() -> None:
    engine = ScriptedEngine("Hello there!", context=400, tokens=True)
    with (
        serve_scripted(engine, chat_template=THINKER) as server,
        make_client(server, "x") as client,
    ):
        messages: list[Any] = [{"role": "system", "content": "Be kind."}]
        for index in range(10):
            messages.append({"role": "user", "content": f"Message {index}: " + "word " * 10})
            messages.append({"role": "assistant", "content": "Good."})
        messages.append({"role": "user", "content": "The last one."})
        with pytest.raises(openai.BadRequestError) as caught:
            create(client, messages)
        assert caught.value.code == "context_length_exceeded"
        assert create(client, messages, truncation="auto").status == "completed"
        prompt = last_prompt(server)
        assert "Be kind." in prompt
        assert "The last one." in prompt
        assert "Message 9" in prompt
        assert "Message 0" not in prompt


def test_truncation_leaves_room_for_an_answer() -> None:
    engine = ScriptedEngine("Hello there!", context=400, tokens=True)
    with serve_scripted(engine) as server, make_client(server, "x") as client:
        messages: list[Any] = [
            {"role": "user", "content": "u" * 300},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "b"},
        ]
        missing = (
            399 - client.responses.input_tokens.count(model="scripted", input=messages).input_tokens
        )
        messages[0]["content"] += "u" * missing
        assert create(client, messages).status == "incomplete"
        assert create(client, messages, truncation="auto").output_text == "Hello there!"
        few = create(client, messages, truncation="auto", max_output_tokens=1)
        assert few.usage is not None
        assert few.usage.input_tokens == 399  # enough for one token


# Background responses


def test_background_response_completes(client: OpenAI) -> None:
    response = create(client, "slow", background=True)
    assert response.status == "queued"
    ended = wait_until_ended(client, response.id)
    assert ended.status == "completed"
    assert ended.output_text == SLOW_TEXT
    assert create(client, "hello", previous_response_id=response.id).status == "completed"


def test_stream_can_be_resumed(server: RunningServer, client: OpenAI) -> None:
    stream = client.responses.create(model="scripted", input="slow", background=True, stream=True)
    received = [event for event, _ in zip(stream, range(6), strict=False)]
    stream.close()
    assert isinstance(received[0], ResponseCreatedEvent)
    response_id, last = received[0].response.id, received[-1].sequence_number
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last))
    assert [event.sequence_number for event in rest] == list(range(last + 1, last + 1 + len(rest)))
    again = stream_events(server, None, f"/{response_id}?stream=true")
    check_events(again)
    assert [event["type"] for event in again] == [event.type for event in (*received, *rest)]
    assert stream_events(server, None, f"/{response_id}?stream=true&starting_after=3") == again[4:]
    assert again[-1]["response"]["output"][0]["content"][0]["text"] == SLOW_TEXT


@pytest.mark.parametrize("streamed", [False, True])
def test_background_response_can_be_cancelled(client: OpenAI, streamed: bool) -> None:
    if streamed:
        stream = client.responses.create(
            model="scripted", input="hang", background=True, stream=True
        )
        first = next(iter(stream))
        assert first.type == "response.created"
        response_id = first.response.id
    else:
        response_id = create(client, "hang", background=True).id
    for _ in range(2):  # the second time changes nothing
        assert client.responses.cancel(response_id).status == "cancelled"
    assert client.responses.retrieve(response_id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(create(client, "hello").id)


def test_many_clients_stream_one_response(server: RunningServer, client: OpenAI) -> None:
    response = create(client, "slow", background=True)
    received: list[list[Any]] = [[] for _ in range(5)]

    def collect(events: list[Any]) -> None:
        events.extend(stream_events(server, None, f"/{response.id}?stream=true"))

    threads = [threading.Thread(target=collect, args=(events,)) for events in received]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_events(received[0])
    assert all(events == received[0] for events in received)


def test_resumed_stream_ends_with_a_failure_when_the_server_stops() -> None:
    with (
        serve_scripted(ScriptedEngine(SCRIPT), drain=0.1) as server,
        make_client(server, "x") as client,
    ):
        response_id = create(client, "hang", background=True).id
        received = iter(client.responses.retrieve(response_id, stream=True))
        events: list[Any] = [next(received)]
        while events[-1].type != "response.output_text.delta":
            events.append(next(received))
        server._server.handle_exit(15, None)
        events += received
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.failed"


def test_failing_background_response_has_status_failed(client: OpenAI) -> None:
    ended = wait_until_ended(client, create(client, "break", background=True).id)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.code == "server_error"


def test_background_failures_are_counted(server: RunningServer, client: OpenAI) -> None:
    errors = server.app.metrics.errors
    before = errors.copy()
    wait_until_ended(client, create(client, "break", background=True).id)
    client.responses.cancel(create(client, "hang", background=True).id)
    assert errors - before == {"engine_error": 1}


def test_deleting_a_running_response_ends_it(client: OpenAI) -> None:
    response = create(client, "hang", background=True)
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


# Failures, compaction and counting


def test_failing_stream_is_stored_as_failed(server: RunningServer, client: OpenAI) -> None:
    events = stream_events(server, {"model": "scripted", "input": "break"})
    check_events(events)
    assert events[-1]["type"] == "response.failed"
    assert client.responses.retrieve(events[-1]["response"]["id"]).status == "failed"


def test_conversation_is_compacted(server: RunningServer, client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "My name is Anna."},
        {"role": "assistant", "content": "Noted."},
    ]
    compacted = client.responses.compact(model="scripted", input=messages)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    items: Any = [item.to_dict(warnings=False) for item in compacted.output]
    create(client, [*items, {"role": "user", "content": "hello"}])
    prompt = last_prompt(server)
    assert "Hello there!" in prompt  # the summary
    assert "Noted." not in prompt
    with pytest.raises(openai.BadRequestError):
        client.responses.compact(model="scripted", input="")


def test_compaction_disables_reasoning(server: RunningServer, client: OpenAI) -> None:
    metrics = server.app.observer.get_model("scripted")
    before = metrics.usage
    client.responses.compact(model="scripted", input="x")
    assert last_prompt(server).endswith("<think>\n\n</think>\n\n")
    usage = metrics.usage
    assert usage.prompt > before.prompt
    assert usage.completion > before.completion


def get_compaction_warnings(summary: str) -> list[str]:
    """The warnings of a compaction for which the model writes this."""
    engine = ScriptedEngine(summary, tokens=True)
    with (
        serve_scripted(engine, chat_template=THINKER) as server,
        make_client(server, "x") as client,
    ):
        response = client.responses.with_raw_response.compact(model="scripted", input="x")
        return list(response.headers.get_list("x-dragoman-warning"))


def test_compaction_without_summary_is_an_error() -> None:
    with pytest.raises(openai.InternalServerError, match="no summary"):
        get_compaction_warnings("<think>\n" + "hm " * 400)


def test_incomplete_summary_is_a_warning() -> None:
    assert get_compaction_warnings("word " * 400) == [CUT_OFF]
    assert get_compaction_warnings("A few words.") == []


def test_input_tokens_are_counted(client: OpenAI) -> None:
    count = client.responses.input_tokens.count(model="scripted", input="hello")
    assert count.input_tokens == create(client, "hello").usage.input_tokens  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"model": "scripted"}, "input"),
        ({"model": "scripted", "input": "x", "background": True, "store": False}, "background"),
        (
            {"model": "scripted", "input": "x", "previous_response_id": "a", "conversation": "b"},
            "conversation",
        ),
        ({"model": "scripted", "input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
    ],
)
def test_invalid_field_is_named(server: RunningServer, body: dict[str, Any], param: str) -> None:
    response = httpx.post(
        f"{server.url}/v1/responses", json=body, headers={"authorization": "Bearer anna"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nothing"])
def test_invalid_paging_is_rejected(server: RunningServer, client: OpenAI, query: str) -> None:
    response_id = create(client, "hello").id
    response = httpx.get(
        f"{server.url}/v1/responses/{response_id}/input_items?{query}",
        headers={"authorization": "Bearer anna"},
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]
