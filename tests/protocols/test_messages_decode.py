"""Reading requests of the Messages dialect: what they come down to, and what is refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest, Unsupported
from dragoman.prompt.conversation import flatten_content
from dragoman.protocols.messages import reasoning
from dragoman.protocols.messages.decode import decode_count_request, decode_request
from dragoman.signing import Signer
from dragoman.types import Chat, ImagePart, Message, Request, ToolCall, text_content
from tests.support.text_model import check_media

SEAL = Signer(b"k" * 32)
MINE, THEIRS = SEAL.for_owner("me"), SEAL.for_owner("somebody else")
USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"$schema": "x", "type": "object", "properties": {"at": {"type": "string"}}},
}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"format": {"type": "json_schema", "schema": SCHEMA}}


def read(strict: bool = False, **fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 10, "messages": [USER]} | fields
    body = {name: value for name, value in body.items() if value is not ...}
    return decode_request(json.dumps(body).encode(), strict, MINE)


def chat(**fields: Any) -> Chat:
    [found] = read(**fields).prompts
    assert isinstance(found, Chat)
    return found


def turns(*messages: Any, **fields: Any) -> tuple[Message, ...]:
    return chat(messages=list(messages), **fields).messages


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def result(content: Any = ..., **more: Any) -> dict[str, Any]:
    said = {} if content is ... else {"content": content}
    return {"type": "tool_result", "tool_use_id": "t1", **said, **more}


def thought(said: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": said, "signature": signature}


def signed(said: str, left_out: bool = False) -> str:
    return reasoning.sign_reasoning(said, MINE, omitted=left_out)


def told(content: Any) -> Message:
    """What becomes of a tool's result."""
    [turn] = turns(user(result(content)))
    return turn


USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "x", "n": [1, 2.5]}}


# Messages


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be kind.", "Be kind."),
        ([text("a"), text("b", cache_control={"type": "ephemeral"})], "a\n\nb"),
        ([text("x-anthropic-billing-header: cc_version=1; cch=0"), text("b")], "b"),
        ([text("a"), text("x-anthropic-billing-header: cc_version=1")], "a"),
        ("x-anthropic-billing-header: cc_version=1\nBe kind.", "Be kind."),
        ("x-anthropic-billing-header: cc_version=1", None),
        ("", None),
        ([], None),
        (None, None),
    ],
)
def test_the_system_prompt_has_no_volatile_line(system: Any, expected: str | None) -> None:
    made = turns(USER, system=system)
    leading = [] if expected is None else [Message(role="system", content=text_content(expected))]
    assert list(made) == [*leading, Message(role="user", content=text_content("hi"))]


def test_results_come_before_what_the_user_says() -> None:
    made = turns(
        USER,
        assistant(text("Let me "), text("look."), USE),
        user(text("first"), result("seen", cache_control={}), text("second")),
        {"role": "system", "content": "Mind the time."},
        {"role": "user", "content": "and?"},
        {"role": "user", "content": "well?"},
    )
    call = ToolCall(id="t1", name="look", arguments='{"at": "x", "n": [1, 2.5]}')
    assert made == (
        Message(role="user", content=text_content("hi")),
        Message(role="assistant", content=text_content("Let me look."), tool_calls=(call,)),
        Message(role="tool", content=text_content("seen"), tool_call_id="t1"),
        Message(role="user", content=text_content("first\n\nsecond")),
        Message(role="system", content=text_content("Mind the time.")),
        Message(role="user", content=text_content("and?")),
        Message(role="user", content=text_content("well?")),
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("seen", "seen"),
        ("", ""),
        (None, ""),
        (..., ""),
        ([], ""),
        ([text("a"), text("b")], "a\n\nb"),
        (
            [{"type": "search_result", "title": "T", "source": "S", "content": [text("found")]}],
            "T\nS\nfound",
        ),
        ([{"type": "tool_reference", "tool_name": "look"}], "look"),
        ([{"type": "document", "source": {"type": "text", "data": "d"}, "title": "T"}], "T\nd"),
        ([text("a"), {"type": "unheard_of", "what": 1}], "a"),
    ],
)
def test_results_of_tools_have_many_forms(content: Any, expected: str) -> None:
    assert told(content) == Message(role="tool", content=text_content(expected), tool_call_id="t1")


