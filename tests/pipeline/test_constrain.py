"""Constraints over HTTP: the grammars that the engine gets, rejected requests and warnings.

The scripted engine fails if its script violates the grammar of its job, so status 200 means that
the grammar allows the script.
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

pytestmark = pytest.mark.slow

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
REASONING = "<think>\nHm, <tool_call> or {\n</think>\n\n"
ROME = '{"city": "Rom"}'


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Go."}]} | fields
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def post_to_script(text: str, template: Any = THINKER, **fields: Any) -> httpx.Response:
    """Send a request to a model that writes this text, if the grammar allows it."""
    engine = ScriptedEngine(text, check_grammars=True)
    with serve_scripted(engine, chat_template=template) as server:
        return post(server, **fields)


ALLOWED: list[tuple[str, dict[str, Any]]] = [
    (ROME, {"response_format": SCHEMA}),
    (REASONING + ROME, {"response_format": STRICT}),
    ('{"a": [1, null]}', {"response_format": {"type": "json_object"}}),
    (CALL, {"tools": TOOLS, "tool_choice": "required"}),
    (REASONING + CALL + "\n" + OTHER, {"tools": TOOLS, "tool_choice": "required"}),
    (CALL, {"tools": TOOLS, "tool_choice": NAMED}),
    ("Just words.", {"tools": TOOLS}),
    (f"Let me see. {CALL} Done.", {"tools": TOOLS}),
    (REASONING + CALL, {"tools": TOOLS, "response_format": SCHEMA}),
    (REASONING + ROME, {"tools": TOOLS, "response_format": SCHEMA}),
    (CALL, {"tools": TOOLS, "parallel_tool_calls": False}),
    (REASONING + "yes", {"choice": ["yes", "no"]}),
    ("ab-12", {"regex": "[a-z]{2}-[0-9]+"}),
    ("aaa", {"grammar": 'root ::= "a"+'}),
    (REASONING + "x7", {"grammar": 'start: "x" N\nN: /[0-9]/'}),
    ("Just words.", {"tools": TOOLS, "tool_choice": "none"}),
]
FORBIDDEN: list[tuple[str, dict[str, Any]]] = [
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
    """Serve a model that writes the text whose hash is in the request."""
    texts = dict.fromkeys(text for text, _ in (*ALLOWED, *FORBIDDEN))
    replies = [Reply(text, when=f"<{hash(text)}>") for text in texts]
    engine = ScriptedEngine(replies, check_grammars=True)
    with serve_scripted(engine, chat_template=THINKER) as running:
        yield running


def post_text(server: RunningServer, text: str, **fields: Any) -> httpx.Response:
    return post(server, messages=[{"role": "user", "content": f"<{hash(text)}>"}], **fields)


@pytest.mark.parametrize(("text", "fields"), ALLOWED)
def test_output_that_satisfies_the_constraint_is_allowed(
    server: RunningServer, text: str, fields: dict[str, Any]
) -> None:
    """Reasoning is unconstrained; the constraint begins after it."""
    response = post_text(server, text, **fields)
    assert response.status_code == 200, response.text
    assert "x-dragoman-warning" not in response.headers
    choice = response.json()["choices"][0]
    if "response_format" in fields and "tool_call" not in text.removeprefix(REASONING):
        json.loads(choice["message"]["content"])
    if fields.get("tool_choice") == NAMED:
        assert choice["finish_reason"] == "stop"
    for call in choice["message"].get("tool_calls") or []:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize(("text", "fields"), FORBIDDEN)
def test_output_that_violates_the_constraint_is_forbidden(
    server: RunningServer, text: str, fields: dict[str, Any]
) -> None:
    assert post_text(server, text, **fields).status_code == 500


def test_constrained_content_has_no_leading_space(server: RunningServer) -> None:
    """Whitespace between reasoning and content belongs to the format, not to the content."""
    response = post_text(server, f"{REASONING}yes", choice=["yes", "no"])
    message = response.json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"].strip()) == (
        "yes",
        "Hm, <tool_call> or {",
    )


def test_only_the_allowed_tools_can_be_called(server: RunningServer) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    assert post_text(server, CALL, tools=TOOLS, tool_choice=allowed).status_code == 200
    assert post_text(server, OTHER, tools=TOOLS, tool_choice=allowed).status_code == 500


# Engines without grammars, and fields that conflict

REJECTED: list[tuple[dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("fields", "param"), REJECTED)
def test_engine_without_grammars_rejects_constraints(fields: dict[str, Any], param: str) -> None:
    with serve_scripted(ScriptedEngine("x"), chat_template=THINKER) as server:
        response = post(server, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert param in error["message"]


def test_engine_without_grammars_answers_unconstrained_calls_with_a_warning() -> None:
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
        ({"response_prefix": "{"}, "response_prefix"),
    ],
)
def test_fields_that_conflict_with_a_grammar(fields: dict[str, Any], param: str) -> None:
    """A mandatory constraint is rejected with both names; an optional one gives a warning."""
    with serve_scripted(ScriptedEngine(ROME * 3, grammars=True), chat_template=THINKER) as server:
        rejected = post(server, response_format=SCHEMA, **fields)
        warned = post(server, tools=TOOLS, **fields)
    error = rejected.json()["error"]
    assert (rejected.status_code, error["param"]) == (400, param)
    assert f"`{param}`" in error["message"]
    assert "response_format.json_schema.schema" in error["message"]
    assert warned.status_code == 200
    assert "not constrained to their schemas" in warned.headers["x-dragoman-warning"]


UNIQUE = CITY | {"properties": {"city": {"type": "array", "uniqueItems": True}}}


def test_unsupported_keyword_is_a_warning_or_an_error_if_strict() -> None:
    def tool(strict: bool) -> list[dict[str, Any]]:
        function = {"name": "weather", "parameters": UNIQUE, "strict": strict}
        return [{"type": "function", "function": function}]

    text = '<tool_call>\n{"name": "weather", "arguments": {"city": []}}\n</tool_call>'
    loose, strict = post_to_script(text, tools=tool(False)), post_to_script(text, tools=tool(True))
    assert loose.status_code == 200
    assert "/properties/city/uniqueItems" in loose.headers["x-dragoman-warning"]
    error = strict.json()["error"]
    assert (strict.status_code, error["code"]) == (400, "unsupported_keyword")
    assert error["param"] == "tools[0].function.parameters"
    assert "/properties/city/uniqueItems" in error["message"]


def test_invalid_schema_is_rejected_even_if_not_strict() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "thing"}}}]
    response = post_to_script("Hello.", tools=tools)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_schema")


# Finish reasons and stop strings


def test_cut_answer_finishes_with_length() -> None:
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
def test_stop_string_does_not_cut_json(text: str, fields: dict[str, Any], stream: bool) -> None:
    engine = ScriptedEngine(Reply(text, chunks=3), check_grammars=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        response = post(server, stop=["STOP"], stream=stream, **fields)
    choice = response.json()["choices"][0] if not stream else _fold_events(response)
    calls = choice["message"].get("tool_calls")
    text = calls[0]["function"]["arguments"] if calls else choice["message"]["content"]
    assert json.loads(text) == {"city": "a STOP b"}


def _fold_events(response: httpx.Response) -> dict[str, Any]:
    text, arguments = "", ""
    for event in parse_events(response):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or []:
                arguments += call["function"].get("arguments") or ""
    calls = [{"function": {"arguments": arguments}}] if arguments else None
    return {"message": {"content": text, "tool_calls": calls}}


def test_stop_string_cuts_text_before_a_call() -> None:
    engine = ScriptedEngine(Reply(f"Well STOP now. {CALL}", chunks=3), check_grammars=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        choice = post(server, stop=["STOP"], tools=TOOLS).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Well ", "stop")


def test_reasoning_budget_works_with_a_constraint() -> None:
    """Once reasoning is cut short, the grammar is that of the answer."""
    engine = ScriptedEngine(["I go on and on and on and on and on", ROME], grammars=True)
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    with serve_scripted(engine, chat_template=THINKER) as server:
        response = post(server, response_format=SCHEMA, thinking_budget=3, **kwargs)
    assert response.json()["choices"][0]["message"]["content"] == ROME
    first, second = (job.grammar or "" for job in engine.jobs)
    assert match_grammar(first, f"On and on</think>\n\n{ROME}")[0]
    assert not match_grammar(first, ROME)[0]
    assert match_grammar(second, ROME)[0]


# What the model sees


def test_template_gets_the_response_format() -> None:
    template = "{{ messages[0].content }}{% if response_format %} {{ response_format | tojson }}"
    engine = ScriptedEngine(ROME, check_grammars=True)
    with serve_scripted(engine, chat_template=template + "{% endif %}") as server:
        assert post(server, response_format=SCHEMA).status_code == 200
        assert post(server).status_code == 200
    with_schema, plain = (str(job.prompt) for job in engine.jobs)
    assert json.loads(with_schema.removeprefix("Go. ")) == SCHEMA
    assert plain == "Go."


def test_metrics_count_grammars() -> None:
    with serve_scripted(ScriptedEngine(ROME, check_grammars=True), chat_template=THINKER) as server:
        for _ in range(2):
            post(server, response_format=SCHEMA)
        page = httpx.get(f"{server.url}/metrics").text
    assert 'dragoman_grammars_total{cached="yes"} 1.0' in page
    assert 'dragoman_grammars_total{cached="no"} 1.0' in page
    assert "dragoman_grammars_cached 1.0" in page
