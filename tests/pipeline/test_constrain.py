"""Demands on the line: what reaches the engine as a grammar, what is refused, and who hears of it.

The scripted engine fails if its script leaves the grammar of its job, so an answer of 200 is one
that the grammar allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from dragoman.testing.grammars import match_grammar
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, parse_events, serve_scripted

THINKER = TEMPLATES / "thinker.jinja"
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "it", "schema": CITY}}
STRICT = {"type": "json_schema", "json_schema": {"name": "it", "schema": CITY, "strict": True}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"days": 2}}\n</tool_call>'
THOUGHT = "<think>\nHm, <tool_call> or {\n</think>\n\n"
ROME = '{"city": "Rom"}'


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    said = {"model": "scripted", "messages": [{"role": "user", "content": "Go."}]} | fields
    return httpx.post(f"{server.url}/v1/chat/completions", json=said, timeout=60)


def answer(text: str, template: Any = THINKER, **fields: Any) -> httpx.Response:
    """What becomes of a script under demands."""
    with serve_scripted(ScriptedEngine(text, check_grammars=True), chat_template=template) as server:
        return post(server, **fields)


FITS: list[tuple[str, dict[str, Any]]] = [
    (ROME, {"response_format": SCHEMA}),
    (THOUGHT + ROME, {"response_format": STRICT}),
    ('{"a": [1, null]}', {"response_format": {"type": "json_object"}}),
    (CALL, {"tools": TOOLS, "tool_choice": "required"}),
    (THOUGHT + CALL + "\n" + OTHER, {"tools": TOOLS, "tool_choice": "required"}),
    (CALL, {"tools": TOOLS, "tool_choice": NAMED}),
    ("Just words.", {"tools": TOOLS}),
    (f"Let me see. {CALL} Done.", {"tools": TOOLS}),
    (THOUGHT + CALL, {"tools": TOOLS, "response_format": SCHEMA}),
    (THOUGHT + ROME, {"tools": TOOLS, "response_format": SCHEMA}),
    (CALL, {"tools": TOOLS, "parallel_tool_calls": False}),
    (THOUGHT + "yes", {"choice": ["yes", "no"]}),
    ("ab-12", {"regex": "[a-z]{2}-[0-9]+"}),
    ("aaa", {"grammar": 'root ::= "a"+'}),
    (THOUGHT + "x7", {"grammar": 'start: "x" N\nN: /[0-9]/'}),
    ("Just words.", {"tools": TOOLS, "tool_choice": "none"}),
]
BREAKS: list[tuple[str, dict[str, Any]]] = [
    ("Hello.", {"response_format": SCHEMA}),
    ('{"town": "Rom"}', {"response_format": SCHEMA}),
    ("[1]", {"response_format": {"type": "json_object"}}),
    ("Hello.", {"tools": TOOLS, "tool_choice": "required"}),
    (WRONG, {"tools": TOOLS}),
    (WRONG, {"tools": TOOLS, "tool_choice": "required"}),
    (OTHER, {"tools": TOOLS, "tool_choice": NAMED}),
    (f"{CALL}\n{OTHER}", {"tools": TOOLS, "parallel_tool_calls": False}),
    (f"{CALL}\n{CALL}", {"tools": TOOLS, "tool_choice": NAMED}),
    ("Hello.", {"tools": TOOLS, "response_format": SCHEMA}),
    ("maybe", {"choice": ["yes", "no"]}),
    ("ab-", {"regex": "[a-z]{2}-[0-9]+"}),
    (ROME[:-1], {"response_format": SCHEMA}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Says what it is asked to say."""
    texts = dict.fromkeys(text for text, _ in (*FITS, *BREAKS))
    replies = [Reply(text, when=f"<{hash(text)}>") for text in texts]
    with serve_scripted(ScriptedEngine(replies, check_grammars=True), chat_template=THINKER) as made:
        yield made