@pytest.mark.parametrize(
    ("content", "expected"),
    [("no such file", "Error: no such file"), ("Error 5", "Error 5"), ("", "Error")],
)
def test_a_tool_that_failed_says_so(content: str, expected: str) -> None:
    [turn] = turns(user(result(content, is_error=True)))
    assert turn.content == text_content(expected)


def test_a_picture_among_results_is_told_of_not_refused() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    request = read(messages=[user(result([text("a"), picture]))])
    [warning] = check_media(request)
    assert "`image`" in warning
    [found] = request.prompts
    assert isinstance(found, Chat)
    _, part = found.messages[0].content
    assert isinstance(part, ImagePart)
    assert (part.param, part.media_type) == ("messages[0].content[0].content[1]", "image/png")
    text_of_it = flatten_content(found.messages[0].content)
    assert text_of_it == "a\n\n[image: not shown, only text is supported]"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "https://x"}},
        {"type": "document", "source": {"type": "base64", "data": ""}},
        {"type": "document", "source": {"type": "file", "file_id": "f"}},
        {"type": "document"},
    ],
)
def test_what_is_no_text_is_refused_by_name(block: Any) -> None:
    request = read(messages=[USER, assistant(text("a")), user(block)])
    with pytest.raises(Unsupported) as caught:
        check_media(request)
    assert caught.value.param == "messages[2].content[0]"


def test_documents_of_text_are_read() -> None:
    inner = {"type": "content", "content": [text("a"), text("b")]}
    [turn] = turns(user({"type": "document", "source": inner}, text("What is it?")))
    assert turn.content == text_content("a\n\nb\n\nWhat is it?")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "x"}]},
        {"type": "container_upload", "file_id": "f"},
        {"type": "never heard of", "content": {"a": 1}},
    ],
)
def test_blocks_of_the_vendors_servers_are_left_out(block: Any) -> None:
    for messages in ([assistant(block, text("so")), USER], [user(block, text("so"))]):
        request = read(messages=messages)
        [found] = request.prompts
        assert isinstance(found, Chat)
        assert found.messages[0].content == text_content("so")
        [warning] = request.warnings
        assert "messages[0].content[0]" in warning


# Thoughts


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (thought("hm", signed("hm")), "hm"),
        (thought("", signed("hm", left_out=True)), "hm"),
        (thought("雨", signed("雨")), "雨"),
        (thought("hm!", signed("hm")), None),
        (thought("hm", reasoning.sign_reasoning("hm", THEIRS, omitted=False)), None),
        (thought("", reasoning.sign_reasoning("hm", THEIRS, omitted=True)), None),
        (thought("hm", signed("hm", left_out=True)), None),
        (thought("", signed("")), None),
        (thought("hm", ""), None),
        (thought("hm", "ünsinn"), None),
        ({"type": "thinking", "thinking": "hm"}, None),
        ({"type": "thinking"}, None),
    ],
)
def test_only_our_own_thoughts_are_shown_to_the_model(block: Any, expected: str | None) -> None:
    request = read(messages=[USER, assistant(block, text("So."), USE), user(result("x"))])
    [found] = request.prompts
    assert isinstance(found, Chat)
    assert (found.messages[1].reasoning, found.messages[1].content) == (
        expected,
        text_content("So."),
    )
    assert len(request.warnings) == (expected is None)


def body_of(role: str, block: str) -> bytes:
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": role, "content": [0]}]})
    return body.replace("[0]", f"[{block}]").encode()


