"""Responses over HTTP: kept, gone on from, heard again and cancelled, by the real client."""

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

THINKER = TEMPLATES / "thinker.jinja"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SLOWLY = "Slowly but surely it comes."
SCRIPT = [
    Reply("<think>\nHm.\n</think>\n\nIt is sunny.", when="sunny"),
    Reply(f"<think>\nLet me look.\n</think>\n\n{CALL}", when="weather"),
    Reply(SLOWLY, when="slow", pace=0.05),
    Reply("One, two", when="hang", hang_at=2),
    Reply("One, two, three", when="break", raise_at=2),
    Reply("Hello there!"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = ScriptedEngine(SCRIPT, tokens=True)
    with serve_scripted(engine, chat_template=THINKER, api_key=["anna", "bert"]) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with of(server, "anna") as made:
        yield made


@pytest.fixture
def other(server: RunningServer) -> Iterator[OpenAI]:
    with of(server, "bert") as made:
        yield made


def of(server: RunningServer, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=30)


def ask(client: OpenAI, text: Any, **more: Any) -> Response:
    made = client.responses.create(model="scripted", input=text, **more)
    assert isinstance(made, Response)
    return made


def ended(client: OpenAI, name: str) -> Response:
    """A response once it has ended; its own stream tells when."""
    for _ in client.responses.retrieve(name, stream=True):
        pass
    return client.responses.retrieve(name)


def frames(server: RunningServer, body: dict[str, Any] | None, path: str = "") -> list[Any]:
    """The events of a stream, as they are on the wire."""
    url, headers = f"{server.url}/v1/responses{path}", {"authorization": "Bearer anna"}
    with httpx.Client(timeout=30, headers=headers) as http:
        got = http.get(url) if body is None else http.post(url, json=body | {"stream": True})
    assert got.status_code == 200, got.text
    assert got.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in got.text.split("\n\n") if block and not block.startswith(":")]
    made = [json.loads(block.split("\ndata: ", 1)[1]) for block in blocks]
    assert [f"event: {event['type']}" for event in made] == [b.split("\n")[0] for b in blocks]
    return made


def check(events: list[Any]) -> None:
    check_frames([f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events])


# What is kept


def test_a_response_is_kept_as_it_was_told(client: OpenAI) -> None:
    made = ask(client, "hello", metadata={"of": "test"}, instructions="Be kind.")
    kept = client.responses.retrieve(made.id)
    assert kept.to_dict() == made.to_dict()
    assert kept.output_text == "Hello there!"
    assert kept.metadata == {"of": "test"}


@pytest.mark.parametrize("text", ["hello", "sunny", "weather"])
def test_a_stream_tells_what_is_kept(server: RunningServer, client: OpenAI, text: str) -> None:
    events = frames(server, {"model": "scripted", "input": text, "tools": [WEATHER]})
    check(events)
    told = events[-1]["response"]
    assert client.responses.retrieve(told["id"]).to_dict() == Response.construct(**told).to_dict()
    again = frames(server, None, f"/{told['id']}?stream=true")
    check(again)
    assert again[-1]["response"] == told


def test_d87_what_is_streamed_is_kept_with_its_text(server: RunningServer, client: OpenAI) -> None:
    told = frames(server, {"model": "scripted", "input": "hello"})[-1]["response"]
    assert client.responses.retrieve(told["id"]).output_text == "Hello there!"


def test_nothing_is_kept_of_what_is_not_to_be(client: OpenAI) -> None:
    made = ask(client, "hello", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "and?", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"


def test_what_is_deleted_is_gone(client: OpenAI) -> None:
    made = ask(client, "hello")
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(made.id)


def test_another_key_sees_nothing(client: OpenAI, other: OpenAI) -> None:
    name = ask(client, "hello").id
    talk = client.conversations.create(items=[{"role": "user", "content": "I am Anna."}])
    item = client.conversations.items.list(talk.id).data[0].id
    assert item is not None
    for refused in (
        lambda: other.responses.retrieve(name),
        lambda: other.responses.delete(name),
        lambda: other.responses.cancel(name),
        lambda: other.responses.input_items.list(name),
        lambda: other.conversations.retrieve(talk.id),
        lambda: other.conversations.delete(talk.id),
        lambda: other.conversations.items.list(talk.id),
        lambda: other.conversations.items.retrieve(item, conversation_id=talk.id),
        lambda: ask(other, "hello", conversation=talk.id),
    ):
        with pytest.raises(openai.NotFoundError):
            refused()
    with pytest.raises(openai.BadRequestError):
        ask(other, "and?", previous_response_id=name)
    assert client.responses.retrieve(name).id == name


# Going on


def test_a_chain_of_responses(server: RunningServer, client: OpenAI) -> None:
    first = ask(client, "My name is Anna.")
    second = ask(client, "hello", previous_response_id=first.id, instructions="Be brief.")
    third = ask(client, "sunny", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    prompt = last_prompt(server)
    assert prompt.count("Hello there!") == 2
    assert "My name is Anna." in prompt
    assert "Be brief." not in prompt  # instructions are for one turn
    items = client.responses.input_items.list(third.id)
    assert [item.type for item in items] == ["message"]


def last_prompt(server: RunningServer) -> str:
    engine: Any = next(iter(server.app.runtime.services.models.list_loaded())).engine
    pieces = engine.tokenizer.pieces
    return b"".join(pieces[token] for token in engine.jobs[-1].prompt).decode()


def test_a_tool_loop_over_previous_responses(server: RunningServer, client: OpenAI) -> None:
    first = ask(client, "weather?", tools=[WEATHER])
    (call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = ask(client, [result], tools=[WEATHER], previous_response_id=first.id)
    assert second.output_text.strip() == "It is sunny."
    assert "Let me look." in last_prompt(server)  # what was thought stays


def test_a_conversation_grows(server: RunningServer, client: OpenAI) -> None:
    talk = client.conversations.create(
        items=[{"role": "user", "content": "I am Anna."}], metadata={"topic": "names"}
    )
    for _ in range(2):
        made = ask(client, "hello", conversation=talk.id)
        assert made.conversation is not None
        assert made.conversation.id == talk.id
    items = list(client.conversations.items.list(talk.id, order="asc", limit=2))
    assert len(items) == 5  # paging goes on by itself
    assert "I am Anna." in last_prompt(server)
    assert client.conversations.retrieve(talk.id).metadata == {"topic": "names"}
    changed = client.conversations.update(talk.id, metadata={"topic": "more"})
    assert changed.metadata == {"topic": "more"}
    first = items[0].id
    assert first is not None
    client.conversations.items.delete(first, conversation_id=talk.id)
    assert len(list(client.conversations.items.list(talk.id))) == 4
    client.conversations.delete(talk.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(talk.id)


def test_an_item_of_a_conversation_is_there_once(client: OpenAI) -> None:
    """One that is sent again is no news; another with its id is a mistake, and nothing is lost."""
    said: Any = {"type": "message", "role": "user", "content": "hello", "id": "msg_1"}
    talk = client.conversations.create(items=[said])
    client.conversations.items.create(talk.id, items=[said])
    ask(client, [said, {"role": "user", "content": "hello"}], conversation=talk.id)
    before = [item.id for item in client.conversations.items.list(talk.id)]
    assert (len(before), before.count("msg_1")) == (3, 1)
    with pytest.raises(openai.BadRequestError) as refused:
        client.conversations.items.create(talk.id, items=[said | {"content": "again"}])
    assert (refused.value.param, refused.value.code) == ("items[0].id", "duplicate_item")
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, [said | {"content": "third"}], conversation=talk.id)
    assert (refused.value.param, refused.value.code) == ("input[0].id", "duplicate_item")
    assert [item.id for item in client.conversations.items.list(talk.id)] == before


def test_an_item_can_be_named_instead_of_said(server: RunningServer, client: OpenAI) -> None:
    first = ask(client, "weather?", tools=[WEATHER])
    named: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    said = [{"role": "user", "content": "weather?"}, *named, result]
    assert ask(client, said, tools=[WEATHER]).output_text.strip() == "It is sunny."
    assert "Let me look." in last_prompt(server)
    with pytest.raises(openai.NotFoundError) as refused:
        ask(client, [{"type": "item_reference", "id": "msg_nothing"}])
    assert refused.value.param == "input[0]"


def test_too_long_a_conversation_loses_its_beginning_if_it_may() -> None:
    engine = ScriptedEngine("Hello there!", context=400, tokens=True)
    with serve_scripted(engine, chat_template=THINKER) as server, of(server, "x") as client:
        said: list[Any] = [{"role": "system", "content": "Be kind."}]
        for at in range(10):
            said.append({"role": "user", "content": f"Message {at}: " + "word " * 10})
            said.append({"role": "assistant", "content": "Good."})
        said.append({"role": "user", "content": "The last one."})
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, said)
        assert refused.value.code == "context_length_exceeded"
        assert ask(client, said, truncation="auto").status == "completed"
        prompt = last_prompt(server)
        assert "Be kind." in prompt
        assert "The last one." in prompt
        assert "Message 9" in prompt
        assert "Message 0" not in prompt


def test_a_conversation_that_just_fits_leaves_room_for_an_answer() -> None:
    engine = ScriptedEngine("Hello there!", context=400, tokens=True)
    with serve_scripted(engine) as server, of(server, "x") as client:
        said: list[Any] = [
            {"role": "user", "content": "u" * 300},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "b"},
        ]
        missing = (
            399 - client.responses.input_tokens.count(model="scripted", input=said).input_tokens
        )
        said[0]["content"] += "u" * missing
        assert ask(client, said).status == "incomplete"
        assert ask(client, said, truncation="auto").output_text == "Hello there!"
        few = ask(client, said, truncation="auto", max_output_tokens=1)
        assert few.usage is not None
        assert few.usage.input_tokens == 399  # that much room there is


# In the background


def test_a_background_response_runs_on(client: OpenAI) -> None:
    made = ask(client, "slow", background=True)
    assert made.status == "queued"
    done = ended(client, made.id)
    assert done.status == "completed"
    assert done.output_text == SLOWLY
    assert ask(client, "hello", previous_response_id=made.id).status == "completed"


def test_a_stream_that_was_cut_goes_on_where_it_was(server: RunningServer, client: OpenAI) -> None:
    cut = client.responses.create(model="scripted", input="slow", background=True, stream=True)
    heard = [event for event, _ in zip(cut, range(6), strict=False)]
    cut.close()
    assert isinstance(heard[0], ResponseCreatedEvent)
    name, last = heard[0].response.id, heard[-1].sequence_number
    rest = list(client.responses.retrieve(name, stream=True, starting_after=last))
    assert [event.sequence_number for event in rest] == list(range(last + 1, last + 1 + len(rest)))
    again = frames(server, None, f"/{name}?stream=true")
    check(again)
    assert [event["type"] for event in again] == [event.type for event in (*heard, *rest)]
    assert frames(server, None, f"/{name}?stream=true&starting_after=3") == again[4:]
    assert again[-1]["response"]["output"][0]["content"][0]["text"] == SLOWLY


@pytest.mark.parametrize("streamed", [False, True])
def test_a_background_response_can_be_cancelled(client: OpenAI, streamed: bool) -> None:
    if streamed:
        stream = client.responses.create(
            model="scripted", input="hang", background=True, stream=True
        )
        first = next(iter(stream))
        assert first.type == "response.created"
        name = first.response.id
    else:
        name = ask(client, "hang", background=True).id
    for _ in range(2):  # the second time changes nothing
        assert client.responses.cancel(name).status == "cancelled"
    assert client.responses.retrieve(name).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(ask(client, "hello").id)


def test_many_hear_one_response(server: RunningServer, client: OpenAI) -> None:
    made = ask(client, "slow", background=True)
    heard: list[list[Any]] = [[] for _ in range(5)]

    def listen(to: list[Any]) -> None:
        to.extend(frames(server, None, f"/{made.id}?stream=true"))

    threads = [threading.Thread(target=listen, args=(one,)) for one in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(heard[0])
    assert all(one == heard[0] for one in heard)


def test_a_stop_is_told_to_who_hears_it() -> None:
    with serve_scripted(ScriptedEngine(SCRIPT), drain=0.1) as server, of(server, "x") as client:
        name = ask(client, "hang", background=True).id
        heard = iter(client.responses.retrieve(name, stream=True))
        events: list[Any] = [next(heard)]
        while events[-1].type != "response.output_text.delta":
            events.append(next(heard))
        server._server.handle_exit(15, None)
        events += heard
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.failed"


def test_a_background_response_that_breaks_has_failed(client: OpenAI) -> None:
    done = ended(client, ask(client, "break", background=True).id)
    assert done.status == "failed"
    assert done.error is not None
    assert done.error.code == "server_error"


def test_failures_in_the_background_are_counted(server: RunningServer, client: OpenAI) -> None:
    errors = server.app.metrics.errors
    before = errors.copy()
    ended(client, ask(client, "break", background=True).id)
    client.responses.cancel(ask(client, "hang", background=True).id)
    assert errors - before == {"engine_error": 1}


def test_deleting_what_runs_ends_it(client: OpenAI) -> None:
    made = ask(client, "hang", background=True)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


# The rest


def test_a_stream_that_breaks_is_kept_as_failed(server: RunningServer, client: OpenAI) -> None:
    events = frames(server, {"model": "scripted", "input": "break"})
    check(events)
    assert events[-1]["type"] == "response.failed"
    assert client.responses.retrieve(events[-1]["response"]["id"]).status == "failed"


def test_a_conversation_is_made_short(server: RunningServer, client: OpenAI) -> None:
    said: list[Any] = [
        {"role": "user", "content": "My name is Anna."},
        {"role": "assistant", "content": "Noted."},
    ]
    short = client.responses.compact(model="scripted", input=said)
    assert [item.type for item in short.output] == ["message", "compaction"]
    onward: Any = [item.to_dict(warnings=False) for item in short.output]
    ask(client, [*onward, {"role": "user", "content": "hello"}])
    prompt = last_prompt(server)
    assert "Hello there!" in prompt  # the summary
    assert "Noted." not in prompt
    with pytest.raises(openai.BadRequestError):
        client.responses.compact(model="", input="x")


def test_a_summary_is_asked_for_without_thoughts(server: RunningServer, client: OpenAI) -> None:
    before = server.app.metrics.usage
    client.responses.compact(model="scripted", input="x")
    assert last_prompt(server).endswith("<think>\n\n</think>\n\n")
    spent = server.app.metrics.usage
    assert spent.prompt > before.prompt
    assert spent.completion > before.completion


def summed_up(said: str) -> list[str]:
    """The warnings with a summary by a model that says this."""
    engine = ScriptedEngine(said, tokens=True)
    with serve_scripted(engine, chat_template=THINKER) as server, of(server, "x") as client:
        made = client.responses.with_raw_response.compact(model="scripted", input="x")
        return list(made.headers.get_list("x-dragoman-warning"))


def test_a_summary_that_is_all_thoughts_is_none() -> None:
    with pytest.raises(openai.InternalServerError, match="no summary"):
        summed_up("<think>\n" + "hm " * 400)


def test_a_summary_that_is_cut_says_so() -> None:
    assert summed_up("word " * 400) == [CUT_OFF]
    assert summed_up("A few words.") == []


def test_input_is_counted(client: OpenAI) -> None:
    count = client.responses.input_tokens.count(model="scripted", input="hello")
    assert count.input_tokens == ask(client, "hello").usage.input_tokens  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model"),
        ({"model": "scripted"}, "input"),
        ({"model": "scripted", "input": "x", "background": True, "store": False}, "background"),
        (
            {"model": "scripted", "input": "x", "previous_response_id": "a", "conversation": "b"},
            "conversation",
        ),
        ({"model": "scripted", "input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
    ],
)
def test_what_is_wrong_is_named(server: RunningServer, body: dict[str, Any], param: str) -> None:
    got = httpx.post(
        f"{server.url}/v1/responses", json=body, headers={"authorization": "Bearer anna"}
    )
    assert got.status_code == 400
    assert got.json()["error"]["param"] == param


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nothing"])
def test_pages_that_do_not_exist(server: RunningServer, client: OpenAI, query: str) -> None:
    name = ask(client, "hello").id
    got = httpx.get(
        f"{server.url}/v1/responses/{name}/input_items?{query}",
        headers={"authorization": "Bearer anna"},
    )
    assert got.status_code == 400
    assert got.json()["error"]["param"] == query.partition("=")[0]
