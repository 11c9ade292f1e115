"""Reading Responses requests: what arrives, what is kept of it, what the model is told."""

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
from dragoman.types import Adapter, Chat, Constraint, Message, Request, Tool, ToolCall, text_content
from tests.support.text_model import check_media


class Paper:
    """Seals that hide nothing."""

    def pack(self, purpose: str, data: bytes) -> str:
        return f"{purpose}:{data.decode()}"

    def unpack(self, purpose: str, text: str) -> bytes | None:
        head, _, rest = text.partition(":")
        return rest.encode() if head == purpose else None


def echoed(found: responses.DecodedRequest) -> dict[str, Any]:
    """What is repeated of a request, of a model that has no usual of its own."""
    return responses.make_echoed_fields(found, "m", ask(found).sampling)


def asked(**fields: Any) -> DecodedRequest:
    return responses.decode_request(json.dumps({"model": "m", "input": "hi"} | fields).encode())


def ask(
    found: DecodedRequest | None = None,
    history: tuple[Item, ...] = (),
    remote: tuple[Tool, ...] = (),
    **fields: Any,
) -> Request:
    found = asked(**fields) if found is None else found
    return responses.to_request(found, history, owner="me", packer=Paper(), remote=remote)


def talk(**fields: Any) -> Chat:
    found = ask(**fields).prompts[0]
    assert isinstance(found, Chat)
    return found


def told(*items: Item, **fields: Any) -> list[Message]:
    return list(talk(input=list(items), **fields).messages)


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as refusal:
        ask(**fields)
    assert refusal.value.status == 400
    for internal in ("Struct", "$", "msgspec"):
        assert internal not in refusal.value.message
    return refusal.value


def user(text: str) -> Message:
    return Message(role="user", content=text_content(text))


def says(text: str | None = None, *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message(
        role="assistant", content=text_content(text), tool_calls=calls, reasoning=reasoning
    )


def result(call: str | None, text: str) -> Message:
    return Message(role="tool", tool_call_id=call, content=text_content(text))


def system(text: str) -> Message:
    return Message(role="system", content=text_content(text))


def message(role: str, content: Any, **more: Any) -> Item:
    return {"type": "message", "role": role, "content": content} | more


def part(text: str, kind: str = "input_text") -> Item:
    return {"type": kind, "text": text}


def call(number: int, name: str = "f", arguments: str = "{}", **more: Any) -> Item:
    return {
        "type": "function_call",
        "call_id": f"c{number}",
        "name": name,
        "arguments": arguments,
    } | more


def output(number: int | None, text: Any, kind: str = "function") -> Item:
    name = None if number is None else f"c{number}"
    kind = "function_call_output" if kind == "function" else "custom_tool_call_output"
    return {"type": kind, "call_id": name, "output": text}


def thought(text: str) -> Item:
    return {"type": "reasoning", "summary": [], "content": [part(text, "reasoning_text")]}


def made(number: int, name: str = "f", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


# items become messages

REMOTE: Item = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "docs",
    "name": "look.up",
    "arguments": '{"q":1}',
}
REMOTE_MADE = ToolCall(id="mcp_1", name="docs__look_up", arguments='{"q":1}')
REQUEST = REMOTE | {"type": "mcp_approval_request", "id": "mcpr_1"}
REQUEST_MADE = ToolCall(id="mcpr_1", name="docs__look_up", arguments='{"q":1}')
FAILED = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}
SEALED = 'compaction:{"summary":"we met"}'
SUMMARY = "This is a summary of the conversation so far:\n\nwe met"


def answer(approve: bool, **more: Any) -> Item:
    head = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}
    return head | {"approve": approve} | more


