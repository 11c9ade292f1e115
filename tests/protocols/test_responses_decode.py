"""Decoding Responses requests: fields, stored items, tools and the model's messages."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from dragoman.errors import BadRequest, Unsupported
from dragoman.events import Delta, Usage
from dragoman.prompt.conversation import flatten_content
from dragoman.protocols import responses
from dragoman.protocols.responses import DecodedRequest, ToolOrigin
from dragoman.protocols.responses.types import Item
from dragoman.types import (
    Adapter,
    Chat,
    Constraint,
    Message,
    Request,
    Tool,
    ToolCall,
    make_text_content,
)
from tests.support.text_only_model import check_media


class PlainPacker:
    """Packs without encryption."""

    def pack(self, purpose: str, data: bytes) -> str:
        return f"{purpose}:{data.decode()}"

    def unpack(self, purpose: str, text: str) -> bytes | None:
        head, _, rest = text.partition(":")
        return rest.encode() if head == purpose else None


def make_echo(decoded: responses.DecodedRequest) -> dict[str, Any]:
    """Return the echoed fields for a model without sampling defaults."""
    return responses.make_echoed_fields(decoded, "m", make_request(decoded).sampling)


def decode(**fields: Any) -> DecodedRequest:
    return responses.decode_request(json.dumps({"model": "m", "input": "hi"} | fields).encode())


def make_request(
    decoded: DecodedRequest | None = None,
    history: tuple[Item, ...] = (),
    remote: tuple[Tool, ...] = (),
    **fields: Any,
) -> Request:
    decoded = decode(**fields) if decoded is None else decoded
    return responses.to_request(decoded, history, owner="me", packer=PlainPacker(), remote=remote)


def make_chat(**fields: Any) -> Chat:
    chat = make_request(**fields).prompts[0]
    assert isinstance(chat, Chat)
    return chat


def make_messages(*items: Item, **fields: Any) -> list[Message]:
    return list(make_chat(input=list(items), **fields).messages)


def get_error(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        make_request(**fields)
    assert caught.value.status == 400
    for internal in ("Struct", "$", "msgspec"):
        assert internal not in caught.value.message
    return caught.value


def user_message(text: str) -> Message:
    return Message(role="user", content=make_text_content(text))


def assistant_message(
    text: str | None = None, *calls: ToolCall, reasoning: str | None = None
) -> Message:
    return Message(
        role="assistant", content=make_text_content(text), tool_calls=calls, reasoning=reasoning
    )


def tool_message(call_id: str | None, text: str) -> Message:
    return Message(role="tool", tool_call_id=call_id, content=make_text_content(text))


def system_message(text: str) -> Message:
    return Message(role="system", content=make_text_content(text))


def message_item(role: str, content: Any, **fields: Any) -> Item:
    return {"type": "message", "role": role, "content": content} | fields


def text_part(text: str, kind: str = "input_text") -> Item:
    return {"type": kind, "text": text}


def call_item(number: int, name: str = "f", arguments: str = "{}", **fields: Any) -> Item:
    return {
        "type": "function_call",
        "call_id": f"c{number}",
        "name": name,
        "arguments": arguments,
    } | fields


def output_item(number: int | None, text: Any, kind: str = "function") -> Item:
    name = None if number is None else f"c{number}"
    kind = "function_call_output" if kind == "function" else "custom_tool_call_output"
    return {"type": kind, "call_id": name, "output": text}


def reasoning_item(text: str) -> Item:
    return {"type": "reasoning", "summary": [], "content": [text_part(text, "reasoning_text")]}


def make_call(number: int, name: str = "f", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


# Items become messages

REMOTE_CALL: Item = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "docs",
    "name": "look.up",
    "arguments": '{"q":1}',
}
REMOTE_TOOL_CALL = ToolCall(id="mcp_1", name="docs__look_up", arguments='{"q":1}')
APPROVAL_REQUEST = REMOTE_CALL | {"type": "mcp_approval_request", "id": "mcpr_1"}
APPROVAL_TOOL_CALL = ToolCall(id="mcpr_1", name="docs__look_up", arguments='{"q":1}')
MCP_ERROR = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}
PACKED_SUMMARY = 'compaction:{"summary":"we met"}'
SUMMARY = "This is a summary of the conversation so far:\n\nwe met"


def approval_item(approve: bool, **fields: Any) -> Item:
    head = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}
    return head | {"approve": approve} | fields


CONVERSATIONS: list[tuple[list[Item], list[Message]]] = [
    ([{"role": "user", "content": "a"}], [user_message("a")]),
    (
        [message_item("user", [text_part("a"), text_part("b"), text_part("c", "text")])],
        [user_message("abc")],
    ),
    ([message_item("assistant", [text_part("a", "output_text")])], [assistant_message("a")]),
    (
        [message_item("assistant", [{"type": "refusal", "refusal": "no"}])],
        [assistant_message("no")],
    ),
    (
        [message_item("assistant", "a", phase="commentary"), message_item("assistant", "b")],
        [assistant_message("a\n\nb")],
    ),
    ([message_item("assistant", None)], [assistant_message("")]),
    ([message_item("user", [])], [user_message("")]),
    # a turn is one message
    (
        [
            reasoning_item("t"),
            message_item("assistant", "a"),
            call_item(1),
            call_item(2, "g"),
            output_item(1, "x"),
        ],
        [
            assistant_message("a", make_call(1), make_call(2, "g"), reasoning="t"),
            tool_message("c1", "x"),
        ],
    ),
    (
        [
            call_item(1),
            output_item(1, "x"),
            reasoning_item("t"),
            call_item(2),
            output_item(2, "y"),
            message_item("assistant", "z"),
        ],
        [
            assistant_message(None, make_call(1)),
            tool_message("c1", "x"),
            assistant_message(None, make_call(2), reasoning="t"),
            tool_message("c2", "y"),
            assistant_message("z"),
        ],
    ),
    (
        [reasoning_item("t"), reasoning_item("u"), message_item("user", "a")],
        [assistant_message(reasoning="t\n\nu"), user_message("a")],
    ),
    # calls without results, results without calls
    (
        [call_item(1), message_item("user", "a")],
        [assistant_message(None, make_call(1)), user_message("a")],
    ),
    (
        [output_item(9, "x"), output_item(None, "y")],
        [tool_message("c9", "x"), tool_message(None, "y")],
    ),
    ([output_item(1, [text_part("x"), text_part("y")])], [tool_message("c1", "xy")]),
    (
        [
            {"type": "custom_tool_call", "call_id": "c1", "name": "g", "input": 'é"\n'},
            output_item(1, "x", "custom"),
        ],
        [
            assistant_message(None, make_call(1, "g", '{"input": "é\\"\\n"}')),
            tool_message("c1", "x"),
        ],
    ),
    # reasoning
    (
        [{"type": "reasoning", "encrypted_content": "reasoning:t"}],
        [assistant_message(reasoning="t")],
    ),
    (
        [
            {
                "type": "reasoning",
                "encrypted_content": "x",
                "summary": [text_part("s", "summary_text")],
            }
        ],
        [assistant_message(reasoning="s")],
    ),
    # remote tools
    (
        [REMOTE_CALL | {"output": "x"}],
        [assistant_message(None, REMOTE_TOOL_CALL), tool_message("mcp_1", "x")],
    ),
    (
        [REMOTE_CALL | {"output": "x"}, call_item(2)],
        [
            assistant_message(None, REMOTE_TOOL_CALL),
            tool_message("mcp_1", "x"),
            assistant_message(None, make_call(2)),
        ],
    ),
    (
        [REMOTE_CALL | {"error": MCP_ERROR}],
        [assistant_message(None, REMOTE_TOOL_CALL), tool_message("mcp_1", "Error: no")],
    ),
    (
        [REMOTE_CALL | {"error": "no"}],
        [assistant_message(None, REMOTE_TOOL_CALL), tool_message("mcp_1", "Error: no")],
    ),
    (
        [REMOTE_CALL | {"error": {"a": 1}}],
        [assistant_message(None, REMOTE_TOOL_CALL), tool_message("mcp_1", 'Error: {"a": 1}')],
    ),
    (
        [REMOTE_CALL, message_item("user", "a")],
        [assistant_message(None, REMOTE_TOOL_CALL), user_message("a")],
    ),
    ([APPROVAL_REQUEST, message_item("user", "a")], [user_message("a")]),
    ([APPROVAL_REQUEST, approval_item(True), message_item("user", "a")], [user_message("a")]),
    ([approval_item(False), message_item("user", "a")], [user_message("a")]),
    (
        [reasoning_item("t"), APPROVAL_REQUEST, approval_item(False, reason="Not now.")],
        [
            assistant_message(None, APPROVAL_TOOL_CALL, reasoning="t"),
            tool_message(
                "mcpr_1",
                "The user did not approve this call. It was not made. Reason: Not now.",
            ),
        ],
    ),
    (
        [
            {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []},
            message_item("user", "a"),
        ],
        [user_message("a")],
    ),
    # compactions
    (
        [{"type": "compaction", "encrypted_content": 'compaction:{"summary":"we met"}'}],
        [user_message(SUMMARY)],
    ),
    # tools of other servers that clients run
    (
        [
            {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
        ],
        [
            assistant_message(None, make_call(1, "local_shell", '{"command": ["ls"]}')),
            tool_message("c1", "a.txt"),
        ],
    ),
    (
        [
            {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a"}]},
        ],
        [
            assistant_message(None, make_call(1, "shell", '{"commands": ["ls"]}')),
            tool_message("c1", '[{"stdout": "a"}]'),
        ],
    ),
    (
        [
            {"type": "apply_patch_call", "call_id": "c1", "operation": {"path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "c1", "status": "failed"},
        ],
        [
            assistant_message(None, make_call(1, "apply_patch", '{"path": "a"}')),
            tool_message("c1", "failed"),
        ],
    ),
    # the first system messages become one, later ones stay where they are
    (
        [
            message_item("developer", "D"),
            message_item("system", [text_part("S")]),
            message_item("user", "a"),
        ],
        [system_message("D\n\nS"), user_message("a")],
    ),
    (
        [message_item("user", "a"), message_item("developer", "D"), message_item("user", "b")],
        [
            user_message("a"),
            Message(role="developer", content=make_text_content("D")),
            user_message("b"),
        ],
    ),
]


@pytest.mark.parametrize(("items", "messages"), CONVERSATIONS)
def test_items_become_messages(items: list[Item], messages: list[Message]) -> None:
    assert make_messages(*items) == messages


@pytest.mark.parametrize(("items", "messages"), CONVERSATIONS)
def test_items_of_the_history_become_the_same_messages(
    items: list[Item], messages: list[Message]
) -> None:
    earlier = tuple(decode(input=items).items)
    chat = make_request(decode(input="now"), earlier).prompts[0]
    assert isinstance(chat, Chat)
    assert list(chat.messages) == [*messages, user_message("now")]


def test_instructions_come_first() -> None:
    decoded = make_messages(
        message_item("developer", "D"), message_item("user", "a"), instructions="I"
    )
    assert decoded == [system_message("I\n\nD"), user_message("a")]
    assert make_messages(
        message_item("developer", ""), message_item("user", "a"), instructions=""
    ) == [user_message("a")]
    earlier = tuple(decode(input=[message_item("system", "old"), message_item("user", "a")]).items)
    chat = make_request(
        decode(input=[message_item("system", "new")], instructions="I"), earlier
    ).prompts[0]
    assert isinstance(chat, Chat)
    assert list(chat.messages) == [
        system_message("I\n\nold"),
        user_message("a"),
        system_message("new"),
    ]


IGNORED_ITEMS = [
    ({"type": "reasoning", "encrypted_content": "elsewhere:t"}, "encrypted_content"),
    ({"type": "compaction", "encrypted_content": "gAAAA"}, "encrypted_content"),
    ({"type": "compaction", "encrypted_content": "compaction:nonsense"}, "encrypted_content"),
    ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, "`web_search_call`"),
    ({"type": "image_generation_call", "result": "x"}, "`image_generation_call`"),
    ({"type": "unknown_type", "deep": {"er": [1]}}, "`unknown_type`"),
]


@pytest.mark.parametrize(("item", "word"), IGNORED_ITEMS)
def test_items_of_other_servers_are_ignored_with_a_warning(item: Item, word: str) -> None:
    request = make_request(input=[item, message_item("user", "a"), item])
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert list(chat.messages) == [user_message("a")]
    (warning,) = request.warnings
    assert word in warning


BAD_ITEMS: list[tuple[Any, str]] = [
    (5, "input"),
    ([5], "input[0]"),
    ([{}], "input[0]"),
    ([{"content": "a"}], "input[0].type"),
    ([{"type": 5}], "input[0].type"),
    ([{"type": "x" * 65}], "input[0].type"),
    ([message_item("user", "a"), message_item("tool", "a")], "input[1].role"),
    ([{"type": "message", "content": "a"}], "input[0].role"),
    ([message_item("user", None)], "input[0].content"),
    ([message_item("user", 5)], "input[0].content"),
    ([message_item("user", [{"text": "a"}])], "input[0].content[0].type"),
    ([message_item("user", [text_part("a"), {"type": "input_text"}])], "input[0].content[1].text"),
    ([message_item("user", [text_part("a", "hologram")])], "input[0].content[0].type"),
    ([message_item("user", "a", id=5)], "input[0].id"),
    ([message_item("user", "a", id="x" * 513)], "input[0].id"),
    ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id"),
    ([call_item(1, arguments={})], "input[0].arguments"),  # type: ignore[arg-type]
    ([call_item(1, "")], "input[0].name"),
    ([{"type": "function_call_output", "call_id": "c1"}], "input[0].output"),
    ([output_item(1, 5)], "input[0].output"),
    ([{"type": "reasoning", "summary": [5]}], "input[0].summary[0]"),
    ([{"type": "compaction"}], "input[0].encrypted_content"),
    ([{"type": "additional_tools"}], "input[0].tools"),
    ([{"type": "additional_tools", "tools": [{}]}], "input[0].tools[0].type"),
    ([approval_item(False) | {"approve": "no"}], "input[0].approve"),
    ([{"type": "item_reference"}], "input[0].id"),
    ([{"type": "item_reference", "id": "msg_1"}], "input[0]"),
    ([{"id": "msg_1"}], "input[0]"),
    (None, "input"),
    ([], "input"),
    ([{"type": "mcp_list_tools"}], "input"),
]


@pytest.mark.parametrize(("items", "param"), BAD_ITEMS)
def test_an_invalid_item_is_named(items: Any, param: str) -> None:
    assert get_error(input=items).param in (param, f"{param}.id")


@pytest.mark.parametrize("kind", ["input_image", "input_audio"])
def test_media_is_rejected_by_name(kind: str) -> None:
    media = {"type": kind, "image_url": "data:", "file_id": "f", "input_audio": {}}
    request = make_request(
        decode(input=[message_item("user", "a"), message_item("user", [text_part("a"), media])])
    )
    with pytest.raises(Unsupported) as caught:
        check_media(request)
    error = caught.value
    assert (error.param, f"`{kind}`" in error.message) == ("input[1].content[1]", True)


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_media_in_a_tool_result_becomes_a_sentence_with_a_warning(kind: str) -> None:
    """An agent that once received an image sends it with every later turn."""
    media = {"type": kind, "image_url": "data:", "file_id": "f"}
    request = make_request(
        decode(
            input=[
                message_item("user", "a"),
                call_item(1),
                output_item(1, [text_part("It is "), media]),
            ]
        )
    )
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    text = flatten_content(chat.messages[-1].content)
    assert text == f"It is [{kind}: not shown, only text is supported]"
    assert [warning for warning in check_media(request) if f"`{kind}`" in warning]


IGNORED_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"moderation": {"policy": {"output": {"mode": "block"}}}}, "moderation"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"context": "current_turn"}}, "reasoning.context"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
]


@pytest.mark.parametrize(("fields", "name"), IGNORED_FIELDS)
def test_fields_without_effect_are_warned_about(fields: dict[str, Any], name: str) -> None:
    assert [
        warning for warning in make_request(decode(**fields)).warnings if f"`{name}`" in warning
    ]


@pytest.mark.parametrize("nested_tools", [None, 5, "abc", [5], [{"type": "namespace"}]])
def test_a_namespace_in_a_namespace_is_ignored(nested_tools: Any) -> None:
    inner = {"type": "namespace", "name": "m"} | (
        {} if nested_tools is None else {"tools": nested_tools}
    )
    decoded = decode(
        tools=[{"type": "namespace", "name": "n", "tools": [inner, function_tool("f")]}]
    )
    (echoed_namespace,) = make_echo(decoded)["tools"]
    assert [tool["name"] for tool in echoed_namespace["tools"]] == ["m", "f"]
    assert "Tools of type `namespace` are ignored" in " ".join(make_request(decoded).warnings)


def test_equal_flat_names_are_made_unique_quickly() -> None:
    namespaces = [
        {
            "type": "namespace",
            "name": f"a{'_' * (at % 400)}",
            "tools": [function_tool(f"f{at // 400}")],
        }
        for at in range(1000)
    ]
    chat = make_request(decode(tools=namespaces)).prompts[0]
    assert isinstance(chat, Chat)
    assert len({tool.name for tool in chat.tools}) == 1000


def test_a_prompt_can_be_prewarmed() -> None:
    decoded = decode(prompt_cache_options={"prewarm": True})
    assert not decoded.wants_answer
    assert make_request(decoded).prefill_only
    assert decode(prompt_cache_options={"mode": "implicit"}).wants_answer


def test_an_empty_input_needs_a_history() -> None:
    earlier = tuple(decode().items)
    for fields in ({"previous_response_id": "resp_1"}, {"conversation": {"id": "conv_1"}}):
        for empty_input in ({"input": None}, {"input": list[Item]()}):
            decoded = decode(**empty_input | fields)
            assert decoded.items == []
            assert make_request(decoded, earlier).prompts == make_request().prompts
    assert decode(conversation="conv_1", input=[]).conversation_id == "conv_1"
    assert decode(conversation={"id": "conv_1"}).conversation_id == "conv_1"


# Stored items


STORED_ITEMS = [
    ("hi", "msg_", {"role": "user", "content": [text_part("hi")], "status": "completed"}),
    ([message_item("developer", "a")], "msg_", {"content": [text_part("a")]}),
    (
        [message_item("assistant", "a", phase="final_answer")],
        "msg_",
        {"content": [text_part("a", "output_text") | {"annotations": []}], "phase": "final_answer"},
    ),
    (
        [message_item("assistant", [text_part("a"), {"type": "refusal", "refusal": "r"}])],
        "msg_",
        {
            "content": [
                text_part("a", "output_text") | {"annotations": []},
                {"type": "refusal", "refusal": "r"},
            ]
        },
    ),
    ([call_item(1, status="incomplete")], "fc_", {"call_id": "c1", "status": "incomplete"}),
    ([output_item(1, "x")], "fco_", {"output": "x", "status": "completed"}),
    ([output_item(1, [text_part("x")], "custom")], "ctco_", {"output": [text_part("x")]}),
    ([reasoning_item("t")], "rs_", {"summary": []}),
    (
        [{"type": "custom_tool_call", "call_id": "c1", "name": "g", "input": "x"}],
        "ctc_",
        {"input": "x"},
    ),
    ([{"type": "unknown_type", "a": [1]}, message_item("user", "a")], "item_", {"a": [1]}),
]


@pytest.mark.parametrize(("items", "prefix", "fields"), STORED_ITEMS)
def test_items_are_normalized(items: Any, prefix: str, fields: Item) -> None:
    first, *_ = decode(input=items).items
    assert first["id"].startswith(prefix)
    assert fields.items() <= first.items()
    repeated, *_ = decode(input=[first, message_item("user", "a")]).items
    assert repeated == first


ITEM_ADAPTER: TypeAdapter[Any] = TypeAdapter(ResponseItem)


@pytest.mark.parametrize("items", [items for items, _ in CONVERSATIONS])
def test_normalized_items_are_valid_for_clients(items: list[Item]) -> None:
    known = ("message", "function_call", "function_call_output", "reasoning", "mcp_call")
    for item in decode(input=items).items:
        if item["type"] in known:
            complete = item | ({"summary": []} if item["type"] == "reasoning" else {})
            error = {"error": None} if item["type"] == "mcp_call" else {}
            assert ITEM_ADAPTER.validate_python(complete | error).id == item["id"]


def test_item_ids_are_unique() -> None:
    items = [message_item("user", "a", id="msg_1"), message_item("user", "b", id="msg_1")]
    stored = decode(
        input=[*items, message_item("user", "c"), message_item("user", "d", id="")]
    ).items
    assert stored[0]["id"] == "msg_1"
    assert len({item["id"] for item in stored}) == 4


def test_references_are_resolved_by_the_caller() -> None:
    items = [{"type": "item_reference", "id": "msg_1"}, message_item("user", "a"), {"id": "rs_2"}]
    decoded = decode(input=items)
    assert responses.get_references(decoded) == ["msg_1", "rs_2"]
    with pytest.raises(BadRequest) as caught:
        make_request(decoded)
    assert (caught.value.code, caught.value.param) == ("item_not_found", "input[0]")


def test_a_compaction_becomes_its_summary() -> None:
    item = responses.make_compaction_item("wé met", PlainPacker())
    assert item["id"].startswith("cmp_")
    (first, _) = make_messages(item, message_item("user", "a"))
    assert "wé met" in flatten_content(first.content)


# Tools

NAMESPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "description": "Find one.", "parameters": {}},
        {"type": "custom", "name": "query"},
        {"type": "web_search"},
    ],
}


def function_tool(name: str, **fields: Any) -> Item:
    return {"type": "function", "name": name} | fields


def custom_tool(name: str, **tool_format: Any) -> Item:
    return {"type": "custom", "name": name} | ({"format": tool_format} if tool_format else {})


def test_a_function_is_decoded() -> None:
    schema = {"type": "object", "properties": {"é": True}}
    tool_fields = function_tool("f", description="d", parameters=schema, strict=True)
    (tool, bare) = make_chat(
        tools=[tool_fields, function_tool("g", parameters=None, strict=None)]
    ).tools
    assert tool == Tool(
        name="f", description="d", parameters=schema, strict=True, param="tools[0].parameters"
    )
    assert (bare.parameters, bare.strict) == (None, None)


DEFINITION = "tools[0].format.definition"
GRAMMARS: list[tuple[Item, Constraint | None]] = [
    ({}, None),
    ({"type": "text"}, None),
    (
        {"type": "grammar", "syntax": "lark", "definition": "start: /a/"},
        Constraint(kind="grammar", value="start: /a/", param=DEFINITION, language="lark"),
    ),
    (
        {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"},
        Constraint(kind="regex", value="[0-9]+", param=DEFINITION),
    ),
]


@pytest.mark.parametrize(("tool_format", "constraint"), GRAMMARS)
def test_a_custom_tool_is_a_function_with_one_string(
    tool_format: Item, constraint: Constraint | None
) -> None:
    (tool,) = make_chat(tools=[custom_tool("g", **tool_format)]).tools
    assert tool.takes_free_text
    assert tool.input == constraint
    assert list(tool.parameters["properties"]) == tool.parameters["required"] == ["input"]
    assert tool.parameters["properties"]["input"]["type"] == "string"
    assert tool.parameters["additionalProperties"] is False
    assert constraint is None or constraint.value in json.dumps(tool.parameters)


def test_a_namespace_is_flat_for_the_model_only() -> None:
    decoded = decode(tools=[NAMESPACE, function_tool("find")])
    chat = make_request(decoded).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["crm__find", "crm__query", "find"]
    assert chat.tools[0].description == "crm: Customers.\n\nFind one."
    assert responses.get_tool_origins(decoded) == {
        "crm__find": ToolOrigin(kind="function", name="find", namespace="crm"),
        "crm__query": ToolOrigin(kind="custom", name="query", namespace="crm"),
        "find": ToolOrigin(kind="function", name="find"),
    }


def test_earlier_calls_of_a_namespace_have_flat_names() -> None:
    items = [
        call_item(1, "find", namespace="crm"),
        call_item(2, "query"),
        call_item(3, "x", namespace="gone"),
    ]
    (message,) = make_messages(*items, tools=[NAMESPACE])
    assert [call.name for call in message.tool_calls] == ["crm__find", "crm__query", "gone__x"]
    (message,) = make_messages(call_item(1, "find"), tools=[NAMESPACE, function_tool("find")])
    assert message.tool_calls[0].name == "find"


def test_flat_names_are_unique() -> None:
    tools = [
        function_tool("crm__find"),
        NAMESPACE,
        NAMESPACE | {"name": "crm_"},
        NAMESPACE | {"name": "crm__"},
    ]
    decoded = decode(tools=tools)
    origins = responses.get_tool_origins(decoded)
    chat = make_request(decoded).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == list(origins)
    assert (
        len({(origin.namespace, origin.name) for origin in origins.values()}) == len(origins) == 7
    )


def test_tools_that_cannot_be_run_are_left_out() -> None:
    kinds = ["web_search", "file_search", "computer_use", "code_interpreter", "unknown_type"]
    tools = [{"type": kind, "option": {"a": 1}} for kind in (*kinds, "web_search")]
    request = make_request(tools=[*tools, function_tool("f"), NAMESPACE])
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["f", "crm__find", "crm__query"]
    assert len(request.warnings) == len(kinds)
    assert all(
        f"`{kind}`" in warning for kind, warning in zip(kinds, request.warnings, strict=True)
    )


def test_items_add_tools_and_later_ones_replace_earlier_ones() -> None:
    def make_tools_item(*tools: Item) -> Item:
        return {"type": "additional_tools", "role": "developer", "tools": list(tools)}

    earlier = tuple(
        decode(
            input=[make_tools_item(function_tool("f", description="1"), function_tool("h"))]
        ).items
    )
    decoded = decode(
        input=[
            make_tools_item(function_tool("f", description="2"), NAMESPACE),
            message_item("user", "a"),
        ],
        tools=[function_tool("f"), function_tool("g")],
    )
    chat = make_request(decoded, earlier).prompts[0]
    assert isinstance(chat, Chat)
    names = ["f", "g", "h", "crm__find", "crm__query"]
    assert [tool.name for tool in chat.tools] == names
    assert chat.tools[0].description == "2"
    assert chat.tools[0].param == "input[0].tools[0].parameters"
    assert list(responses.get_tool_origins(decoded, earlier)) == names
    assert list(chat.messages) == [user_message("a")]


BAD_TOOLS: list[tuple[Any, str]] = [
    ("f", "tools"),
    ([5], "tools[0]"),
    ([{}], "tools[0].type"),
    ([{"type": 5}], "tools[0].type"),
    ([{"type": "function"}], "tools[0].name"),
    ([function_tool("")], "tools[0].name"),
    ([function_tool("f", parameters="{}")], "tools[0].parameters"),
    ([function_tool("f", strict="yes")], "tools[0].strict"),
    ([function_tool("f"), function_tool("f")], "tools[1].name"),
    ([function_tool("f"), custom_tool("f")], "tools[1].name"),
    ([NAMESPACE, NAMESPACE], "tools[1].tools[0].name"),
    ([NAMESPACE | {"tools": [function_tool("f"), custom_tool("f")]}], "tools[0].tools[1].name"),
    ([NAMESPACE | {"tools": [{}]}], "tools[0].tools[0].type"),
    ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
    ([custom_tool("g", type="yaml")], "tools[0].format.type"),
    ([custom_tool("g", type="grammar", syntax="lark")], "tools[0].format.definition"),
    ([custom_tool("g", type="grammar", syntax="peg", definition="x")], "tools[0].format.syntax"),
    (
        [custom_tool("g", type="grammar", syntax="lark", definition="")],
        "tools[0].format.definition",
    ),
]


@pytest.mark.parametrize(("tools", "param"), BAD_TOOLS)
def test_an_invalid_tool_is_named(tools: Any, param: str) -> None:
    assert get_error(tools=tools).param == param


# Remote servers


def mcp_tool(label: str = "docs", **fields: Any) -> Item:
    return {"type": "mcp", "server_label": label, "server_url": "https://x.example/mcp"} | fields


SECRETS: dict[str, Any] = {"authorization": "tok-secret", "headers": {"x-key": "key-secret"}}


def test_mcp_servers_are_returned_to_the_caller() -> None:
    tools_item = {"type": "additional_tools", "tools": [mcp_tool("more", **SECRETS)]}
    decoded = decode(
        tools=[mcp_tool(**SECRETS), function_tool("f")],
        input=[tools_item, message_item("user", "a")],
    )
    first, second = responses.get_mcp_servers(decoded)
    assert (first.server_label, first.server_url) == ("docs", "https://x.example/mcp")
    assert first.authorization == second.authorization == "tok-secret"
    assert first.headers == {"x-key": "key-secret"}
    chat = make_request(decoded).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["f"]


def test_secrets_are_neither_stored_nor_shown() -> None:
    url = "https://me:url-secret@x.example:81/url-secret?key=url-secret"
    tools = [mcp_tool(**SECRETS, server_url=url), {"type": "code_interpreter", "x": [SECRETS]}]
    tools_item = {
        "type": "additional_tools",
        "tools": [mcp_tool("more", **SECRETS, server_url=url)],
    }
    decoded = decode(tools=tools, input=[tools_item, message_item("user", "a")])
    visible = json.dumps(make_echo(decoded)) + json.dumps(decoded.items)
    visible += repr(responses.get_mcp_servers(decoded))
    assert "secret" not in visible
    assert "https://x.example:81/<redacted>" in visible
    schema = {"type": "object", "properties": {"headers": {"type": "string"}}}
    (tool,) = make_echo(decode(tools=[function_tool("f", parameters=schema)]))["tools"]
    assert tool["parameters"] == schema


ALLOWED_TOOLS: list[tuple[Any, list[str]]] = [
    (None, ["r", "w"]),
    ([], []),
    (["w", "x"], ["w"]),
    ({"tool_names": ["r"]}, ["r"]),
    ({"read_only": True}, ["r"]),
    ({"read_only": True, "tool_names": ["w"]}, []),
]


@pytest.mark.parametrize(("value", "names"), ALLOWED_TOOLS)
def test_only_allowed_tools_are_visible(value: Any, names: list[str]) -> None:
    (mcp_server,) = responses.get_mcp_servers(decode(tools=[mcp_tool(allowed_tools=value)]))
    tools = {"r": True, "w": False}
    assert [name for name, reads in tools.items() if mcp_server.allows(name, reads)] == names


APPROVALS: list[tuple[Any, list[str]]] = [
    (None, ["r", "w"]),
    ("always", ["r", "w"]),
    ("never", []),
    ({}, ["r", "w"]),
    ({"never": {"tool_names": ["r"]}}, ["w"]),
    ({"never": {"read_only": True}}, ["w"]),
    ({"always": {"tool_names": ["w"]}}, ["r", "w"]),
    ({"always": {"tool_names": ["w"]}, "never": {"tool_names": ["r", "w"]}}, ["w"]),
]


@pytest.mark.parametrize(("value", "names"), APPROVALS)
def test_calls_need_approval_unless_the_request_says_otherwise(
    value: Any, names: list[str]
) -> None:
    (mcp_server,) = responses.get_mcp_servers(decode(tools=[mcp_tool(require_approval=value)]))
    tools = {"r": True, "w": False}
    assert [
        name for name, reads in tools.items() if mcp_server.needs_approval(name, reads)
    ] == names


BAD_SERVERS = [
    ({"server_label": None}, "tools[0].server_label"),
    ({"server_label": "a b"}, "tools[0].server_label"),
    ({"server_label": "x" * 65}, "tools[0].server_label"),
    ({"server_url": "file:///etc/passwd"}, "tools[0].server_url"),
    ({"server_url": "https://a\nb"}, "tools[0].server_url"),
    ({"authorization": "a\r\nb"}, "tools[0].authorization"),
    ({"headers": {"a b": "c"}}, "tools[0].headers"),
    ({"headers": {"a": "b\r\nc: d"}}, "tools[0].headers"),
    ({"headers": {"a": 5}}, "tools[0].headers"),
    ({"require_approval": "maybe"}, "tools[0].require_approval"),
    ({"allowed_tools": "all"}, "tools[0].allowed_tools"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_SERVERS)
def test_an_invalid_server_is_named(fields: Item, param: str) -> None:
    assert get_error(tools=[mcp_tool() | fields]).param == param
    assert get_error(tools=[mcp_tool(), mcp_tool()]).param == "tools[1].server_label"


REMOTE_TOOLS = tuple(Tool(name=name) for name in ("docs__read", "docs__look_up", "docs__x__read"))


def test_remote_tools_are_added_to_the_declared_ones() -> None:
    decoded = decode(tools=[function_tool("f"), mcp_tool()])
    chat = make_request(decoded, remote=REMOTE_TOOLS).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["f", *(tool.name for tool in REMOTE_TOOLS)]
    assert responses.make_remote_name("docs", "look.up") == "docs__look_up"
    with pytest.raises(BadRequest):
        make_request(decode(tools=[function_tool("docs__read"), mcp_tool()]), remote=REMOTE_TOOLS)


# Tool choice

TOOLS = [
    function_tool("f"),
    custom_tool("g"),
    NAMESPACE,
    mcp_tool(),
    mcp_tool("docs__x"),
    {"type": "web_search"},
]


def allowed_tools(*tools: Item, mode: str = "auto") -> Item:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


F, G = {"type": "function", "name": "f"}, {"type": "custom", "name": "g"}
FIND = {"type": "function", "name": "find"}
DOCS = {"type": "mcp", "server_label": "docs"}
WEB = {"type": "web_search_preview"}
# tool_choice -> mode, allowed tools, whether it forces one tool, whether it is honoured
CHOICES: list[tuple[Any, str, tuple[str, ...] | None, bool, bool]] = [
    (None, "auto", None, False, True),
    ("auto", "auto", None, False, True),
    ("none", "none", None, False, True),
    ("required", "required", None, False, True),
    (F, "required", ("f",), True, True),
    (G, "required", ("g",), True, True),
    (FIND, "required", ("crm__find",), True, True),
    (FIND | {"namespace": "crm"}, "required", ("crm__find",), True, True),
    (DOCS, "required", ("docs__read", "docs__look_up"), False, True),
    (DOCS | {"name": "look.up"}, "required", ("docs__look_up",), True, True),
    (DOCS | {"name": "gone"}, "auto", None, False, False),
    ({"type": "namespace", "name": "crm"}, "required", ("crm__find", "crm__query"), False, True),
    (WEB, "auto", None, False, False),
    ({"type": "apply_patch"}, "auto", None, False, False),
    (allowed_tools(G, F), "auto", ("f", "g"), False, True),
    (allowed_tools(F, F, mode="required"), "required", ("f",), False, True),
    (allowed_tools(FIND, WEB, mode="required"), "required", ("crm__find",), False, True),
    (allowed_tools(F, DOCS), "auto", ("f", "docs__read", "docs__look_up"), False, True),
    (allowed_tools(WEB), "auto", (), False, True),
    (allowed_tools(WEB, mode="required"), "auto", (), False, False),
]


@pytest.mark.parametrize("parallel", [None, True, False])
@pytest.mark.parametrize(
    ("tool_choice", "mode", "names", "forces_named_tool", "is_honoured"), CHOICES
)
def test_a_tool_choice_is_decoded(
    tool_choice: Any,
    mode: str,
    names: tuple[str, ...] | None,
    forces_named_tool: bool,
    is_honoured: bool,
    parallel: bool | None,
) -> None:
    decoded = decode(tools=TOOLS, tool_choice=tool_choice, parallel_tool_calls=parallel)
    request = make_request(decoded, remote=REMOTE_TOOLS)
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert (chat.tool_choice, chat.allowed_tools, chat.forces_named_tool) == (
        mode,
        names,
        forces_named_tool,
    )
    assert chat.parallel_tool_calls == (parallel is not False and not forces_named_tool)
    assert any("`tool_choice`" in warning for warning in request.warnings) == (not is_honoured)
    next_round = responses.continue_request(decoded, [])
    chat = make_request(next_round, remote=REMOTE_TOOLS).prompts[0]
    assert isinstance(chat, Chat)
    assert chat.tool_choice == ("none" if mode == "none" else "auto")
    if isinstance(tool_choice, dict) and tool_choice["type"] == "allowed_tools":
        assert chat.allowed_tools == names


BAD_CHOICES = [
    ("required", None),
    ("required", []),
    ("sometimes", TOOLS),
    (5, TOOLS),
    ({}, TOOLS),
    ({"type": "function"}, TOOLS),
    ({"type": "function", "name": "gone"}, TOOLS),
    (F, None),
    (FIND | {"namespace": "gone"}, TOOLS),
    ({"type": "namespace", "name": "gone"}, TOOLS),
    ({"type": "mcp"}, TOOLS),
    ({"type": "mcp", "server_label": "gone"}, TOOLS),
    (allowed_tools(), TOOLS),
    (allowed_tools(F, mode="never"), TOOLS),
    (allowed_tools({"type": "function", "name": "gone"}), TOOLS),
    (allowed_tools(allowed_tools(F)), TOOLS),
]


@pytest.mark.parametrize(("tool_choice", "tools"), BAD_CHOICES)
def test_an_invalid_choice_is_named(tool_choice: Any, tools: Any) -> None:
    assert (get_error(tool_choice=tool_choice, tools=tools).param or "").startswith("tool_choice")


@pytest.mark.parametrize("tools", [[{"type": "web_search"}], [mcp_tool()]])
def test_requiring_tools_that_cannot_run_is_only_a_warning(tools: list[Item]) -> None:
    request = make_request(tools=tools, tool_choice="required")
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert chat.tool_choice == "auto"
    assert any("`tool_choice`" in warning for warning in request.warnings)


# Other fields

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def json_constraint(value: Any, param: str, strict: bool | None = None) -> Constraint:
    return Constraint(kind="json", value=value, param=param, strict=strict, allows_tool_calls=True)


def text_format(**fields: Any) -> Item:
    return {"type": "json_schema", "name": "n", "schema": SCHEMA} | fields


NAMED_SCHEMA = {"name": "n", "schema": SCHEMA}
FORMATS: list[tuple[Any, Constraint | None, Any]] = [
    (None, None, None),
    ({"type": "text"}, None, None),
    ({"type": "json_object"}, json_constraint(None, "text.format"), {"type": "json_object"}),
    (
        text_format(),
        json_constraint(SCHEMA, "text.format.schema"),
        {"type": "json_schema", "json_schema": NAMED_SCHEMA},
    ),
    (
        text_format(strict=True, description="d"),
        json_constraint(SCHEMA, "text.format.schema", True),
        {"type": "json_schema", "json_schema": NAMED_SCHEMA | {"strict": True, "description": "d"}},
    ),
]


@pytest.mark.parametrize(("text_format", "constraint", "template_format"), FORMATS)
def test_a_text_format_is_decoded(
    text_format: Any, constraint: Constraint | None, template_format: Any
) -> None:
    request = make_request(text={"format": text_format, "verbosity": "low"})
    assert request.constraint == constraint
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert chat.response_format == template_format


def test_an_explicit_constraint_replaces_a_format_that_is_not_strict() -> None:
    request = make_request(regex="[0-9]", text={"format": text_format()})
    assert request.constraint == Constraint(kind="regex", value="[0-9]", param="regex")
    assert "`text.format`" in request.warnings[0]
    assert (
        get_error(regex="[0-9]", text={"format": text_format(strict=True)}).param == "text.format"
    )


SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 7,
    "presence_penalty": 1.0,
}


def test_fields_are_decoded() -> None:
    request = make_request(
        **SAMPLING,
        max_output_tokens=9,
        stop="x",
        stream=True,
        stream_options={"include_obfuscation": True},
        reasoning={"effort": "high"},
        thinking_budget=3,
        chat_template_kwargs={"a": 1},
        lora="l",
        cache_prompt=False,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    sampling = msgspec.to_builtins(request.sampling)
    assert sampling == SAMPLING | {"max_tokens": 9}
    assert (request.stop, request.stream, request.obfuscate) == (("x",), True, True)
    assert (request.lora, request.cache_prompt, request.logprobs) == ((Adapter("l"),), False, 2)
    assert (request.model, request.owner, request.warnings) == ("m", "me", ())
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert (chat.reasoning_effort, chat.thinking_budget) == ("high", 3)
    assert chat.template_kwargs == {"a": 1}
    assert chat.get_client_field_name("reasoning_effort") == "reasoning.effort"


def test_logprobs_and_context_management_without_effect_are_warned_about() -> None:
    assert make_request(include=["message.output_text.logprobs"]).logprobs == 0
    request = make_request(top_logprobs=2, context_management=[{"type": "compaction"}])
    assert request.logprobs is None
    first, second = request.warnings
    assert "`top_logprobs`" in first
    assert "`context_management`" in second


INVALID_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"n": 2}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"chat_template": "x"}, "chat_template"),
    ({"response_format": {"type": "text"}}, "response_format"),
    ({"previous_response_id": "r", "conversation": "c"}, "conversation"),
    ({"conversation": {}}, "conversation.id"),
    ({"background": True, "store": False}, "background"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"truncation": "middle"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_tool_calls": -1}, "max_tool_calls"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"temperature": 3}, "temperature"),
    ({"metadata": {"x" * 65: "y"}}, "metadata"),
    ({"metadata": {"x": "y" * 513}}, "metadata"),
    ({"metadata": {"x": 5}}, "metadata"),
    ({"metadata": {str(i): "y" for i in range(17)}}, "metadata"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": text_format(name="a b")}}, "text.format.name"),
    ({"text": {"format": text_format(schema=[])}}, "text.format.schema"),
    ({"include": "x"}, "include"),
    ({"instructions": 5}, "instructions"),
    ({"reasoning": "high"}, "reasoning"),
]


@pytest.mark.parametrize(("fields", "param"), INVALID_FIELDS)
def test_invalid_fields_are_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    assert get_error(**fields).param == param


def test_large_texts_are_accepted_and_large_schemas_are_rejected() -> None:
    text = "x" * 700_000
    assert make_messages(message_item("user", text), instructions=text) == [
        system_message(text),
        user_message(text),
    ]
    large = [function_tool("f", parameters={"x": text})]
    assert get_error(tools=large).param == "tools"
    tools_item = {"type": "additional_tools", "tools": large}
    assert get_error(input=[tools_item, message_item("user", "a")]).param == "input[0].tools"


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_is_rejected() -> None:
    assert get_error(input=[{"type": "strange", "x": nest(300)}]).param == "input[0]"
    tool = function_tool("f", parameters={"x": nest(300)})
    assert get_error(tools=[tool]).param == "tools[0]"
    assert (
        get_error(text={"format": text_format(schema={"x": nest(300)})}).param
        == "text.format.schema"
    )
    assert get_error(tool_choice={"type": "x", "y": nest(300)}).param == "tool_choice"
    assert make_request(tools=[function_tool("f", parameters={"x": nest(200)})])


def test_unknown_fields_are_ignored_unless_the_server_is_strict() -> None:
    body = json.dumps({"model": "m", "input": "hi", "surprise": 1, "include": ["x"]}).encode()
    assert responses.decode_request(body).items
    with pytest.raises(BadRequest):
        responses.decode_request(body, strict=True)
    body = json.dumps({"model": "m", "input": "hi", "include": ["x"]}).encode()
    with pytest.raises(BadRequest) as caught:
        responses.decode_request(body, strict=True)
    assert caught.value.param == "include[0]"


# Other request bodies


def test_a_websocket_message_is_decoded_as_a_request() -> None:
    body = {"type": "response.create", "model": "m", "input": "hi"}
    for fields, wants_answer in (({}, True), ({"stream": True, "generate": False}, False)):
        decoded = responses.decode_websocket_request(json.dumps(body | fields))
        assert decoded.fields.stream
        assert decoded.wants_answer == wants_answer
        assert make_request(decoded).prompts == make_request().prompts
    for invalid, param in (
        ({"type": "response.cancel"}, "type"),
        ({"stream": False}, "stream"),
        ({"background": True}, "background"),
        ({"input": 5}, "input"),
    ):
        with pytest.raises(BadRequest) as caught:
            responses.decode_websocket_request(json.dumps(body | invalid).encode())
        assert caught.value.param == param
    with pytest.raises(BadRequest):
        responses.decode_websocket_request("\ud800")


def test_compacting_needs_input() -> None:
    decoded = responses.decode_compact_request(
        b'{"model":"m","input":"hi","instructions":"I","stream":true}'
    )
    assert (decoded.fields.instructions, decoded.fields.stream) == ("I", None)
    with pytest.raises(BadRequest):
        responses.decode_compact_request(b'{"model":"m"}')
    with pytest.raises(BadRequest):
        responses.decode_compact_request(b'{"model":"m","input":"hi","stream":true}', strict=True)


def test_counting_needs_no_fields() -> None:
    assert responses.decode_count_request(b"{}").fields.model is None
    body = json.dumps(
        {"model": "m", "input": "hi", "tools": [function_tool("f")], "personality": "x"}
    )
    decoded = responses.decode_count_request(body.encode(), strict=True)
    assert make_request(decoded).prompts == make_request(tools=[function_tool("f")]).prompts
    with pytest.raises(BadRequest):
        responses.decode_count_request(b'{"tools":[{}]}')


def test_the_next_round_continues_from_the_output() -> None:
    first = decode(tools=[function_tool("f")], tool_choice="required")
    next_round = responses.continue_request(first, [call_item(1), output_item(1, "x")])
    chat = make_request(next_round).prompts[0]
    assert isinstance(chat, Chat)
    assert list(chat.messages) == [
        user_message("hi"),
        assistant_message(None, make_call(1)),
        tool_message("c1", "x"),
    ]
    assert make_echo(first)["tool_choice"] == "required"


def test_a_conversation_continues_from_the_output_of_a_response() -> None:
    decoded = decode(tools=[NAMESPACE, function_tool("f"), mcp_tool(require_approval="never")])
    remote = {"docs__read": ToolOrigin(kind="mcp", name="read", server_label="docs")}
    tools = responses.get_tool_origins(decoded) | remote
    include = frozenset({"reasoning.encrypted_content"})
    info = responses.ResponseInfo(
        id="resp_1",
        created=1,
        model="m",
        echoed_fields=make_echo(decoded),
        tools=tools,
        include=include,
        packer=PlainPacker(),
    )
    encoder = responses.ResponseEncoder(info, make_request(decoded))
    encoder.start()
    for delta in (
        Delta(channel="reasoning", text="hm"),
        Delta(channel="tool_name", text="docs__read", id="call_0"),
        Delta(channel="tool_args", text='{"a":1}'),
        Delta(finish="tool_calls", usage=Usage()),
    ):
        encoder.encode_delta(delta)
    for remote_call in encoder.get_remote_calls():
        encoder.finish_remote_call(remote_call, "page", None)
    for delta in (
        Delta(text="So."),
        Delta(channel="tool_name", text="crm__find", id="call_1"),
        Delta(channel="tool_args", text="{}"),
        Delta(channel="tool_name", text="crm__query", id="call_2", call=1),
        Delta(channel="tool_args", text='{"input":"é"}', call=1),
        Delta(finish="tool_calls", usage=Usage()),
    ):
        encoder.encode_delta(delta)
    encoder.end(Usage())
    items = [
        item | {"content": None} if "summary" in item else item for item in encoder.finished_items
    ]
    history = (*decoded.items, *items)
    chat = make_request(decode(input=[output_item(1, "x")], tools=[NAMESPACE]), history).prompts[0]
    assert isinstance(chat, Chat)
    _, first, tool_result, second, _ = chat.messages
    assert first.reasoning == "hm"
    (read_call,) = first.tool_calls
    assert (read_call.name, read_call.arguments) == ("docs__read", '{"a":1}')
    assert tool_result == tool_message(read_call.id, "page")
    first_call = ToolCall(id="call_1", name="crm__find", arguments="{}")
    second_call = ToolCall(id="call_2", name="crm__query", arguments='{"input": "é"}')
    assert second == assistant_message("So.", first_call, second_call)


# Echoed fields


def test_a_response_repeats_its_request() -> None:
    decoded = make_echo(decode())
    assert decoded == {
        "model": "m",
        "instructions": None,
        "previous_response_id": None,
        "conversation": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_tool_calls": None,
        "max_output_tokens": None,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "truncation": "disabled",
        "store": True,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
    }


FIELDS: dict[str, Any] = {
    "instructions": "I",
    "previous_response_id": "resp_1",
    "tool_choice": allowed_tools(F),
    "parallel_tool_calls": False,
    "max_tool_calls": 3,
    "max_output_tokens": 9,
    "text": {"format": text_format(strict=True, description=None), "verbosity": "low"},
    "reasoning": {"effort": "high", "summary": "auto"},
    "temperature": 0.0,
    "top_p": 0.5,
    "top_logprobs": 2,
    "truncation": "auto",
    "store": False,
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "user": "u",
}


def test_request_fields_are_echoed() -> None:
    inner = NAMESPACE | {"tools": [function_tool("find", defer_loading=True), custom_tool("query")]}
    decoded = decode(
        **FIELDS, tools=[function_tool("f"), custom_tool("g"), inner, mcp_tool(), *TOOLS[-1:]]
    )
    echo = make_echo(decoded)
    assert {name: echo[name] for name in FIELDS} == FIELDS
    assert echo["tools"][0] == function_tool("f", description=None, parameters=None, strict=None)
    assert echo["tools"][1] == custom_tool("g", type="text") | {"description": None}
    resource = echo | {"id": "r", "object": "response", "created_at": 1, "output": []}
    Response.model_validate(resource)
    assert make_echo(decode(conversation="conv_1"))["conversation"] == {"id": "conv_1"}
    assert decode(reasoning={"generate_summary": "auto"}).wants_summary


# Arbitrary bodies

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ITEM_TYPES = sorted(
    {item["type"] for items, _ in CONVERSATIONS for item in items if "type" in item}
)
ITEM_FIELDS = sorted({key for items, _ in CONVERSATIONS for item in items for key in item})
ANY_ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from([*ITEM_TYPES, "x"]) | ANY_JSON},
    optional=dict.fromkeys((key for key in ITEM_FIELDS if key != "type"), ANY_JSON | st.just("a")),
)
ANY_TOOL = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "namespace", "mcp", "x"])},
    optional={
        "name": st.sampled_from(["f", "g"]) | ANY_JSON,
        "tools": st.lists(
            st.fixed_dictionaries({"type": st.just("function")}) | ANY_JSON, max_size=2
        ),
        "format": ANY_JSON,
        "server_label": st.just("a") | ANY_JSON,
        "require_approval": ANY_JSON,
    },
)
ANY_BODY = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "input": st.lists(ANY_ITEM | ANY_JSON, max_size=4) | ANY_JSON,
        "tools": st.lists(ANY_TOOL, max_size=3) | ANY_JSON,
        "tool_choice": ANY_TOOL | ANY_JSON,
        "text": ANY_JSON | st.fixed_dictionaries({"format": ANY_JSON}),
        "metadata": ANY_JSON,
        "include": ANY_JSON,
        "conversation": ANY_JSON,
    },
)


@settings(max_examples=400)
@given(ANY_BODY | ANY_JSON)
def test_any_json_is_a_request_or_a_bad_request(body: Any) -> None:
    messages = []
    try:
        decoded = responses.decode_request(json.dumps(body).encode())
        json.dumps(make_echo(decoded))
        assert all({"id", "type"} <= item.keys() for item in decoded.items)
        make_request(decoded)
    except BadRequest as error:
        messages.append(error.message)
    assert not any("Struct" in message for message in messages)


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([item for items, _ in CONVERSATIONS for item in items]), max_size=8)
)
def test_any_order_of_items_is_a_conversation(items: list[Item]) -> None:
    messages = make_messages(message_item("user", "a"), *items, message_item("user", "z"))
    assert [message.role for message in messages if message.role not in ("assistant", "tool")]
    for before, after in pairwise(messages):
        assert not (before.role == after.role == "assistant")