def test_a_call_is_kept_as_the_client_wrote_it() -> None:
    for given_, expected in (("null", "{}"), ('{ "b":1,\n"a":2.50 }', '{ "b":1,\n"a":2.50 }')):
        block = '{"type":"tool_use","id":"a","name":"b","input":' + given_ + "}"
        [found] = decode_request(body_of("assistant", block), False, MINE).prompts
        assert isinstance(found, Chat)
        assert found.messages[0].tool_calls[0].arguments == expected


def test_thoughts_between_calls_are_put_together() -> None:
    made = turns(
        USER,
        assistant(
            thought("one", signed("one")),
            {"type": "redacted_thinking", "data": "?"},
            USE,
            thought("two", signed("two")),
        ),
        user(result("x")),
    )
    assert made[1].reasoning == "one\n\ntwo"
    assert made[1].content == ()


# An answer that goes on with the last message


@pytest.mark.parametrize(
    ("last", "goes_on", "kept"),
    [
        ({"role": "assistant", "content": "The answer is ("}, True, True),
        (assistant(text("The answer is (")), True, True),
        ({"role": "assistant", "content": ""}, False, False),
        (assistant(), False, False),
        (assistant(text("a"), USE), False, True),
        (assistant(thought("hm", signed("hm"))), False, True),
        (USER, False, True),
    ],
)
def test_an_answer_goes_on_with_text_of_the_assistants(
    last: Any, goes_on: bool, kept: bool
) -> None:
    made = chat(messages=[USER, last])
    assert made.continue_final_message is goes_on
    assert made.add_generation_prompt is not goes_on
    assert len(made.messages) == 1 + kept


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": FORMAT},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"tools": [TOOL | {"strict": True}]},
    ],
)
def test_going_on_does_not_go_with_a_guarantee(fields: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        read(messages=[USER, assistant(text("{"))], **fields)
    assert caught.value.param == "messages[1]"


def test_going_on_is_not_held_to_a_single_call() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    request = read(messages=[USER, assistant(text("So"))], tools=[TOOL], tool_choice=choice)
    [found] = request.prompts
    assert isinstance(found, Chat)
    assert found.parallel_tool_calls
    assert "disable_parallel_tool_use" in request.warnings[0]


# Tools


def test_tools_and_where_they_stand() -> None:
    other = {"type": "custom", "name": "go", "input_schema": {"type": "object"}, "strict": True}
    made = chat(tools=[SEARCH, TOOL, other])
    assert [(tool.name, tool.param, tool.strict) for tool in made.tools] == [
        ("look", "tools[1].input_schema", None),
        ("go", "tools[2].input_schema", True),
    ]
    assert made.tools[0].parameters == TOOL["input_schema"]
    assert chat(tools=[]).tools == ()


@pytest.mark.parametrize(
    ("kind", "name", "has"),
    [
        ("bash_20250124", "bash", "restart"),
        ("text_editor_20250124", "str_replace_editor", "new_str"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "insert_text"),
        ("memory_20250818", "memory", "old_path"),
    ],
)
def test_tools_that_the_client_runs_have_their_schemas(kind: str, name: str, has: str) -> None:
    [tool] = chat(tools=[{"type": kind, "name": name}]).tools
    assert tool.name == name
    assert has in tool.parameters["properties"]
    assert tool.description
    commands = tool.parameters["properties"]["command"].get("enum", [])
    assert ("undo_edit" in commands) == (kind == "text_editor_20250124")


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_20250305",
        "web_fetch_20250910",
        "code_execution_20250825",
        "computer_20250124",
        "computer_toolset_20260801",
        "tool_search_tool_regex_20251119",
        "mcp_toolset",
        "x",
    ],
)
def test_tools_of_the_vendors_servers_are_left_out(kind: str) -> None:
    request = read(tools=[{"type": kind, "name": "there", "max_uses": 1}, TOOL])
    [found] = request.prompts
    assert isinstance(found, Chat)
    assert [tool.name for tool in found.tools] == ["look"]
    [warning] = request.warnings
    assert kind in warning
    assert "tools[0]" in warning


