"""Decoding Messages requests, and rejecting invalid ones by name."""

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
from dragoman.types import Chat, ImagePart, Message, Request, ToolCall, make_text_content
from tests.support.text_only_model import check_media

SIGNER = Signer(b"k" * 32)
OWN_SIGNER, OTHER_SIGNER = SIGNER.for_owner("me"), SIGNER.for_owner("somebody else")
USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"$schema": "x", "type": "object", "properties": {"at": {"type": "string"}}},
}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"format": {"type": "json_schema", "schema": SCHEMA}}


def decode(strict: bool = False, **fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 10, "messages": [USER]} | fields
    body = {name: value for name, value in body.items() if value is not ...}
    return decode_request(json.dumps(body).encode(), strict, OWN_SIGNER)


def decode_chat(**fields: Any) -> Chat:
    [chat_prompt] = decode(**fields).prompts
    assert isinstance(chat_prompt, Chat)
    return chat_prompt


def decode_messages(*messages: Any, **fields: Any) -> tuple[Message, ...]:
    return decode_chat(messages=list(messages), **fields).messages


def user_message(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant_message(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text_block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def tool_result(content: Any = ..., **more: Any) -> dict[str, Any]:
    fields = {} if content is ... else {"content": content}
    return {"type": "tool_result", "tool_use_id": "t1", **fields, **more}


def thinking_block(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def sign(text: str, omitted: bool = False) -> str:
    return reasoning.sign_reasoning(text, OWN_SIGNER, omitted=omitted)


def decode_tool_result(content: Any) -> Message:
    """Decode a tool result with this content."""
    [message] = decode_messages(user_message(tool_result(content)))
    return message


TOOL_USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "x", "n": [1, 2.5]}}


# Messages


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be kind.", "Be kind."),
        ([text_block("a"), text_block("b", cache_control={"type": "ephemeral"})], "a\n\nb"),
        ([text_block("x-anthropic-billing-header: cc_version=1; cch=0"), text_block("b")], "b"),
        ([text_block("a"), text_block("x-anthropic-billing-header: cc_version=1")], "a"),
        ("x-anthropic-billing-header: cc_version=1\nBe kind.", "Be kind."),
        ("x-anthropic-billing-header: cc_version=1", None),
        ("", None),
        ([], None),
        (None, None),
    ],
)
def test_the_system_prompt_drops_the_billing_header(system: Any, expected: str | None) -> None:
    messages = decode_messages(USER, system=system)
    leading = (
        [] if expected is None else [Message(role="system", content=make_text_content(expected))]
    )
    assert list(messages) == [*leading, Message(role="user", content=make_text_content("hi"))]


def test_tool_results_precede_the_users_text() -> None:
    messages = decode_messages(
        USER,
        assistant_message(text_block("Let me "), text_block("look."), TOOL_USE),
        user_message(
            text_block("first"), tool_result("seen", cache_control={}), text_block("second")
        ),
        {"role": "system", "content": "Mind the time."},
        {"role": "user", "content": "and?"},
        {"role": "user", "content": "well?"},
    )
    call = ToolCall(id="t1", name="look", arguments='{"at": "x", "n": [1, 2.5]}')
    assert messages == (
        Message(role="user", content=make_text_content("hi")),
        Message(role="assistant", content=make_text_content("Let me look."), tool_calls=(call,)),
        Message(role="tool", content=make_text_content("seen"), tool_call_id="t1"),
        Message(role="user", content=make_text_content("first\n\nsecond")),
        Message(role="system", content=make_text_content("Mind the time.")),
        Message(role="user", content=make_text_content("and?")),
        Message(role="user", content=make_text_content("well?")),
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("seen", "seen"),
        ("", ""),
        (None, ""),
        (..., ""),
        ([], ""),
        ([text_block("a"), text_block("b")], "a\n\nb"),
        (
            [
                {
                    "type": "search_result",
                    "title": "T",
                    "source": "S",
                    "content": [text_block("found")],
                }
            ],
            "T\nS\nfound",
        ),
        ([{"type": "tool_reference", "tool_name": "look"}], "look"),
        ([{"type": "document", "source": {"type": "text", "data": "d"}, "title": "T"}], "T\nd"),
        ([text_block("a"), {"type": "unknown_type", "what": 1}], "a"),
    ],
)
def test_tool_results_have_many_forms(content: Any, expected: str) -> None:
    assert decode_tool_result(content) == Message(
        role="tool", content=make_text_content(expected), tool_call_id="t1"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [("no such file", "Error: no such file"), ("Error 5", "Error 5"), ("", "Error")],
)
def test_a_failed_tool_result_starts_with_error(content: str, expected: str) -> None:
    [message] = decode_messages(user_message(tool_result(content, is_error=True)))
    assert message.content == make_text_content(expected)