TOLD: list[tuple[list[Item], list[Message]]] = [
    ([{"role": "user", "content": "a"}], [user("a")]),
    ([message("user", [part("a"), part("b"), part("c", "text")])], [user("abc")]),
    ([message("assistant", [part("a", "output_text")])], [says("a")]),
    ([message("assistant", [{"type": "refusal", "refusal": "no"}])], [says("no")]),
    ([message("assistant", "a", phase="commentary"), message("assistant", "b")], [says("a\n\nb")]),
    ([message("assistant", None)], [says("")]),
    ([message("user", [])], [user("")]),
    # a turn is one message
    (
        [thought("t"), message("assistant", "a"), call(1), call(2, "g"), output(1, "x")],
        [says("a", made(1), made(2, "g"), reasoning="t"), result("c1", "x")],
    ),
    (
        [call(1), output(1, "x"), thought("t"), call(2), output(2, "y"), message("assistant", "z")],
        [
            says(None, made(1)),
            result("c1", "x"),
            says(None, made(2), reasoning="t"),
            result("c2", "y"),
            says("z"),
        ],
    ),
    ([thought("t"), thought("u"), message("user", "a")], [says(reasoning="t\n\nu"), user("a")]),
    # calls without results, results without calls
    ([call(1), message("user", "a")], [says(None, made(1)), user("a")]),
    ([output(9, "x"), output(None, "y")], [result("c9", "x"), result(None, "y")]),
    ([output(1, [part("x"), part("y")])], [result("c1", "xy")]),
    (
        [
            {"type": "custom_tool_call", "call_id": "c1", "name": "g", "input": 'é"\n'},
            output(1, "x", "custom"),
        ],
        [says(None, made(1, "g", '{"input": "é\\"\\n"}')), result("c1", "x")],
    ),
    # thoughts
    ([{"type": "reasoning", "encrypted_content": "reasoning:t"}], [says(reasoning="t")]),
    (
        [{"type": "reasoning", "encrypted_content": "x", "summary": [part("s", "summary_text")]}],
        [says(reasoning="s")],
    ),
    # remote tools
    ([REMOTE | {"output": "x"}], [says(None, REMOTE_MADE), result("mcp_1", "x")]),
    (
        [REMOTE | {"output": "x"}, call(2)],
        [says(None, REMOTE_MADE), result("mcp_1", "x"), says(None, made(2))],
    ),
    ([REMOTE | {"error": FAILED}], [says(None, REMOTE_MADE), result("mcp_1", "Error: no")]),
    ([REMOTE | {"error": "no"}], [says(None, REMOTE_MADE), result("mcp_1", "Error: no")]),
    ([REMOTE | {"error": {"a": 1}}], [says(None, REMOTE_MADE), result("mcp_1", 'Error: {"a": 1}')]),
    ([REMOTE, message("user", "a")], [says(None, REMOTE_MADE), user("a")]),
    ([REQUEST, message("user", "a")], [user("a")]),
    ([REQUEST, answer(True), message("user", "a")], [user("a")]),
    ([answer(False), message("user", "a")], [user("a")]),
    (
        [thought("t"), REQUEST, answer(False, reason="Not now.")],
        [
            says(None, REQUEST_MADE, reasoning="t"),
            result(
                "mcpr_1",
                "The user did not approve this call. It was not made. Reason: Not now.",
            ),
        ],
    ),
    (
        [
            {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []},
            message("user", "a"),
        ],
        [user("a")],
    ),
    # what is made short
    (
        [{"type": "compaction", "encrypted_content": 'compaction:{"summary":"we met"}'}],
        [user(SUMMARY)],
    ),
    # tools of other servers that clients run
    (
        [
            {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
        ],
        [says(None, made(1, "local_shell", '{"command": ["ls"]}')), result("c1", "a.txt")],
    ),
    (
        [
            {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a"}]},
        ],
        [says(None, made(1, "shell", '{"commands": ["ls"]}')), result("c1", '[{"stdout": "a"}]')],
    ),
    (
        [
            {"type": "apply_patch_call", "call_id": "c1", "operation": {"path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "c1", "status": "failed"},
        ],
        [says(None, made(1, "apply_patch", '{"path": "a"}')), result("c1", "failed")],
    ),
    # fact 45: what a system says first is one message, later it stays where it is
    (
        [message("developer", "D"), message("system", [part("S")]), message("user", "a")],
        [system("D\n\nS"), user("a")],
    ),
    (
        [message("user", "a"), message("developer", "D"), message("user", "b")],
        [user("a"), Message(role="developer", content=text_content("D")), user("b")],
    ),
]


@pytest.mark.parametrize(("items", "messages"), TOLD)
def test_items_become_messages(items: list[Item], messages: list[Message]) -> None:
    assert told(*items) == messages


@pytest.mark.parametrize(("items", "messages"), TOLD)
def test_it_does_not_matter_what_was_said_earlier(
    items: list[Item], messages: list[Message]
) -> None:
    earlier = tuple(asked(input=items).items)
    found = ask(asked(input="now"), earlier).prompts[0]
    assert isinstance(found, Chat)
    assert list(found.messages) == [*messages, user("now")]


def test_instructions_come_first() -> None:
    found = told(message("developer", "D"), message("user", "a"), instructions="I")
    assert found == [system("I\n\nD"), user("a")]
    assert told(message("developer", ""), message("user", "a"), instructions="") == [user("a")]
    earlier = tuple(asked(input=[message("system", "old"), message("user", "a")]).items)
    chat = ask(asked(input=[message("system", "new")], instructions="I"), earlier).prompts[0]
    assert isinstance(chat, Chat)
    assert list(chat.messages) == [system("I\n\nold"), user("a"), system("new")]


LEFT_OUT = [
    ({"type": "reasoning", "encrypted_content": "elsewhere:t"}, "encrypted_content"),
    ({"type": "compaction", "encrypted_content": "gAAAA"}, "encrypted_content"),
    ({"type": "compaction", "encrypted_content": "compaction:nonsense"}, "encrypted_content"),
    ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, "`web_search_call`"),
    ({"type": "image_generation_call", "result": "x"}, "`image_generation_call`"),
    ({"type": "never_heard_of", "deep": {"er": [1]}}, "`never_heard_of`"),
]


@pytest.mark.parametrize(("item", "word"), LEFT_OUT)
def test_what_only_another_server_can_read_is_left_out_with_a_warning(
    item: Item, word: str
) -> None:
    request = ask(input=[item, message("user", "a"), item])
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert list(chat.messages) == [user("a")]
    (warning,) = request.warnings
    assert word in warning


BAD_ITEMS: list[tuple[Any, str]] = [
    (5, "input"),
    ([5], "input[0]"),
    ([{}], "input[0]"),
    ([{"content": "a"}], "input[0].type"),
    ([{"type": 5}], "input[0].type"),
    ([{"type": "x" * 65}], "input[0].type"),
    ([message("user", "a"), message("tool", "a")], "input[1].role"),
    ([{"type": "message", "content": "a"}], "input[0].role"),
    ([message("user", None)], "input[0].content"),
    ([message("user", 5)], "input[0].content"),
    ([message("user", [{"text": "a"}])], "input[0].content[0].type"),
    ([message("user", [part("a"), {"type": "input_text"}])], "input[0].content[1].text"),
    ([message("user", [part("a", "hologram")])], "input[0].content[0].type"),
    ([message("user", "a", id=5)], "input[0].id"),
    ([message("user", "a", id="x" * 513)], "input[0].id"),
    ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id"),
    ([call(1, arguments={})], "input[0].arguments"),  # type: ignore[arg-type]
    ([call(1, "")], "input[0].name"),
    ([{"type": "function_call_output", "call_id": "c1"}], "input[0].output"),
    ([output(1, 5)], "input[0].output"),
    ([{"type": "reasoning", "summary": [5]}], "input[0].summary[0]"),
    ([{"type": "compaction"}], "input[0].encrypted_content"),
    ([{"type": "additional_tools"}], "input[0].tools"),
    ([{"type": "additional_tools", "tools": [{}]}], "input[0].tools[0].type"),
    ([answer(False) | {"approve": "no"}], "input[0].approve"),
    ([{"type": "item_reference"}], "input[0].id"),
    ([{"type": "item_reference", "id": "msg_1"}], "input[0]"),
    ([{"id": "msg_1"}], "input[0]"),
    (None, "input"),
    ([], "input"),
    ([{"type": "mcp_list_tools"}], "input"),
]


@pytest.mark.parametrize(("said", "param"), BAD_ITEMS)
def test_a_wrong_item_is_named(said: Any, param: str) -> None:
    assert refused(input=said).param in (param, f"{param}.id")


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_what_is_no_text_is_refused_by_name(kind: str) -> None:
    seen = {"type": kind, "image_url": "data:", "file_id": "f", "input_audio": {}}
    request = ask(asked(input=[message("user", "a"), message("user", [part("a"), seen])]))
    with pytest.raises(Unsupported) as caught:
        check_media(request)
    refusal = caught.value
    assert (refusal.param, f"`{kind}`" in refusal.message) == ("input[1].content[1]", True)


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_what_a_tool_gave_back_and_is_no_text_is_named_in_its_place(kind: str) -> None:
    """An agent that once looked at a picture sends it with every later turn."""
    seen = {"type": kind, "image_url": "data:", "file_id": "f"}
    asking = ask(asked(input=[message("user", "a"), call(1), output(1, [part("It is "), seen])]))
    chat = asking.prompts[0]
    assert isinstance(chat, Chat)
    text = flatten_content(chat.messages[-1].content)
    assert text == f"It is [{kind}: not shown, only text is supported]"
    assert [said for said in check_media(asking) if f"`{kind}`" in said]


UNKEPT: list[tuple[dict[str, Any], str]] = [
    ({"moderation": {"policy": {"output": {"mode": "block"}}}}, "moderation"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"context": "current_turn"}}, "reasoning.context"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
]


@pytest.mark.parametrize(("fields", "name"), UNKEPT)
def test_what_would_change_the_answer_and_does_not_is_warned_of(
    fields: dict[str, Any], name: str
) -> None:
    assert [said for said in ask(asked(**fields)).warnings if f"`{name}`" in said]


@pytest.mark.parametrize("inside", [None, 5, "abc", [5], [{"type": "namespace"}]])
def test_a_namespace_in_a_namespace_is_left_out(inside: Any) -> None:
    inner = {"type": "namespace", "name": "m"} | ({} if inside is None else {"tools": inside})
    found = asked(tools=[{"type": "namespace", "name": "n", "tools": [inner, function("f")]}])
    (shown,) = echoed(found)["tools"]
    assert [tool["name"] for tool in shown["tools"]] == ["m", "f"]
    assert "Tools of type `namespace` are ignored" in " ".join(ask(found).warnings)


def test_names_that_come_out_alike_are_told_apart_at_once() -> None:
    spaces = [
        {"type": "namespace", "name": f"a{'_' * (at % 400)}", "tools": [function(f"f{at // 400}")]}
        for at in range(1000)
    ]
    chat = ask(asked(tools=spaces)).prompts[0]
    assert isinstance(chat, Chat)
    assert len({tool.name for tool in chat.tools}) == 1000


def test_a_prompt_can_be_read_ahead() -> None:
    found = asked(prompt_cache_options={"prewarm": True})
    assert not found.wants_answer
    assert ask(found).prefill_only
    assert asked(prompt_cache_options={"mode": "implicit"}).wants_answer


def test_an_empty_input_needs_something_to_go_on_with() -> None:
    earlier = tuple(asked().items)
    for fields in ({"previous_response_id": "resp_1"}, {"conversation": {"id": "conv_1"}}):
        for nothing in ({"input": None}, {"input": list[Item]()}):
            found = asked(**nothing | fields)
            assert found.items == []
            assert ask(found, earlier).prompts == ask().prompts
    assert asked(conversation="conv_1", input=[]).conversation_id == "conv_1"
    assert asked(conversation={"id": "conv_1"}).conversation_id == "conv_1"


# what is kept


KEPT = [
    ("hi", "msg_", {"role": "user", "content": [part("hi")], "status": "completed"}),
    ([message("developer", "a")], "msg_", {"content": [part("a")]}),
    (
        [message("assistant", "a", phase="final_answer")],
        "msg_",
        {"content": [part("a", "output_text") | {"annotations": []}], "phase": "final_answer"},
    ),
    (
        [message("assistant", [part("a"), {"type": "refusal", "refusal": "r"}])],
        "msg_",
        {
            "content": [
                part("a", "output_text") | {"annotations": []},
                {"type": "refusal", "refusal": "r"},
            ]
        },
    ),
    ([call(1, status="incomplete")], "fc_", {"call_id": "c1", "status": "incomplete"}),
    ([output(1, "x")], "fco_", {"output": "x", "status": "completed"}),
    ([output(1, [part("x")], "custom")], "ctco_", {"output": [part("x")]}),
    ([thought("t")], "rs_", {"summary": []}),
    (
        [{"type": "custom_tool_call", "call_id": "c1", "name": "g", "input": "x"}],
        "ctc_",
        {"input": "x"},
    ),
    ([{"type": "never_heard_of", "a": [1]}, message("user", "a")], "item_", {"a": [1]}),
]


@pytest.mark.parametrize(("said", "prefix", "fields"), KEPT)
def test_items_are_kept_whole(said: Any, prefix: str, fields: Item) -> None:
    first, *_ = asked(input=said).items
    assert first["id"].startswith(prefix)
    assert fields.items() <= first.items()
    again, *_ = asked(input=[first, message("user", "a")]).items
    assert again == first


RESOURCES: TypeAdapter[Any] = TypeAdapter(ResponseItem)


@pytest.mark.parametrize("items", [items for items, _ in TOLD])
def test_kept_items_are_what_clients_know(items: list[Item]) -> None:
    known = ("message", "function_call", "function_call_output", "reasoning", "mcp_call")
    for item in asked(input=items).items:
        if item["type"] in known:
            plain = item | ({"summary": []} if item["type"] == "reasoning" else {})
            failure = {"error": None} if item["type"] == "mcp_call" else {}
            assert RESOURCES.validate_python(plain | failure).id == item["id"]


def test_every_item_has_an_id_of_its_own() -> None:
    items = [message("user", "a", id="msg_1"), message("user", "b", id="msg_1")]
    found = asked(input=[*items, message("user", "c"), message("user", "d", id="")]).items
    assert found[0]["id"] == "msg_1"
    assert len({item["id"] for item in found}) == 4


def test_references_are_for_the_caller() -> None:
    said = [{"type": "item_reference", "id": "msg_1"}, message("user", "a"), {"id": "rs_2"}]
    found = asked(input=said)
    assert responses.get_references(found) == ["msg_1", "rs_2"]
    with pytest.raises(BadRequest) as refusal:
        ask(found)
    assert (refusal.value.code, refusal.value.param) == ("item_not_found", "input[0]")


def test_a_compaction_comes_back_as_what_it_says() -> None:
    item = responses.make_compaction_item("wé met", Paper())
    assert item["id"].startswith("cmp_")
    (first, _) = told(item, message("user", "a"))
    assert "wé met" in flatten_content(first.content)


# tools

NESTED = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "description": "Find one.", "parameters": {}},
        {"type": "custom", "name": "query"},
        {"type": "web_search"},
    ],
}


