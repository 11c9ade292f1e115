"""Conversations that are passed on to a chat-only server, through every wire API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.support.real_model import request_answer, request_answers
from tests.support.serving import RunningServer
from tests.support.upstream_servers import (
    TableServer,
    list_models,
    make_chat_frames,
    run_table,
    serve_upstream,
)

PATH = "/v1/chat/completions"
TOOL = {"name": "look", "description": "Look at it.", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": TOOL}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
Pair = tuple[TableServer, RunningServer]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A chat-only server, and ours before it."""
    routes = {"/v1/models": list_models("gpt"), PATH: make_chat_frames({"content": "Hello."})}
    with (
        run_table(routes) as upstream,
        serve_upstream(upstream.url, tmp_path_factory.mktemp("relay"), system="Be kind.") as server,
    ):
        yield upstream, server


def make_body(**fields: Any) -> dict[str, Any]:
    return {"model": "gpt", "messages": [{"role": "user", "content": "Hi"}]} | fields


def script(servers: Pair, *deltas: dict[str, Any], **options: Any) -> None:
    servers[0].routes[PATH] = make_chat_frames(*deltas, **options)
    servers[0].requests.clear()


def call_part(index: int | None, **fields: Any) -> dict[str, Any]:
    names = {name: fields.pop(name) for name in ("id",) if name in fields}
    place = {} if index is None else {"index": index}
    return {"tool_calls": [place | names | {"type": "function", "function": fields}]}