def test_an_image_in_a_tool_result_is_warned_about_not_rejected() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    request = decode(messages=[user_message(tool_result([text_block("a"), image]))])
    [warning] = check_media(request)
    assert "`image`" in warning
    [chat_prompt] = request.prompts
    assert isinstance(chat_prompt, Chat)
    _, part = chat_prompt.messages[0].content
    assert isinstance(part, ImagePart)
    assert (part.param, part.media_type) == ("messages[0].content[0].content[1]", "image/png")
    flattened = flatten_content(chat_prompt.messages[0].content)
    assert flattened == "a[image: not shown, only text is supported]"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "https://x"}},
        {"type": "image", "source": {"type": "base64", "data": ""}},
        {"type": "image"},
    ],
)
def test_media_is_rejected_by_name(block: Any) -> None:
    request = decode(messages=[USER, assistant_message(text_block("a")), user_message(block)])
    with pytest.raises(Unsupported) as caught:
        check_media(request)
    assert caught.value.param == "messages[2].content[0]"


def test_text_documents_are_decoded() -> None:
    inner = {"type": "content", "content": [text_block("a"), text_block("b")]}
    [message] = decode_messages(
        user_message({"type": "document", "source": inner}, text_block("What is it?"))
    )
    assert message.content == make_text_content("a\n\nb\n\nWhat is it?")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "x"}]},
        {"type": "container_upload", "file_id": "f"},
        {"type": "unknown type", "content": {"a": 1}},
    ],
)
def test_blocks_of_the_vendors_servers_are_ignored(block: Any) -> None:
    for messages in (
        [assistant_message(block, text_block("so")), USER],
        [user_message(block, text_block("so"))],
    ):
        request = decode(messages=messages)
        [chat_prompt] = request.prompts
        assert isinstance(chat_prompt, Chat)
        assert chat_prompt.messages[0].content == make_text_content("so")
        [warning] = request.warnings
        assert "messages[0].content[0]" in warning


# Reasoning


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (thinking_block("hm", sign("hm")), "hm"),
        (thinking_block("", sign("hm", omitted=True)), "hm"),
        (thinking_block("雨", sign("雨")), "雨"),
        (thinking_block("hm!", sign("hm")), None),
        (thinking_block("hm", reasoning.sign_reasoning("hm", OTHER_SIGNER, omitted=False)), None),
        (thinking_block("", reasoning.sign_reasoning("hm", OTHER_SIGNER, omitted=True)), None),
        (thinking_block("hm", sign("hm", omitted=True)), None),
        (thinking_block("", sign("")), None),
        (thinking_block("hm", ""), None),
        (thinking_block("hm", "ünsinn"), None),
        ({"type": "thinking", "thinking": "hm"}, None),
        ({"type": "thinking"}, None),
    ],
)
def test_only_reasoning_signed_by_this_server_is_shown_to_the_model(
    block: Any, expected: str | None
) -> None:
    request = decode(
        messages=[
            USER,
            assistant_message(block, text_block("So."), TOOL_USE),
            user_message(tool_result("x")),
        ]
    )
    [chat_prompt] = request.prompts
    assert isinstance(chat_prompt, Chat)
    assert (chat_prompt.messages[1].reasoning, chat_prompt.messages[1].content) == (
        expected,
        make_text_content("So."),
    )
    assert len(request.warnings) == (expected is None)


def make_body(role: str, block: str) -> bytes:
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": [{"role": role, "content": [0]}]})
    return body.replace("[0]", f"[{block}]").encode()


def test_arguments_stay_as_the_client_sent_them() -> None:
    for sent, expected in (("null", "{}"), ('{ "b":1,\n"a":2.50 }', '{ "b":1,\n"a":2.50 }')):
        block = '{"type":"tool_use","id":"a","name":"b","input":' + sent + "}"
        [chat_prompt] = decode_request(make_body("assistant", block), False, OWN_SIGNER).prompts
        assert isinstance(chat_prompt, Chat)
        assert chat_prompt.messages[0].tool_calls[0].arguments == expected


def test_reasoning_between_calls_is_joined() -> None:
    messages = decode_messages(
        USER,
        assistant_message(
            thinking_block("one", sign("one")),
            {"type": "redacted_thinking", "data": "?"},
            TOOL_USE,
            thinking_block("two", sign("two")),
        ),
        user_message(tool_result("x")),
    )
    assert messages[1].reasoning == "one\n\ntwo"
    assert messages[1].content == ()