def function(name: str, **more: Any) -> Item:
    return {"type": "function", "name": name} | more


def custom(name: str, **form: Any) -> Item:
    return {"type": "custom", "name": name} | ({"format": form} if form else {})


def test_a_function_arrives() -> None:
    schema = {"type": "object", "properties": {"é": True}}
    said = function("f", description="d", parameters=schema, strict=True)
    (found, bare) = talk(tools=[said, function("g", parameters=None, strict=None)]).tools
    assert found == Tool(
        name="f", description="d", parameters=schema, strict=True, param="tools[0].parameters"
    )
    assert (bare.parameters, bare.strict) == (None, None)


AT = "tools[0].format.definition"
GRAMMARS: list[tuple[Item, Constraint | None]] = [
    ({}, None),
    ({"type": "text"}, None),
    (
        {"type": "grammar", "syntax": "lark", "definition": "start: /a/"},
        Constraint(kind="grammar", value="start: /a/", param=AT, language="lark"),
    ),
    (
        {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"},
        Constraint(kind="regex", value="[0-9]+", param=AT),
    ),
]


@pytest.mark.parametrize(("form", "shape"), GRAMMARS)
def test_a_custom_tool_is_a_function_of_one_text(form: Item, shape: Constraint | None) -> None:
    (found,) = talk(tools=[custom("g", **form)]).tools
    assert found.takes_free_text
    assert found.input == shape
    assert list(found.parameters["properties"]) == found.parameters["required"] == ["input"]
    assert found.parameters["properties"]["input"]["type"] == "string"
    assert found.parameters["additionalProperties"] is False
    assert shape is None or shape.value in json.dumps(found.parameters)


def test_a_namespace_is_flat_for_the_model_and_not_for_the_client() -> None:
    found = asked(tools=[NESTED, function("find")])
    chat = ask(found).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["crm__find", "crm__query", "find"]
    assert chat.tools[0].description == "crm: Customers.\n\nFind one."
    assert responses.get_tool_origins(found) == {
        "crm__find": ToolOrigin(kind="function", name="find", namespace="crm"),
        "crm__query": ToolOrigin(kind="custom", name="query", namespace="crm"),
        "find": ToolOrigin(kind="function", name="find"),
    }


def test_a_call_of_a_namespace_is_told_by_its_flat_name() -> None:
    items = [call(1, "find", namespace="crm"), call(2, "query"), call(3, "x", namespace="gone")]
    (turn,) = told(*items, tools=[NESTED])
    assert [one.name for one in turn.tool_calls] == ["crm__find", "crm__query", "gone__x"]
    (turn,) = told(call(1, "find"), tools=[NESTED, function("find")])
    assert turn.tool_calls[0].name == "find"


def test_flat_names_are_never_shared() -> None:
    tools = [function("crm__find"), NESTED, NESTED | {"name": "crm_"}, NESTED | {"name": "crm__"}]
    found = asked(tools=tools)
    flat = responses.get_tool_origins(found)
    chat = ask(found).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == list(flat)
    assert len({(one.namespace, one.name) for one in flat.values()}) == len(flat) == 7


def test_tools_that_cannot_be_run_are_left_out() -> None:
    kinds = ["web_search", "file_search", "computer_use", "code_interpreter", "never_heard_of"]
    tools = [{"type": kind, "whatever": {"a": 1}} for kind in (*kinds, "web_search")]
    request = ask(tools=[*tools, function("f"), NESTED])
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["f", "crm__find", "crm__query"]
    assert len(request.warnings) == len(kinds)
    assert all(
        f"`{kind}`" in warning for kind, warning in zip(kinds, request.warnings, strict=True)
    )


def test_items_add_tools_and_later_ones_win() -> None:
    def adding(*tools: Item) -> Item:
        return {"type": "additional_tools", "role": "developer", "tools": list(tools)}

    earlier = tuple(asked(input=[adding(function("f", description="1"), function("h"))]).items)
    found = asked(
        input=[adding(function("f", description="2"), NESTED), message("user", "a")],
        tools=[function("f"), function("g")],
    )
    chat = ask(found, earlier).prompts[0]
    assert isinstance(chat, Chat)
    names = ["f", "g", "h", "crm__find", "crm__query"]
    assert [tool.name for tool in chat.tools] == names
    assert chat.tools[0].description == "2"
    assert chat.tools[0].param == "input[0].tools[0].parameters"
    assert list(responses.get_tool_origins(found, earlier)) == names
    assert list(chat.messages) == [user("a")]


BAD_TOOLS: list[tuple[Any, str]] = [
    ("f", "tools"),
    ([5], "tools[0]"),
    ([{}], "tools[0].type"),
    ([{"type": 5}], "tools[0].type"),
    ([{"type": "function"}], "tools[0].name"),
    ([function("")], "tools[0].name"),
    ([function("f", parameters="{}")], "tools[0].parameters"),
    ([function("f", strict="yes")], "tools[0].strict"),
    ([function("f"), function("f")], "tools[1].name"),
    ([function("f"), custom("f")], "tools[1].name"),
    ([NESTED, NESTED], "tools[1].tools[0].name"),
    ([NESTED | {"tools": [function("f"), custom("f")]}], "tools[0].tools[1].name"),
    ([NESTED | {"tools": [{}]}], "tools[0].tools[0].type"),
    ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
    ([custom("g", type="yaml")], "tools[0].format.type"),
    ([custom("g", type="grammar", syntax="lark")], "tools[0].format.definition"),
    ([custom("g", type="grammar", syntax="peg", definition="x")], "tools[0].format.syntax"),
    ([custom("g", type="grammar", syntax="lark", definition="")], "tools[0].format.definition"),
]


@pytest.mark.parametrize(("said", "param"), BAD_TOOLS)
def test_a_wrong_tool_is_named(said: Any, param: str) -> None:
    assert refused(tools=said).param == param


# remote servers


def server(label: str = "docs", **more: Any) -> Item:
    return {"type": "mcp", "server_label": label, "server_url": "https://x.example/mcp"} | more


SECRET: dict[str, Any] = {"authorization": "tok-secret", "headers": {"x-key": "key-secret"}}


def test_servers_are_for_the_caller() -> None:
    added = {"type": "additional_tools", "tools": [server("more", **SECRET)]}
    found = asked(tools=[server(**SECRET), function("f")], input=[added, message("user", "a")])
    first, second = responses.get_mcp_servers(found)
    assert (first.server_label, first.server_url) == ("docs", "https://x.example/mcp")
    assert first.authorization == second.authorization == "tok-secret"
    assert first.headers == {"x-key": "key-secret"}
    chat = ask(found).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["f"]


def test_secrets_are_neither_kept_nor_shown() -> None:
    url = "https://me:url-secret@x.example:81/url-secret?key=url-secret"
    tools = [server(**SECRET, server_url=url), {"type": "code_interpreter", "x": [SECRET]}]
    added = {"type": "additional_tools", "tools": [server("more", **SECRET, server_url=url)]}
    found = asked(tools=tools, input=[added, message("user", "a")])
    shown = json.dumps(echoed(found)) + json.dumps(found.items)
    shown += repr(responses.get_mcp_servers(found))
    assert "secret" not in shown
    assert "https://x.example:81/<redacted>" in shown
    schema = {"type": "object", "properties": {"headers": {"type": "string"}}}
    (tool,) = echoed(asked(tools=[function("f", parameters=schema)]))["tools"]
    assert tool["parameters"] == schema


ALLOWED: list[tuple[Any, list[str]]] = [
    (None, ["r", "w"]),
    ([], []),
    (["w", "x"], ["w"]),
    ({"tool_names": ["r"]}, ["r"]),
    ({"read_only": True}, ["r"]),
    ({"read_only": True, "tool_names": ["w"]}, []),
]


@pytest.mark.parametrize(("said", "names"), ALLOWED)
def test_only_allowed_tools_are_known(said: Any, names: list[str]) -> None:
    (found,) = responses.get_mcp_servers(asked(tools=[server(allowed_tools=said)]))
    offered = {"r": True, "w": False}
    assert [name for name, reads in offered.items() if found.allows(name, reads)] == names


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


@pytest.mark.parametrize(("said", "names"), APPROVALS)
def test_calls_are_approved_unless_they_need_not_be(said: Any, names: list[str]) -> None:
    (found,) = responses.get_mcp_servers(asked(tools=[server(require_approval=said)]))
    offered = {"r": True, "w": False}
    assert [name for name, reads in offered.items() if found.needs_approval(name, reads)] == names


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
def test_a_wrong_server_is_named(fields: Item, param: str) -> None:
    assert refused(tools=[server() | fields]).param == param
    assert refused(tools=[server(), server()]).param == "tools[1].server_label"


REMOTES = tuple(Tool(name=name) for name in ("docs__read", "docs__look_up", "docs__x__read"))


def test_remote_tools_stand_beside_the_others() -> None:
    found = asked(tools=[function("f"), server()])
    chat = ask(found, remote=REMOTES).prompts[0]
    assert isinstance(chat, Chat)
    assert [tool.name for tool in chat.tools] == ["f", *(tool.name for tool in REMOTES)]
    assert responses.make_remote_name("docs", "look.up") == "docs__look_up"
    with pytest.raises(BadRequest):
        ask(asked(tools=[function("docs__read"), server()]), remote=REMOTES)


# the choice

TOOLS = [function("f"), custom("g"), NESTED, server(), server("docs__x"), {"type": "web_search"}]


def allowed(*tools: Item, mode: str = "auto") -> Item:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


F, G = {"type": "function", "name": "f"}, {"type": "custom", "name": "g"}
FIND = {"type": "function", "name": "find"}
DOCS = {"type": "mcp", "server_label": "docs"}
WEB = {"type": "web_search_preview"}
# tool_choice -> mode, the tools that may be called, whether one was named, whether it is kept to
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
    (allowed(G, F), "auto", ("f", "g"), False, True),
    (allowed(F, F, mode="required"), "required", ("f",), False, True),
    (allowed(FIND, WEB, mode="required"), "required", ("crm__find",), False, True),
    (allowed(F, DOCS), "auto", ("f", "docs__read", "docs__look_up"), False, True),
    (allowed(WEB), "auto", (), False, True),
    (allowed(WEB, mode="required"), "auto", (), False, False),
]