# deltas of a server -> content, reasoning, calls, finish reason
ANSWERS: dict[str, tuple[list[dict[str, Any]], str, tuple[Any, ...]]] = {
    "content": (
        [{"role": "assistant"}, {"content": "It "}, {"content": "rains."}],
        "stop",
        ("It rains.", "", [], "stop"),
    ),
    "cut off": ([{"content": "It "}], "length", ("It ", "", [], "length")),
    "filtered": ([{"content": "It "}], "content_filter", ("It ", "", [], "stop")),
    "reasoning": (
        [{"reasoning_content": "Hm."}, {"content": "Yes."}],
        "stop",
        ("Yes.", "Hm.", [], "stop"),
    ),
    "reasoning of Ollama": (
        [{"reasoning": "Hm.", "content": ""}, {"content": "Yes."}],
        "stop",
        ("Yes.", "Hm.", [], "stop"),
    ),
    "refusal": ([{"refusal": "No."}], "stop", ("No.", "", [], "stop")),
    "calls in parts": (
        [
            call_part(0, id="call_1", name="look", arguments=""),
            call_part(0, arguments='{"a"'),
            call_part(0, arguments=": 1}"),
            call_part(1, id="call_2", name="look", arguments="{}"),
        ],
        "tool_calls",
        ("", "", [("look", '{"a": 1}'), ("look", "{}")], "tool_calls"),
    ),
    "calls as a whole, without an index": (
        [
            call_part(None, id="x", name="look", arguments='{"a": 1}'),
            call_part(None, id="y", name="look", arguments="{}"),
        ],
        "stop",
        ("", "", [("look", '{"a": 1}'), ("look", "{}")], "tool_calls"),
    ),
    "calls with the same index": (
        [
            call_part(0, id="x", name="look", arguments='{"a": 1}'),
            call_part(0, id="y", name="look", arguments='{"b"'),
            call_part(0, arguments=": 2}"),
        ],
        "tool_calls",
        ("", "", [("look", '{"a": 1}'), ("look", '{"b": 2}')], "tool_calls"),
    ),
    "a call whose parts repeat its name": (
        [
            call_part(0, id="x", name="look", arguments='{"a"'),
            call_part(0, id="x", name="look", arguments=": 1}"),
        ],
        "tool_calls",
        ("", "", [("look", '{"a": 1}')], "tool_calls"),
    ),
    "calls numbered from 1, with objects": (
        [
            call_part(1, id="x", name="look", arguments={"a": 1}),
            call_part(2, id="y", name="look", arguments={}),
        ],
        "TOOL_CALLS",
        ("", "", [("look", '{"a":1}'), ("look", "{}")], "tool_calls"),
    ),
    "a call without an id": (
        [call_part(0, name="look", arguments="{}")],
        "tool_calls",
        ("", "", [("look", "{}")], "tool_calls"),
    ),
    "calls with the same index whose parts alternate": (
        [
            call_part(0, id="x", name="look", arguments='{"a"'),
            call_part(0, id="y", name="look", arguments='{"b"'),
            call_part(0, id="x", arguments=": 1}"),
            call_part(0, id="y", name="look", arguments=": 2}"),
        ],
        "tool_calls",
        ("", "", [("look", '{"a": 1}'), ("look", '{"b": 2}')], "tool_calls"),
    ),
    "calls without an index whose parts alternate": (
        [
            call_part(None, id="x", name="look", arguments='{"a"'),
            call_part(None, id="y", name="look", arguments='{"b"'),
            call_part(None, id="x", arguments=": 1}"),
            call_part(None, id="y", arguments=": 2}"),
        ],
        "tool_calls",
        ("", "", [("look", '{"a": 1}'), ("look", '{"b": 2}')], "tool_calls"),
    ),
    "calls with the same id": (
        [
            call_part(0, id="x", name="look", arguments='{"a": 1}'),
            call_part(1, id="x", name="look", arguments="{}"),
        ],
        "tool_calls",
        ("", "", [("look", '{"a": 1}'), ("look", "{}")], "tool_calls"),
    ),
    "a call whose name comes later": (
        [
            call_part(0, id="x", arguments=""),
            call_part(0, id="x", name="look"),
            call_part(0, arguments="{}"),
        ],
        "tool_use",
        ("", "", [("look", "{}")], "tool_calls"),
    ),
    "calls without arguments": (
        [
            call_part(0, id="x", name="look", arguments=None),
            call_part(1, id="y", name="look", arguments='{"a": 1}'),
            call_part(2, id="z", name="look"),
        ],
        "tool_calls",
        ("", "", [("look", "{}"), ("look", '{"a": 1}'), ("look", "{}")], "tool_calls"),
    ),
    "a call that is cut before its arguments": (
        [call_part(0, id="x", name="look"), call_part(1, id="y", name="look", arguments="")],
        "length",
        ("", "", [("look", "{}"), ("look", "")], "length"),
    ),
    "a call in the older form": (
        [
            {"content": None, "function_call": {"name": "look", "arguments": ""}},
            {"function_call": {"arguments": '{"a"'}},
            {"function_call": {"name": "look", "arguments": ": 1}"}},
        ],
        "function_call",
        ("", "", [("look", '{"a": 1}')], "tool_calls"),
    ),
    "a call in both forms": (
        [
            {"function_call": {"name": "look", "arguments": "{}"}}
            | call_part(0, id="x", name="look", arguments="{}")
        ],
        "tool_calls",
        ("", "", [("look", "{}")], "tool_calls"),
    ),
    "parts of Mistral": (
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "H"}]}]},
            {"content": [{"type": "thinking", "thinking": "m.", "signature": None}]},
            {"content": [{"type": "text", "text": "Ye"}, "s", "."]},
            {"content": []},
        ],
        "stop",
        ("Yes.", "Hm.", [], "stop"),
    ),
    "half of a character": (
        [{"content": "\ud83d"}, {"content": '\udc00\\"\n'}, {"reasoning": "\ud83d\ude00\ud83d"}],
        "stop",
        ('\ufffd\ufffd\\"\n', "\U0001f600\ufffd", [], "stop"),
    ),
    "odd characters": (
        [{"content": '\u2028\n{"}\u0085'}, {"content": "\U0001f600"}],
        "stop",
        ('\u2028\n{"}\u0085\U0001f600', "", [], "stop"),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_passes_answers_on(name: str, servers: Pair) -> None:
    deltas, finish, expected = ANSWERS[name]
    script(servers, *deltas, finish=finish)
    whole = request_answer(servers[1], make_body(tools=TOOLS))
    assert (whole.content, whole.reasoning, whole.calls, whole.finish) == expected
    assert whole == request_answer(servers[1], make_body(tools=TOOLS), streamed=True)


def test_passes_conversations_on(servers: Pair) -> None:
    script(servers, {"content": "Hello."})
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": "!"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ]
    fields = {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "stop": ["END"],
        "temperature": 0.5,
        "max_tokens": 7,
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
    }
    request_answer(servers[1], make_body(messages=messages) | fields)
    [sent] = servers[0].list_bodies(PATH)
    system, user, assistant, result = sent["messages"]
    assert system == {"role": "system", "content": "Be kind."}  # of the operator
    assert user == {"role": "user", "content": "Look!"}
    assert assistant == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert result == {"role": "tool", "content": "a cat", "tool_call_id": "c1"}
    assert sent["tools"] == TOOLS
    assert sent["stream_options"] == {"include_usage": True}
    assert "response_format" not in sent
    for name in ("tool_choice", "stop", "temperature", "max_tokens", "reasoning_effort"):
        assert sent[name] == fields[name]
    assert sent["parallel_tool_calls"] is False


def test_sends_only_what_the_client_sets(servers: Pair) -> None:
    script(servers, {"content": "Hello."})
    request_answer(servers[1], make_body())
    [sent] = servers[0].list_bodies(PATH)
    assert set(sent) == {"model", "messages", "stream", "stream_options"}


def test_counts_what_the_server_counts(servers: Pair) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 90},
    }
    script(servers, {"content": "Hello."}, usage=usage)
    counted = request_answer(servers[1], make_body()).usage
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (100, 20)
    assert counted["prompt_tokens_details"]["cached_tokens"] == 90