@pytest.mark.parametrize(
    ("said", "mode", "callable_", "parallel"),
    [
        (None, "auto", None, True),
        ({"type": "auto"}, "auto", None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None, False),
        ({"type": "any"}, "required", None, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", None, False),
        ({"type": "tool", "name": "look"}, "required", ("look",), True),
        ({"type": "none"}, "none", None, True),
        ({"type": "tool", "name": "web_search"}, "auto", None, True),
    ],
)
def test_which_tools_may_be_called(
    said: Any, mode: str, callable_: tuple[str, ...] | None, parallel: bool
) -> None:
    made = chat(tools=[TOOL, SEARCH], tool_choice=said)
    assert (made.tool_choice, made.allowed_tools, made.parallel_tool_calls) == (
        mode,
        callable_,
        parallel,
    )


def test_a_choice_among_tools_that_are_all_left_out() -> None:
    request = read(tools=[SEARCH], tool_choice={"type": "any"})
    assert len(request.warnings) == 2


# Thinking and the rest


@pytest.mark.parametrize(
    ("fields", "effort", "budget", "is_told", "sealed"),
    [
        ({}, "none", None, False, False),
        ({"thinking": {"type": "disabled"}}, "none", None, False, False),
        ({"thinking": {"type": "adaptive"}}, None, None, True, False),
        ({"thinking": {"type": "between_tools"}}, None, None, True, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "medium", 5, True, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "medium", 5000, True, False),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None, None, True, True),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, None, None, True, False),
        ({"output_config": {"effort": "low"}}, "low", None, False, False),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            "high",
            None,
            True,
            False,
        ),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            "none",
            None,
            False,
            False,
        ),
    ],
)
def test_thinking_is_a_wish(
    fields: Any, effort: str | None, budget: int | None, is_told: bool, sealed: bool
) -> None:
    request = read(**fields)
    [made] = request.prompts
    assert isinstance(made, Chat)
    assert (made.reasoning_effort, made.thinking_budget) == (effort, budget)
    assert (request.include_reasoning, request.encrypt_reasoning) == (is_told, sealed)
    assert {"reasoning_effort", "thinking_budget"} <= set(made.optional_fields)
    assert made.get_client_field_name("thinking_budget") == "thinking.budget_tokens"
    assert request.warnings == ()


def test_a_way_of_thinking_that_is_new_is_warned_of() -> None:
    request = read(thinking={"type": "backwards"})
    assert len(request.warnings) == 1
    assert request.include_reasoning


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_the_shape_of_the_text(field: str) -> None:
    said: Any = FORMAT if field == "output_config" else FORMAT["format"]
    fields: Any = {field: said}
    request = read(tools=[TOOL], **fields)
    shape = request.constraint
    assert shape is not None
    at = "output_config.format" if field == "output_config" else field
    assert (shape.kind, shape.value, shape.param) == ("json", SCHEMA, f"{at}.schema")
    assert shape.allows_tool_calls
    assert chat(**fields).response_format["json_schema"]["schema"] == SCHEMA


def test_what_is_said_of_sampling() -> None:
    request = read(
        temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["END", ""], max_tokens=99, stream=True
    )
    said = request.sampling
    assert (said.temperature, said.top_p, said.top_k, said.max_tokens) == (0.5, 0.9, 7, 99)
    assert request.stop == ("END",)
    assert request.stream
    assert read(top_k=-1).sampling.top_k == 0
    assert read().sampling.temperature is None