@pytest.mark.parametrize("parallel", [None, True, False])
@pytest.mark.parametrize(("said", "mode", "names", "named", "kept"), CHOICES)
def test_a_tool_choice_arrives(
    said: Any,
    mode: str,
    names: tuple[str, ...] | None,
    named: bool,
    kept: bool,
    parallel: bool | None,
) -> None:
    found = asked(tools=TOOLS, tool_choice=said, parallel_tool_calls=parallel)
    request = ask(found, remote=REMOTES)
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert (chat.tool_choice, chat.allowed_tools, chat.forces_named_tool) == (mode, names, named)
    assert chat.parallel_tool_calls == (parallel is not False and not named)
    assert any("`tool_choice`" in warning for warning in request.warnings) == (not kept)
    again = responses.continue_request(found, [])
    chat = ask(again, remote=REMOTES).prompts[0]
    assert isinstance(chat, Chat)
    assert chat.tool_choice == ("none" if mode == "none" else "auto")
    if isinstance(said, dict) and said["type"] == "allowed_tools":
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
    (allowed(), TOOLS),
    (allowed(F, mode="never"), TOOLS),
    (allowed({"type": "function", "name": "gone"}), TOOLS),
    (allowed(allowed(F)), TOOLS),
]


@pytest.mark.parametrize(("said", "tools"), BAD_CHOICES)
def test_a_wrong_choice_is_named(said: Any, tools: Any) -> None:
    assert (refused(tool_choice=said, tools=tools).param or "").startswith("tool_choice")