def test_each_choice_is_a_request(servers: Pair) -> None:
    servers[0].routes[PATH] = lambda body: make_chat_frames({"content": f"seed {body['seed']}"})
    answers = request_answers(servers[1], make_body(n=3, seed=4))
    assert [answer.content for answer in answers] == ["seed 4", "seed 5", "seed 6"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": "[a-z]+"}, "guided_regex"),
        ({"tools": [{"type": "function", "function": TOOL | {"strict": True}}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"top_k": 3}, "top_k"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"continue_final_message": True, "add_generation_prompt": False}, None),
    ],
)
def test_rejects_what_cannot_be_guaranteed(
    fields: dict[str, Any], param: str | None, servers: Pair
) -> None:
    script(servers)
    answer = httpx.post(f"{servers[1].url}{PATH}", json=make_body(**fields), timeout=60)
    assert answer.status_code == 400, answer.text
    assert param is None or answer.json()["error"]["param"].startswith(param)
    assert not servers[0].list_bodies(PATH)


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"response_format": {"type": "json_object"}}, "`response_format` is passed on"),
        ({"tools": TOOLS, "tool_choice": "required"}, "`tool_choice` is passed on"),
        ({"chat_template_kwargs": {"x": 1}}, "`chat_template_kwargs.x` has no effect"),
    ],
)
def test_warns_about_what_is_only_passed_on(
    fields: dict[str, Any], warning: str, servers: Pair
) -> None:
    script(servers, {"content": "{}"})
    answer = httpx.post(f"{servers[1].url}{PATH}", json=make_body(**fields), timeout=60)
    assert answer.status_code == 200, answer.text
    assert warning in answer.headers["x-dragoman-warning"]


def test_raw_prompts_and_token_counts_are_rejected(servers: Pair) -> None:
    script(servers)
    for path, body in (
        ("/v1/completions", {"model": "gpt", "prompt": "Once"}),
        ("/v1/messages/count_tokens", make_body()),
        ("/apply-template", make_body()),
        ("/tokenize", make_body()),
        ("/api/generate", {"model": "gpt", "prompt": "Once", "context": [1, 2]}),
    ):
        answer = httpx.post(f"{servers[1].url}{path}", json=body, timeout=60)
        assert answer.status_code == 400, answer.text
    assert not servers[0].requests


def test_is_named_as_a_chat_api(servers: Pair) -> None:
    [card] = httpx.get(f"{servers[1].url}/v1/models", timeout=60).json()["data"]
    assert card["upstream"]["api"] == "chat"
    assert any("not enforced" in line for line in card["upstream"]["limitations"])
    assert card["capabilities"] == ["completion", "chat", "tools"]
    assert servers[0].url not in json.dumps(card)


def test_openai_and_anthropic_clients(servers: Pair) -> None:
    deltas = [
        {"reasoning_content": "Hm."},
        {"content": "Looking."},
        call_part(0, id="call_1", name="look", arguments='{"a": 1}'),
    ]
    script(servers, *deltas, finish="tool_calls")
    url = servers[1].url
    function: Any = {"type": "function", **TOOL, "strict": False}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        response = client.responses.create(model="gpt", input="Hi", tools=[function])
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "function_call"]
    tool: Any = {"name": "look", "input_schema": {"type": "object"}}
    question: Any = [{"role": "user", "content": "Hi"}]
    with (
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as messages,
        messages.messages.stream(
            model="gpt", max_tokens=20, tools=[tool], messages=question
        ) as stream,
    ):
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[-1].type == "tool_use"
    assert final.content[-1].input == {"a": 1}


MESSAGE = {
    "role": "assistant",
    "content": "Look.\n",
    "reasoning_content": "Hm.",
    "tool_calls": call_part(None, id="x", name="look", arguments="{}")["tool_calls"],
}
WHOLE = {
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5},
}


PARALLEL = [
    *(call_part(0, id="x", name="look"), call_part(1, id="y", name="look", arguments="")),
    *(call_part(2, id="z", name="look"), call_part(1, arguments='{"a"'), call_part(0)),
    *(call_part(3, id="w", name="look", arguments='{"b": 1}'), call_part(1, arguments=": 1}")),
    call_part(0, arguments='{"c": "}'),
    *(call_part(0, arguments='"}'), call_part(0, arguments=" "), call_part(1, arguments="{}")),
]
INPUTS = [{"c": "}"}, {"a": 1}, {}, {"b": 1}]