def say(server: RunningServer, text: str, **fields: Any) -> httpx.Response:
    return post(server, messages=[{"role": "user", "content": f"<{hash(text)}>"}], **fields)


@pytest.mark.parametrize(("text", "fields"), FITS)
def test_what_fits_is_answered(server: RunningServer, text: str, fields: dict[str, Any]) -> None:
    """D60, D62: thoughts are free and the demand begins after them."""
    response = say(server, text, **fields)
    assert response.status_code == 200, response.text
    assert "x-dragoman-warning" not in response.headers
    choice = response.json()["choices"][0]
    if "response_format" in fields and "tool_call" not in text.removeprefix(THOUGHT):
        json.loads(choice["message"]["content"])
    if fields.get("tool_choice") == NAMED:
        assert choice["finish_reason"] == "stop"
    for call in choice["message"].get("tool_calls") or []:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize(("text", "fields"), BREAKS)
def test_what_does_not_fit_leaves_the_grammar(
    server: RunningServer, text: str, fields: dict[str, Any]
) -> None:
    assert say(server, text, **fields).status_code == 500


def test_a_shape_is_all_there_is_of_the_content(server: RunningServer) -> None:
    """White space between thoughts and content is the format's, not the content's."""
    response = say(server, f"{THOUGHT}yes", choice=["yes", "no"])
    found = response.json()["choices"][0]["message"]
    assert (found["content"], found["reasoning_content"].strip()) == ("yes", "Hm, <tool_call> or {")


def test_only_the_allowed_tools_can_be_called(server: RunningServer) -> None:
    listed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    assert say(server, CALL, tools=TOOLS, tool_choice=listed).status_code == 200
    assert say(server, OTHER, tools=TOOLS, tool_choice=listed).status_code == 500


# engines that cannot, fields that do not go together

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": SCHEMA}, "response_format.json_schema.schema"),
    ({"grammar": 'root ::= "a"'}, "grammar"),
    ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        "tools[0].function.parameters",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_an_engine_that_cannot_is_not_asked(fields: dict[str, Any], param: str) -> None:
    with serve_scripted(ScriptedEngine("x"), chat_template=THINKER) as server:
        response = post(server, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert param in error["message"]


def test_an_engine_that_cannot_still_answers_where_nothing_is_demanded() -> None:
    with serve_scripted(ScriptedEngine(CALL), chat_template=THINKER) as server:
        response = post(server, tools=TOOLS)
    assert response.status_code == 200
    assert "does not support grammars" in response.headers["x-dragoman-warning"]
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": 5}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"response_prefix": "{"}, "continue_final_message"),
    ],
)
def test_what_does_not_go_with_a_grammar(fields: dict[str, Any], param: str) -> None:
    """A demand is refused by both names; where nothing is demanded, a warning is enough."""
    with serve_scripted(ScriptedEngine(ROME * 3, grammars=True), chat_template=THINKER) as server:
        refused = post(server, response_format=SCHEMA, **fields)
        warned = post(server, tools=TOOLS, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert f"`{param}`" in error["message"]
    assert "response_format.json_schema.schema" in error["message"]
    assert warned.status_code == 200
    assert "not constrained to their schemas" in warned.headers["x-dragoman-warning"]


UNIQUE = CITY | {"properties": {"city": {"type": "array", "uniqueItems": True}}}


def test_what_is_not_enforced_is_warned_of_or_refused() -> None:
    def tool(strict: bool) -> list[dict[str, Any]]:
        one = {"name": "weather", "parameters": UNIQUE, "strict": strict}
        return [{"type": "function", "function": one}]

    text = '<tool_call>\n{"name": "weather", "arguments": {"city": []}}\n</tool_call>'
    loose, strict = answer(text, tools=tool(False)), answer(text, tools=tool(True))
    assert loose.status_code == 200
    assert "/properties/city/uniqueItems" in loose.headers["x-dragoman-warning"]
    error = strict.json()["error"]
    assert (strict.status_code, error["code"]) == (400, "unsupported_keyword")
    assert error["param"] == "tools[0].function.parameters"
    assert "/properties/city/uniqueItems" in error["message"]


def test_a_schema_that_is_none_is_refused_even_where_nothing_is_demanded() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "thing"}}}]
    response = answer("Hello.", tools=tools)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_schema")