@pytest.mark.parametrize("tools", [[{"type": "web_search"}], [server()]])
def test_a_demand_for_tools_that_are_not_there_is_only_a_warning(tools: list[Item]) -> None:
    request = ask(tools=tools, tool_choice="required")
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert chat.tool_choice == "auto"
    assert any("`tool_choice`" in warning for warning in request.warnings)


# the rest of the fields

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def content(value: Any, param: str, strict: bool | None = None) -> Constraint:
    return Constraint(kind="json", value=value, param=param, strict=strict, allows_tool_calls=True)


def form(**more: Any) -> Item:
    return {"type": "json_schema", "name": "n", "schema": SCHEMA} | more


INNER = {"name": "n", "schema": SCHEMA}
FORMATS: list[tuple[Any, Constraint | None, Any]] = [
    (None, None, None),
    ({"type": "text"}, None, None),
    ({"type": "json_object"}, content(None, "text.format"), {"type": "json_object"}),
    (
        form(),
        content(SCHEMA, "text.format.schema"),
        {"type": "json_schema", "json_schema": INNER},
    ),
    (
        form(strict=True, description="d"),
        content(SCHEMA, "text.format.schema", True),
        {"type": "json_schema", "json_schema": INNER | {"strict": True, "description": "d"}},
    ),
]