def test_an_invalid_answer_fails_its_request_alone(tmp_path: Path) -> None:
    good = make_chat_frames({"content": "Hello."})
    invalid = [{"choices": [{"delta": {"content": "a"}}]}, "[DONE]"]  # no finish reason
    routes: dict[str, Any] = {"/v1/models": list_models("gpt"), PATH: good}
    with run_table(routes) as upstream, serve_upstream(upstream.url, tmp_path) as server:

        def request_status(frames: Any) -> int:
            upstream.routes[PATH] = frames
            url = f"{server.url}{PATH}"
            return httpx.post(url, json=make_body(), timeout=60).status_code

        for _ in range(3):
            assert request_status(invalid) == 500
            assert request_status(good) == 200
        found = [request_status(invalid) for _ in range(4)]
        assert found == [500, 500, 500, 503]  # a server that sends nothing else is down


def stream_events(url: str, body: dict[str, Any]) -> list[Any]:
    """Return the data of the named events of a stream."""
    lines = httpx.post(url, json=body, timeout=60).text.split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_calls_that_are_sent_in_turn_are_whole_in_every_api(servers: Pair) -> None:
    script(servers, *PARALLEL, finish="tool_calls")
    url, question = servers[1].url, [{"role": "user", "content": "Hi"}]
    whole = request_answer(servers[1], make_body(tools=TOOLS))
    assert [json.loads(arguments) for _, arguments in whole.calls] == INPUTS
    assert request_answer(servers[1], make_body(tools=TOOLS), streamed=True) == whole
    body: dict[str, Any] = {"model": "gpt", "stream": True}
    tool = {"name": "look", "input_schema": {"type": "object"}}
    messages = body | {"max_tokens": 20, "tools": [tool], "messages": question}
    blocks: dict[int, str] = {}
    for event in stream_events(f"{url}/v1/messages", messages):
        if event["type"] == "content_block_start":
            blocks[event["index"]] = ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == max(blocks)  # blocks follow one another
            blocks[event["index"]] += event["delta"]["partial_json"]
    assert [json.loads(text) for text in blocks.values()] == INPUTS
    responses = body | {"input": "Hi", "tools": [{"type": "function", **TOOL}]}
    items = stream_events(f"{url}/v1/responses", responses)[-1]["response"]["output"]
    assert [json.loads(item["arguments"]) for item in items] == INPUTS
    chat = {"model": "gpt", "stream": False, "tools": TOOLS, "messages": question}
    answer = httpx.post(f"{url}/api/chat", json=chat, timeout=60).json()
    calls = answer["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == INPUTS


@pytest.mark.parametrize(
    "models", [None, (200, [{"id": "gpt"}, {"id": "other"}])], ids=["none", "the list alone"]
)
def test_servers_may_list_their_models_in_another_way(models: Any, tmp_path: Path) -> None:
    listing = {} if models is None else {"/v1/models": models}
    routes = listing | {PATH: make_chat_frames({"content": "Hello."})}
    with run_table(routes) as upstream, serve_upstream(upstream.url, tmp_path, "gpt") as server:
        assert request_answer(server, make_body()).content == "Hello."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        (200, WHOLE),
        [WHOLE, "[DONE]"],
        [
            {"choices": [{"delta": MESSAGE}]},
            {"choices": [{"delta": {}, "message": MESSAGE, "finish_reason": "tool_calls"}]},
            {"choices": [], "usage": WHOLE["usage"]},
        ],
    ],
    ids=["no stream", "in one frame", "repeated at the end"],
)
def test_servers_may_send_whole_messages(answer: Any, stream: bool, servers: Pair) -> None:
    servers[0].routes[PATH] = answer
    found = request_answer(servers[1], make_body(tools=TOOLS), streamed=stream)
    assert (found.content, found.reasoning) == ("Look.\n", "Hm.")
    assert (found.calls, found.finish) == ([("look", "{}")], "tool_calls")
    assert found.usage["prompt_tokens"] == 3
    assert found.usage["completion_tokens"] == 5


@pytest.mark.parametrize(
    "frames",
    [
        ["{no json", "[DONE]"],
        [{"choices": [{"delta": {"content": 5}}]}, "[DONE]"],
        [{"choices": [{"delta": {"content": "a"}}]}, "[DONE]"],  # no finish reason
        make_chat_frames(call_part(3, name="look", arguments="{}")),
        make_chat_frames({"content": "a"}, finish="exploded"),
        [{"error": {"message": "secret details", "code": 500}}],
    ],
)
def test_damaged_answers_are_errors(frames: list[Any], servers: Pair) -> None:
    servers[0].routes[PATH] = frames
    answer = httpx.post(f"{servers[1].url}{PATH}", json=make_body(), timeout=60)
    assert answer.status_code in (500, 502, 503), answer.text
    assert "secret" not in answer.text
    servers[0].routes[PATH] = make_chat_frames({"content": "Hello."})