# An answer that continues the last message


@pytest.mark.parametrize(
    ("last", "continues", "is_kept"),
    [
        ({"role": "assistant", "content": "The answer is ("}, True, True),
        (assistant_message(text_block("The answer is (")), True, True),
        ({"role": "assistant", "content": ""}, False, False),
        (assistant_message(), False, False),
        (assistant_message(text_block("a"), TOOL_USE), False, True),
        (assistant_message(thinking_block("hm", sign("hm"))), False, True),
        (USER, False, True),
    ],
)
def test_an_answer_continues_text_of_the_assistant(
    last: Any, continues: bool, is_kept: bool
) -> None:
    chat_prompt = decode_chat(messages=[USER, last])
    assert chat_prompt.continue_final_message is continues
    assert chat_prompt.add_generation_prompt is not continues
    assert len(chat_prompt.messages) == 1 + is_kept


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": FORMAT},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"tools": [TOOL | {"strict": True}]},
    ],
)
def test_a_continuation_cannot_be_constrained(fields: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(messages=[USER, assistant_message(text_block("{"))], **fields)
    assert caught.value.param == "messages[1]"


def test_a_continuation_ignores_disable_parallel_tool_use() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    request = decode(
        messages=[USER, assistant_message(text_block("So"))], tools=[TOOL], tool_choice=choice
    )
    [chat_prompt] = request.prompts
    assert isinstance(chat_prompt, Chat)
    assert chat_prompt.parallel_tool_calls
    assert "disable_parallel_tool_use" in request.warnings[0]


# Tools


def test_tools_and_their_paths() -> None:
    other = {"type": "custom", "name": "go", "input_schema": {"type": "object"}, "strict": True}
    chat_prompt = decode_chat(tools=[SEARCH, TOOL, other])
    assert [(tool.name, tool.param, tool.strict) for tool in chat_prompt.tools] == [
        ("look", "tools[1].input_schema", None),
        ("go", "tools[2].input_schema", True),
    ]
    assert chat_prompt.tools[0].parameters == TOOL["input_schema"]
    assert decode_chat(tools=[]).tools == ()


@pytest.mark.parametrize(
    ("kind", "name", "has"),
    [
        ("bash_20250124", "bash", "restart"),
        ("text_editor_20250124", "str_replace_editor", "new_str"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "insert_text"),
        ("memory_20250818", "memory", "old_path"),
    ],
)
def test_tools_that_the_client_runs_get_their_schemas(kind: str, name: str, has: str) -> None:
    [tool] = decode_chat(tools=[{"type": kind, "name": name}]).tools
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
def test_tools_of_the_vendors_servers_are_ignored(kind: str) -> None:
    request = decode(tools=[{"type": kind, "name": "there", "max_uses": 1}, TOOL])
    [chat_prompt] = request.prompts
    assert isinstance(chat_prompt, Chat)
    assert [tool.name for tool in chat_prompt.tools] == ["look"]
    [warning] = request.warnings
    assert kind in warning
    assert "tools[0]" in warning


@pytest.mark.parametrize(
    ("value", "mode", "allowed_tools", "parallel"),
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
def test_tool_choice_modes(
    value: Any, mode: str, allowed_tools: tuple[str, ...] | None, parallel: bool
) -> None:
    chat_prompt = decode_chat(tools=[TOOL, SEARCH], tool_choice=value)
    assert (
        chat_prompt.tool_choice,
        chat_prompt.allowed_tools,
        chat_prompt.parallel_tool_calls,
    ) == (
        mode,
        allowed_tools,
        parallel,
    )


def test_a_choice_among_ignored_tools_has_no_effect() -> None:
    request = decode(tools=[SEARCH], tool_choice={"type": "any"})
    assert len(request.warnings) == 2


# Reasoning and other fields


@pytest.mark.parametrize(
    ("fields", "effort", "budget", "included", "encrypted"),
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
def test_thinking_fields_are_optional(
    fields: Any, effort: str | None, budget: int | None, included: bool, encrypted: bool
) -> None:
    request = decode(**fields)
    [chat_prompt] = request.prompts
    assert isinstance(chat_prompt, Chat)
    assert (chat_prompt.reasoning_effort, chat_prompt.thinking_budget) == (effort, budget)
    assert (request.include_reasoning, request.pack_reasoning) == (included, encrypted)
    assert "thinking_budget" in chat_prompt.optional_fields
    assert chat_prompt.get_client_field_name("thinking_budget") == "thinking.budget_tokens"
    assert request.warnings == ()


def test_an_unknown_thinking_type_is_warned_about() -> None:
    request = decode(thinking={"type": "backwards"})
    assert len(request.warnings) == 1
    assert request.include_reasoning


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_output_format_becomes_a_constraint(field: str) -> None:
    output_format: Any = FORMAT if field == "output_config" else FORMAT["format"]
    fields: Any = {field: output_format}
    request = decode(tools=[TOOL], **fields)
    constraint = request.constraint
    assert constraint is not None
    at = "output_config.format" if field == "output_config" else field
    assert (constraint.kind, constraint.value, constraint.param) == ("json", SCHEMA, f"{at}.schema")
    assert constraint.allows_tool_calls
    assert decode_chat(**fields).response_format["json_schema"]["schema"] == SCHEMA


def test_sampling_fields_are_decoded() -> None:
    request = decode(
        temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["END", ""], max_tokens=99, stream=True
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (
        0.5,
        0.9,
        7,
        99,
    )
    assert request.stop == ("END",)
    assert request.stream
    assert decode(top_k=-1).sampling.top_k == 0
    assert decode().sampling.temperature is None


def test_fields_that_agents_always_send_are_accepted() -> None:
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
    assert decode(strict=True, **fields).warnings == ()
    assert decode(not_known_yet=1).warnings == ()
    request = decode(container="c", mcp_servers=[{"type": "url"}])
    assert len(request.warnings) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": 5}, "model"),
        ({"messages": ...}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "text"}]}]},
            "messages[1].content[0].text",
        ),
        (
            {"messages": [user_message({"type": "tool_result"})]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [user_message(tool_result([{"type": "text"}]))]},
            "messages[0].content[0].content[0].text",
        ),
        ({"messages": [user_message(tool_result({"a": 1}))]}, "messages[0].content[0].content"),
        (
            {"messages": [assistant_message({"type": "tool_use", "name": "x"})]},
            "messages[0].content[0].id",
        ),
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
def test_errors_name_the_path_of_the_field(fields: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.param == param


def test_strict_servers_reject_unknown_fields() -> None:
    with pytest.raises(BadRequest) as caught:
        decode(strict=True, not_known_yet=1)
    assert caught.value.param == "not_known_yet"


def test_counting_tokens_needs_no_max_tokens() -> None:
    body = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL]}
    request = decode_count_request(json.dumps(body).encode(), True, OWN_SIGNER)
    assert request.model == "m"
    assert request.prompts == (decode_chat(system="s", tools=[TOOL]),)