@pytest.mark.parametrize(("said", "shape", "shown"), FORMATS)
def test_a_text_format_arrives(said: Any, shape: Constraint | None, shown: Any) -> None:
    request = ask(text={"format": said, "verbosity": "low"})
    assert request.constraint == shape
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert chat.response_format == shown


def test_an_explicit_shape_wins_over_a_loose_format() -> None:
    request = ask(regex="[0-9]", text={"format": form()})
    assert request.constraint == Constraint(kind="regex", value="[0-9]", param="regex")
    assert "`text.format`" in request.warnings[0]
    assert refused(regex="[0-9]", text={"format": form(strict=True)}).param == "text.format"


SAMPLED: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 7,
    "presence_penalty": 1.0,
}


def test_fields_arrive() -> None:
    request = ask(
        **SAMPLED,
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
    found = msgspec.to_builtins(request.sampling)
    assert found == SAMPLED | {"max_tokens": 9}
    assert (request.stop, request.stream, request.obfuscate) == (("x",), True, True)
    assert (request.lora, request.cache_prompt, request.logprobs) == ((Adapter("l"),), False, 2)
    assert (request.model, request.owner, request.warnings) == ("m", "me", ())
    chat = request.prompts[0]
    assert isinstance(chat, Chat)
    assert (chat.reasoning_effort, chat.thinking_budget) == ("high", 3)
    assert chat.template_kwargs == {"a": 1}
    assert chat.optional_fields == ("reasoning_effort",)
    assert chat.get_client_field_name("reasoning_effort") == "reasoning.effort"


def test_what_has_no_effect_is_said() -> None:
    assert ask(include=["message.output_text.logprobs"]).logprobs == 0
    request = ask(top_logprobs=2, context_management=[{"type": "compaction"}])
    assert request.logprobs is None
    one, other = request.warnings
    assert "`top_logprobs`" in one
    assert "`context_management`" in other


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
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
    ({"text": {"format": form(name="a b")}}, "text.format.name"),
    ({"text": {"format": form(schema=[])}}, "text.format.schema"),
    ({"include": "x"}, "include"),
    ({"instructions": 5}, "instructions"),
    ({"reasoning": "high"}, "reasoning"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_large_texts_are_welcome_and_large_schemas_are_not() -> None:
    text = "x" * 700_000
    assert told(message("user", text), instructions=text) == [system(text), user(text)]
    large = [function("f", parameters={"x": text})]
    assert refused(tools=large).param == "tools"
    added = {"type": "additional_tools", "tools": large}
    assert refused(input=[added, message("user", "a")]).param == "input[0].tools"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_nested_without_end_is_refused() -> None:
    assert refused(input=[{"type": "strange", "x": nested(300)}]).param == "input[0]"
    tool = function("f", parameters={"x": nested(300)})
    assert refused(tools=[tool]).param == "tools[0]"
    assert refused(text={"format": form(schema={"x": nested(300)})}).param == "text.format.schema"
    assert refused(tool_choice={"type": "x", "y": nested(300)}).param == "tool_choice"
    assert ask(tools=[function("f", parameters={"x": nested(200)})])


def test_unknown_fields_are_ignored_unless_the_server_is_strict() -> None:
    body = json.dumps({"model": "m", "input": "hi", "surprise": 1, "include": ["x"]}).encode()
    assert responses.decode_request(body).items
    with pytest.raises(BadRequest):
        responses.decode_request(body, strict=True)
    body = json.dumps({"model": "m", "input": "hi", "include": ["x"]}).encode()
    with pytest.raises(BadRequest) as refusal:
        responses.decode_request(body, strict=True)
    assert refusal.value.param == "include[0]"


# the other bodies


def test_a_frame_is_a_request() -> None:
    body = {"type": "response.create", "model": "m", "input": "hi"}
    for more, generates in (({}, True), ({"stream": True, "generate": False}, False)):
        found = responses.decode_websocket_request(json.dumps(body | more))
        assert found.fields.stream
        assert found.wants_answer == generates
        assert ask(found).prompts == ask().prompts
    for wrong, param in (
        ({"type": "response.cancel"}, "type"),
        ({"stream": False}, "stream"),
        ({"background": True}, "background"),
        ({"input": 5}, "input"),
    ):
        with pytest.raises(BadRequest) as refusal:
            responses.decode_websocket_request(json.dumps(body | wrong).encode())
        assert refusal.value.param == param
    with pytest.raises(BadRequest):
        responses.decode_websocket_request("\ud800")


def test_compacting_needs_a_model() -> None:
    found = responses.decode_compact_request(
        b'{"model":"m","input":"hi","instructions":"I","stream":true}'
    )
    assert (found.fields.instructions, found.fields.stream) == ("I", None)
    for body in (b'{"input":"hi"}', b'{"model":"m"}'):
        with pytest.raises(BadRequest):
            responses.decode_compact_request(body)
    with pytest.raises(BadRequest):
        responses.decode_compact_request(b'{"model":"m","input":"hi","stream":true}', strict=True)


def test_counting_needs_nothing() -> None:
    assert responses.decode_count_request(b"{}").fields.model == ""
    body = json.dumps({"model": "m", "input": "hi", "tools": [function("f")], "personality": "x"})
    found = responses.decode_count_request(body.encode(), strict=True)
    assert ask(found).prompts == ask(tools=[function("f")]).prompts
    with pytest.raises(BadRequest):
        responses.decode_count_request(b'{"tools":[{}]}')


def test_rounds_go_on_from_what_was_said() -> None:
    first = asked(tools=[function("f")], tool_choice="required")
    then = responses.continue_request(first, [call(1), output(1, "x")])
    chat = ask(then).prompts[0]
    assert isinstance(chat, Chat)
    assert list(chat.messages) == [user("hi"), says(None, made(1)), result("c1", "x")]
    assert echoed(first)["tool_choice"] == "required"


def test_a_conversation_goes_on_from_what_a_response_said() -> None:
    found = asked(tools=[NESTED, function("f"), server(require_approval="never")])
    remote = {"docs__read": ToolOrigin(kind="mcp", name="read", server_label="docs")}
    tools = responses.get_tool_origins(found) | remote
    sealed = frozenset({"reasoning.encrypted_content"})
    frame = responses.ResponseInfo(
        id="resp_1",
        created=1,
        model="m",
        echoed_fields=echoed(found),
        tools=tools,
        include=sealed,
        packer=Paper(),
    )
    writer = responses.ResponseEncoder(frame, ask(found))
    writer.start()
    for delta in (
        Delta(channel="reasoning", text="hm"),
        Delta(channel="tool_name", text="docs__read", id="call_0"),
        Delta(channel="tool_args", text='{"a":1}'),
        Delta(finish="tool_calls", usage=Usage()),
    ):
        writer.encode_delta(delta)
    for wanted in writer.get_remote_calls():
        writer.finish_remote_call(wanted, "page", None)
    for delta in (
        Delta(text="So."),
        Delta(channel="tool_name", text="crm__find", id="call_1"),
        Delta(channel="tool_args", text="{}"),
        Delta(channel="tool_name", text="crm__query", id="call_2", call=1),
        Delta(channel="tool_args", text='{"input":"é"}', call=1),
        Delta(finish="tool_calls", usage=Usage()),
    ):
        writer.encode_delta(delta)
    writer.end(Usage())
    items = [
        item | {"content": None} if "summary" in item else item for item in writer.finished_items
    ]
    history = (*found.items, *items)
    chat = ask(asked(input=[output(1, "x")], tools=[NESTED]), history).prompts[0]
    assert isinstance(chat, Chat)
    _, first, heard, second, _ = chat.messages
    assert first.reasoning == "hm"
    (read,) = first.tool_calls
    assert (read.name, read.arguments) == ("docs__read", '{"a":1}')
    assert heard == result(read.id, "page")
    one = ToolCall(id="call_1", name="crm__find", arguments="{}")
    two = ToolCall(id="call_2", name="crm__query", arguments='{"input": "é"}')
    assert second == says("So.", one, two)


# what a response repeats


def test_a_response_repeats_its_request() -> None:
    found = echoed(asked())
    assert found == {
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
        "user": None,
    }


SAID: dict[str, Any] = {
    "instructions": "I",
    "previous_response_id": "resp_1",
    "tool_choice": allowed(F),
    "parallel_tool_calls": False,
    "max_tool_calls": 3,
    "max_output_tokens": 9,
    "text": {"format": form(strict=True, description=None), "verbosity": "low"},
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


def test_what_was_said_is_repeated() -> None:
    inner = NESTED | {"tools": [function("find", defer_loading=True), custom("query")]}
    found = asked(**SAID, tools=[function("f"), custom("g"), inner, server(), *TOOLS[-1:]])
    shown = echoed(found)
    assert {name: shown[name] for name in SAID} == SAID
    assert shown["tools"][0] == function("f", description=None, parameters=None, strict=None)
    assert shown["tools"][1] == custom("g", type="text") | {"description": None}
    resource = shown | {"id": "r", "object": "response", "created_at": 1, "output": []}
    Response.model_validate(resource)
    assert echoed(asked(conversation="conv_1"))["conversation"] == {"id": "conv_1"}
    assert asked(reasoning={"generate_summary": "auto"}).wants_summary


# nothing but an answer or a refusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = sorted({item["type"] for items, _ in TOLD for item in items if "type" in item})
KEYS = sorted({key for items, _ in TOLD for item in items for key in item})
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from([*KINDS, "x"]) | JSON},
    optional=dict.fromkeys((key for key in KEYS if key != "type"), JSON | st.just("a")),
)
TOOL = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "namespace", "mcp", "x"])},
    optional={
        "name": st.sampled_from(["f", "g"]) | JSON,
        "tools": st.lists(st.fixed_dictionaries({"type": st.just("function")}) | JSON, max_size=2),
        "format": JSON,
        "server_label": st.just("a") | JSON,
        "require_approval": JSON,
    },
)
BODY = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "input": st.lists(ITEMS | JSON, max_size=4) | JSON,
        "tools": st.lists(TOOL, max_size=3) | JSON,
        "tool_choice": TOOL | JSON,
        "text": JSON | st.fixed_dictionaries({"format": JSON}),
        "metadata": JSON,
        "include": JSON,
        "conversation": JSON,
    },
)


@settings(max_examples=400, deadline=None)
@given(BODY | JSON)
def test_any_json_is_an_answer_or_a_refusal(body: Any) -> None:
    refusals = []
    try:
        found = responses.decode_request(json.dumps(body).encode())
        json.dumps(echoed(found))
        assert all({"id", "type"} <= item.keys() for item in found.items)
        ask(found)
    except BadRequest as refusal:
        refusals.append(refusal.message)
    assert not any("Struct" in message for message in refusals)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([item for items, _ in TOLD for item in items]), max_size=8))
def test_any_order_of_items_is_a_conversation(items: list[Item]) -> None:
    found = told(message("user", "a"), *items, message("user", "z"))
    assert [turn.role for turn in found if turn.role not in ("assistant", "tool")]
    for before, after in pairwise(found):
        assert not (before.role == after.role == "assistant")