def test_what_agents_always_send_is_fine() -> None:
    fields: dict[str, Any] = {
        "metadata": {"user_id": '{"device":"x"}'},
        "service_tier": "auto",
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "cache_control": {"type": "ephemeral"},
        "speed": "fast",
        "inference_geo": "eu",
        "mcp_servers": [],
        "container": None,
    }
    assert read(strict=True, **fields).warnings == ()
    assert read(not_known_yet=1).warnings == ()
    request = read(container="c", mcp_servers=[{"type": "url"}])
    assert len(request.warnings) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": ...}, "model"),
        ({"model": " "}, "model"),
        ({"messages": ...}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "text"}]}]},
            "messages[1].content[0].text",
        ),
        ({"messages": [user({"type": "tool_result"})]}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [user(result([{"type": "text"}]))]},
            "messages[0].content[0].content[0].text",
        ),
        ({"messages": [user(result({"a": 1}))]}, "messages[0].content[0].content"),
        ({"messages": [assistant({"type": "tool_use", "name": "x"})]}, "messages[0].content[0].id"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"tool_choice": {"type": "often"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    ],
)
def test_mistakes_are_told_where_they_are(fields: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert caught.value.param == param


def test_strict_servers_refuse_what_they_do_not_know() -> None:
    with pytest.raises(BadRequest) as caught:
        read(strict=True, not_known_yet=1)
    assert caught.value.param == "not_known_yet"


def test_a_count_needs_no_limit() -> None:
    body = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL]}
    request = decode_count_request(json.dumps(body).encode(), True, MINE)
    assert request.model == "m"
    assert request.prompts == (chat(system="s", tools=[TOOL]),)


# Any body at all

WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "system",
        "text",
        "thinking",
        "tool_use",
        "tool_result",
        "image",
        "document",
        "custom",
        "any",
        "tool",
        "enabled",
        "json_schema",
        "bash_20250124",
        "",
        "é\n",
    ]
)
NAMES = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "thinking",
        "signature",
        "id",
        "name",
        "input",
        "source",
        "tool_use_id",
        "is_error",
        "input_schema",
        "format",
        "schema",
        "effort",
        "data",
        "title",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
BLOCKS = st.fixed_dictionaries({"type": WORDS}, optional={"text": WORDS, "content": VALUES})
BLOCKS |= st.fixed_dictionaries(
    {"type": WORDS, "id": WORDS, "name": WORDS, "tool_use_id": WORDS},
    optional={"input": VALUES, "content": VALUES, "thinking": WORDS, "source": VALUES},
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"])},
    optional={"content": st.lists(BLOCKS, max_size=3) | WORDS | VALUES},
)
BODIES = st.fixed_dictionaries(
    {"model": st.just("m"), "max_tokens": st.just(5), "messages": st.lists(TURNS, max_size=3)},
    optional={
        name: VALUES | st.lists(BLOCKS, max_size=2)
        for name in ("system", "tools", "tool_choice", "thinking", "output_config", "stream")
    },
)


@given(BODIES | VALUES)
def test_any_json_is_a_request_or_a_mistake_of_the_clients(body: Any) -> None:
    with suppress(BadRequest):
        assert isinstance(decode_request(json.dumps(body).encode(), False, MINE), Request)


@pytest.mark.parametrize("depth", [50, 400, 900, 5000])
def test_any_depth_is_a_request_or_a_mistake_of_the_clients(depth: int) -> None:
    searches = '[{"type":"search_result","content":' * depth + '"x"' + "}]" * depth
    objects = '{"a":' * depth + "1" + "}" * depth
    for block in (
        '{"type":"tool_use","id":"a","name":"b","input":' + objects + "}",
        '{"type":"tool_result","tool_use_id":"a","content":' + searches + "}",
        '{"type":"document","source":{"type":"content","content":' + searches + "}}",
    ):
        for role in ("user", "assistant"):
            with suppress(BadRequest):
                assert decode_request(body_of(role, block), False, MINE).prompts


@given(st.binary(max_size=40))
def test_any_bytes_are_a_request_or_a_mistake_of_the_clients(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_request(body, False, MINE)