# Arbitrary bodies

TEXTS = st.sampled_from(
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
    st.none() | st.booleans() | st.integers(-3, 3) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
BLOCKS = st.fixed_dictionaries({"type": TEXTS}, optional={"text": TEXTS, "content": VALUES})
BLOCKS |= st.fixed_dictionaries(
    {"type": TEXTS, "id": TEXTS, "name": TEXTS, "tool_use_id": TEXTS},
    optional={"input": VALUES, "content": VALUES, "thinking": TEXTS, "source": VALUES},
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"])},
    optional={"content": st.lists(BLOCKS, max_size=3) | TEXTS | VALUES},
)
BODIES = st.fixed_dictionaries(
    {"model": st.just("m"), "max_tokens": st.just(5), "messages": st.lists(MESSAGES, max_size=3)},
    optional={
        name: VALUES | st.lists(BLOCKS, max_size=2)
        for name in ("system", "tools", "tool_choice", "thinking", "output_config", "stream")
    },
)


@given(BODIES | VALUES)
def test_any_json_is_a_request_or_a_bad_request(body: Any) -> None:
    with suppress(BadRequest):
        assert isinstance(decode_request(json.dumps(body).encode(), False, OWN_SIGNER), Request)


@pytest.mark.parametrize("depth", [50, 400, 900, 5000])
def test_any_depth_is_a_request_or_a_bad_request(depth: int) -> None:
    searches = '[{"type":"search_result","content":' * depth + '"x"' + "}]" * depth
    objects = '{"a":' * depth + "1" + "}" * depth
    for block in (
        '{"type":"tool_use","id":"a","name":"b","input":' + objects + "}",
        '{"type":"tool_result","tool_use_id":"a","content":' + searches + "}",
        '{"type":"document","source":{"type":"content","content":' + searches + "}}",
    ):
        for role in ("user", "assistant"):
            with suppress(BadRequest):
                assert decode_request(make_body(role, block), False, OWN_SIGNER).prompts


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_request(body, False, OWN_SIGNER)
