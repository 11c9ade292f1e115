"""Answers that must call tools, in every wire API, whole and as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.output.test_forced_calls import write_answer
from tests.support.dialect_answers import DIALECTS, DialectAnswer, DialectName, ask, make_body
from tests.support.serving import serve_scripted

# without markers, with tags, with headers; tests/output/test_forced_calls.py has all formats
FORMATS = ("llama3_json", "glm4_legacy", "qwen3_coder", "harmony")
STEP = 7  # characters between the cuts that are tried over HTTP
EVERYWHERE = list(product(DIALECTS, (False, True)))


@contextmanager
def open_client(*texts: str, **options: Any) -> Iterator[httpx.Client]:
    """Serve a model that writes the text whose number is asked for, one character for each token.

    Without a number it writes the first one.
    """
    replies = [Reply(text, when=f"#{i}", chunks=1) for i, text in enumerate(texts)]
    engine = ScriptedEngine([*replies, Reply(texts[0], chunks=1)], grammars=True)
    with (
        serve_scripted(engine, store="sqlite://", **options) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_answer_is_empty_and_incomplete(name: str) -> None:
    text = write_answer(name)
    with open_client(text, format=name) as client:
        for number, limit in enumerate(range(1, len(text), STEP)):
            dialect, streamed = EVERYWHERE[number % len(EVERYWHERE)]
            choice = ("required", "weather")[number % 5 == 0]
            answer = ask(client, dialect, make_body(dialect, choice, limit), streamed=streamed)
            assert (answer.text, answer.finish) == ("", "length"), text[:limit]
            assert all(name == "weather" for name, _ in answer.calls[:1])


def write_calls(*cities: str) -> str:
    calls = [json.dumps({"name": "weather", "arguments": {"city": city}}) for city in cities]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def list_cities(answer: DialectAnswer) -> list[str]:
    arguments = [
        json.loads(value) if isinstance(value, str) else value for _, value in answer.calls
    ]
    return [value["city"] for value in arguments]


LOOP = write_calls("Rome", "Oslo", *["Rome"] * 50)
SPELLED = LOOP.replace('"Oslo"}', '"Oslo" ,  "days" : 2}', 1).replace('{"city"', '{ "city"', 1)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# what is tried, the text that the model writes, the choice, the cities of the calls
BY_DEFAULT: list[tuple[str, str, str, list[str]]] = [
    ("a call is never made twice", LOOP, "required", ["Rome", "Oslo"]),
    ("spelled otherwise, it is the last", SPELLED, "required", ["Rome", "Oslo", "Rome"]),
    ("the number of calls is bounded", write_calls(*LETTERS), "required", list(LETTERS[:16])),
    ("a named tool is called once", LOOP, "weather", ["Rome"]),
    ("free text may repeat a call", write_calls("a", "a", "b"), "auto", ["a", "a", "b"]),
    ("but not for ever", write_calls(*"a" * 40), "auto", list("a" * 16)),
]
WITH_LIMIT: list[tuple[str, str, str, list[str]]] = [
    ("the operator sets the bound", write_calls(*LETTERS), "required", ["a", "b", "c"]),
    ("in free text, of the same call", LOOP, "auto", ["Rome", "Oslo", "Rome", "Rome"]),
]


@pytest.mark.parametrize(("cases", "limit"), [(BY_DEFAULT, None), (WITH_LIMIT, 3)])
def test_repeated_calls_end_an_answer(
    cases: list[tuple[str, str, str, list[str]]], limit: int | None
) -> None:
    with open_client(*(text for _, text, _, _ in cases), max_tool_calls=limit) as client:
        for number, (case, _, choice, cities) in enumerate(cases):
            for dialect, streamed in EVERYWHERE:
                body = make_body(dialect, choice, question=f"#{number}")
                if dialect == "messages" and choice == "weather":
                    body["tool_choice"]["disable_parallel_tool_use"] = True
                answer = ask(client, dialect, body, streamed=streamed)
                assert list_cities(answer) == cities, (case, dialect, streamed)
                is_named_chat = dialect == "chat" and choice == "weather"
                assert answer.finish == ("stop" if is_named_chat else "calls")
                assert answer.text == ""


def test_a_repeated_call_that_is_cut_is_sent_as_far_as_it_goes() -> None:
    text = write_calls("Rome", "Rome")
    with open_client(text) as client:
        body = make_body("chat", "required", len(text) - 20)
        answer = ask(client, "chat", body, streamed=True)
    assert answer.finish == "length"
    assert [name for name, _ in answer.calls] == ["weather", "weather"]
    assert '{"city": "Rome"}'.startswith(answer.calls[1][1])


@pytest.mark.parametrize("text", [write_calls("Rome"), '{"city": "Rome"}'])
def test_a_required_call_wins_over_a_response_format(text: str) -> None:
    """An engine that checks its grammar fails on content."""
    with (
        serve_scripted(ScriptedEngine(text, check_grammars=True)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        body = make_body("chat", "required") | {"response_format": {"type": "json_object"}}
        response = client.post("/v1/chat/completions", json=body)
    assert (response.status_code == 200) is ("tool_call" in text)
    if response.status_code == 200:
        warning = "`response_format` has no effect: a call is required."
        assert response.headers["x-dragoman-warning"] == warning


# tool results

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
OTHER = CALL | {"id": "c2"}
USER = {"role": "user", "content": "Go."}
CALLED = {"role": "assistant", "tool_calls": [CALL, OTHER]}
ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
ITEM_OTHER = ITEM_CALL | {"call_id": "c2"}


def make_result(call_id: str | None = "c1") -> dict[str, Any]:
    return {"role": "tool", "content": "x"} | ({} if call_id is None else {"tool_call_id": call_id})


def make_output(call_id: str | None = "c1") -> dict[str, Any]:
    item = {"type": "function_call_output", "output": "x"}
    return item | ({} if call_id is None else {"call_id": call_id})


def make_use(*ids: str) -> dict[str, Any]:
    uses = [{"type": "tool_use", "id": call_id, "name": "weather", "input": {}} for call_id in ids]
    return {"role": "assistant", "content": uses}


def make_block_results(*ids: str) -> dict[str, Any]:
    results = [{"type": "tool_result", "tool_use_id": call_id, "content": "x"} for call_id in ids]
    return {"role": "user", "content": results}


REPLY = {"role": "assistant", "content": "Well."}
ACCEPTED: list[tuple[DialectName, list[dict[str, Any]]]] = [
    ("chat", [USER, CALLED, make_result("c2"), make_result("c1"), USER]),
    ("chat", [USER, CALLED, make_result("c2"), USER]),  # one call without a result
    ("chat", [USER, CALLED, make_result("c1"), USER, make_result("c2")]),
    ("chat", [USER, CALLED, make_result(None), make_result(None)]),
    ("chat", [USER, {"role": "assistant", "tool_calls": [CALL | {"id": ""}]}, make_result("c9")]),
    # ids that every turn uses again
    ("chat", [USER, CALLED, make_result(), make_result("c2"), CALLED, make_result()]),
    ("chat", [CALLED, make_result()]),  # the beginning was left out
    ("responses", [USER, ITEM_CALL, ITEM_OTHER, make_output(), make_output("c2")]),
    ("responses", [USER, ITEM_CALL, ITEM_OTHER, make_output(), REPLY, make_output("c2")]),
    ("responses", [USER, ITEM_CALL, make_output(None)]),
    ("messages", [USER, make_use("c1", "c2"), make_block_results("c2", "c1")]),
    ("messages", [USER, make_use("c1"), make_use("c2"), make_block_results("c1", "c2")]),
    ("messages", [USER, make_use("c1", "c2"), make_block_results("c1"), make_block_results("c2")]),
]
# the conversation, the field that the error names, the id in its message
REJECTED: list[tuple[DialectName, list[dict[str, Any]], str, str]] = [
    ("chat", [USER, make_result()], "messages[1].tool_call_id", "c1"),
    ("chat", [USER, CALLED, make_result("c3")], "messages[2].tool_call_id", "c3"),
    ("chat", [USER, make_result(), CALLED], "messages[1].tool_call_id", "c1"),
    (
        "chat",
        [USER, CALLED, make_result(), make_result("c2"), USER, make_result()],
        "messages[5].tool_call_id",
        "c1",
    ),
    (
        "chat",
        [USER, CALLED, make_result(), make_result("c2"), make_result(None)],
        "messages[4].tool_call_id",
        "",
    ),
    ("responses", [USER, make_output()], "input[1].call_id", "c1"),
    ("responses", [USER, ITEM_CALL, make_output("c3")], "input[2].call_id", "c3"),
    ("responses", [USER, ITEM_CALL, make_output(), make_output()], "input[3].call_id", "c1"),
    (
        "responses",
        [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, make_output()],
        "input[2].call_id",
        "c1",
    ),
    (
        "responses",
        [USER, {"type": "local_shell_call_output", "call_id": "c7", "output": "x"}],
        "input[1].call_id",
        "c7",
    ),
    ("messages", [make_block_results("c1")], "messages[0].content[0].tool_use_id", "c1"),
    (
        "messages",
        [USER, make_use("c1"), make_block_results("c1", "c3")],
        "messages[2].content[1].tool_use_id",
        "c3",
    ),
    (
        "messages",
        [USER, make_use("c1"), make_block_results("c1", "c1")],
        "messages[2].content[1].tool_use_id",
        "c1",
    ),
    (  # the call is not in the message before
        "messages",
        [USER, make_use("c1"), USER, REPLY, make_block_results("c1")],
        "messages[4].content[0].tool_use_id",
        "c1",
    ),
]


def post(
    client: httpx.Client, dialect: DialectName, messages: list[dict[str, Any]], **fields: Any
) -> httpx.Response:
    body = make_body(dialect, "auto")
    del body["tool_choice"]
    field = "input" if dialect == "responses" else "messages"
    paths = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
    return client.post(f"/v1/{paths[dialect]}", json=body | {field: messages} | fields)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with open_client("So.") as client:
        yield client


@pytest.mark.parametrize(("dialect", "messages"), ACCEPTED)
def test_results_that_answer_a_call_are_accepted(
    client: httpx.Client, dialect: DialectName, messages: list[dict[str, Any]]
) -> None:
    response = post(client, dialect, messages)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("dialect", "messages", "param", "call_id"), REJECTED)
def test_results_that_answer_no_call_are_rejected(
    client: httpx.Client,
    dialect: DialectName,
    messages: list[dict[str, Any]],
    param: str,
    call_id: str,
) -> None:
    for streamed in (False, True):
        response = post(client, dialect, messages, stream=streamed)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert param in error["message"]
        assert call_id in error["message"]
        assert error["type"] == "invalid_request_error"
        assert dialect == "messages" or error["param"] == param
    if dialect == "messages":
        body = make_body("messages", "auto") | {"messages": messages}
        assert client.post("/v1/messages/count_tokens", json=body).status_code == 400


def test_lenient_tools_accepts_them_all() -> None:
    with open_client("So.", lenient_tools=True) as client:
        for dialect, messages, _, _ in REJECTED:
            response = post(client, dialect, messages)
            assert response.status_code == 200, response.text


def test_the_call_may_be_in_an_earlier_response_or_a_conversation(client: httpx.Client) -> None:
    first = post(client, "responses", [USER, ITEM_CALL]).json()
    previous = {"previous_response_id": first["id"]}
    assert post(client, "responses", [make_output()], **previous).status_code == 200
    assert post(client, "responses", [make_output("c3")], **previous).status_code == 400
    created = client.post("/v1/conversations", json={"items": [USER, ITEM_CALL]}).json()
    conversation = {"conversation": created["id"]}
    assert post(client, "responses", [make_output()], **conversation).status_code == 200
    again = post(client, "responses", [make_output()], **conversation)
    assert again.json()["error"]["param"] == "input[0].call_id"
    # an item of the history that the client refers to by its id
    reference = {"type": "item_reference", "id": first["id"]}
    assert post(client, "responses", [reference, make_output()]).status_code in (400, 404)


def test_a_summary_may_contain_the_call(client: httpx.Client) -> None:
    compacted = client.post(
        "/v1/responses/compact", json={"model": "scripted", "input": [USER, ITEM_CALL]}
    ).json()
    summary = [item for item in compacted["output"] if item["type"] == "compaction"]
    assert post(client, "responses", [*summary, make_output()]).status_code == 200