# truthful ends


def test_a_cut_answer_says_length() -> None:
    """D65"""
    engine = ScriptedEngine(Reply(ROME, chunks=1), check_grammars=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        choice = post(server, response_format=SCHEMA, max_tokens=5).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", ROME[:5])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('{"city": "a STOP b"}', {"response_format": SCHEMA}),
        (CALL.replace("Rom", "a STOP b"), {"tools": TOOLS, "tool_choice": "required"}),
        (CALL.replace("Rom", "a STOP b"), {"tools": TOOLS}),
    ],
)
def test_a_stop_string_does_not_cut_json(text: str, fields: dict[str, Any], stream: bool) -> None:
    engine = ScriptedEngine(Reply(text, chunks=3), check_grammars=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        response = post(server, stop=["STOP"], stream=stream, **fields)
    said = response.json()["choices"][0] if not stream else _added(response)
    calls = said["message"].get("tool_calls")
    whole = calls[0]["function"]["arguments"] if calls else said["message"]["content"]
    assert json.loads(whole) == {"city": "a STOP b"}


def _added(response: httpx.Response) -> dict[str, Any]:
    text, arguments = "", ""
    for event in parse_events(response):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or []:
                arguments += call["function"].get("arguments") or ""
    calls = [{"function": {"arguments": arguments}}] if arguments else None
    return {"message": {"content": text, "tool_calls": calls}}


def test_a_stop_string_still_cuts_text_before_a_call() -> None:
    engine = ScriptedEngine(Reply(f"Well STOP now. {CALL}", chunks=3), check_grammars=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        choice = post(server, stop=["STOP"], tools=TOOLS).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Well ", "stop")


def test_a_budget_and_a_demand_go_together() -> None:
    """D62: after thoughts that were cut short, the grammar is that of the answer."""
    engine = ScriptedEngine(["I go on and on and on and on and on", ROME], grammars=True)
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    with serve_scripted(engine, chat_template=THINKER) as server:
        response = post(server, response_format=SCHEMA, thinking_budget=3, **kwargs)
    assert response.json()["choices"][0]["message"]["content"] == ROME
    first, second = (job.grammar or "" for job in engine.jobs)
    assert match_grammar(first, f"On and on</think>\n\n{ROME}")[0]
    assert not match_grammar(first, ROME)[0]
    assert match_grammar(second, ROME)[0]


# what the model is told


def test_a_template_with_a_place_for_the_schema_is_given_it() -> None:
    template = "{{ messages[0].content }}{% if response_format %} {{ response_format | tojson }}"
    engine = ScriptedEngine(ROME, check_grammars=True)
    with serve_scripted(engine, chat_template=template + "{% endif %}") as server:
        assert post(server, response_format=SCHEMA).status_code == 200
        assert post(server).status_code == 200
    told, plain = (str(job.prompt) for job in engine.jobs)
    assert json.loads(told.removeprefix("Go. ")) == SCHEMA
    assert plain == "Go."


def test_metrics_tell_of_grammars() -> None:
    with serve_scripted(ScriptedEngine(ROME, check_grammars=True), chat_template=THINKER) as server:
        for _ in range(2):
            post(server, response_format=SCHEMA)
        page = httpx.get(f"{server.url}/metrics").text
    assert 'dragoman_grammars_total{cached="yes"} 1.0' in page
    assert 'dragoman_grammars_total{cached="no"} 1.0' in page
    assert "dragoman_grammars_cached 1.0" in page
