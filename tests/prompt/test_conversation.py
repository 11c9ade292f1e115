"""Probing finds what a template accepts, and a conversation is changed only as far as needed."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import msgspec
import pytest

from dragoman.errors import TemplateRejected
from dragoman.output.library import parse_tool_call_complete
from dragoman.prompt import conversation, generic_tools
from dragoman.prompt.conversation import (
    flatten_content,
    parse_arguments,
    prepare_messages,
    prepare_tools,
)
from dragoman.prompt.template.capabilities import (
    CapabilityProbe,
    TemplateCapabilities,
    probe_capabilities,
)
from dragoman.prompt.template.template import ChatTemplate, compile_template
from dragoman.prompt.turn import Turn
from dragoman.types import Message, Role, Tool, ToolCall, make_text_content
from tests.support.paths import TESTS
from tests.support.timing import measures_time

HERE = TESTS
DATA = HERE / "templates"
REAL = HERE.parent.parent / "shared" / "exam" / "templates"


def source(name: str) -> str:
    return (DATA / f"{name}.jinja").read_text()


def message(role: Role, content: str | None = None, **fields: Any) -> Message:
    return Message(role=role, content=make_text_content(content), **fields)


def call(number: int, arguments: str | None = None) -> ToolCall:
    if arguments is None:
        arguments = f'{{"city": "argument{number}"}}'
    return ToolCall(id=f"call_{number}", name=f"function{number}", arguments=arguments)


def calls(*numbers: int, content: str | None = None) -> Message:
    return message("assistant", content, tool_calls=tuple(map(call, numbers)))


def result(number: int) -> Message:
    return message("tool", f"result{number}", tool_call_id=f"call_{number}")


def summarize(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in messages]


EVERYTHING = TemplateCapabilities(
    tools_rendered=True, tool_calls_rendered=True, tool_results_rendered=True, developer=True
)


def capable(**changes: Any) -> TemplateCapabilities:
    return msgspec.structs.replace(EVERYTHING, **changes)


# What probing finds

CAPABILITIES: dict[str, dict[str, Any]] = {
    "chatml": {"tools_rendered": False, "tool_calls_rendered": False, "system_later": True},
    "llama3": {"tools_rendered": False, "tool_results_rendered": True, "user_twice": True},
    "mistral": {
        "system": True,
        "system_later": False,
        "system_twice": False,
        "user_twice": False,
        "assistant_twice": False,
        "assistant_first": False,
        "tools_rendered": True,
        "tool_calls_rendered": True,
        "tool_results_rendered": True,
        "short_ids": True,
        "user_after_result": False,
        "content_with_calls": False,
        "arguments": "dict",
    },
    "gemma": {
        "system": False,
        "user_twice": False,
        "assistant_twice": False,
        "assistant_first": False,
        "tools_rendered": False,
        "tool_results_rendered": False,
    },
    "agent": {
        "tools_rendered": True,
        "tool_calls_rendered": True,
        "tool_results_rendered": True,
        "raw_arguments": False,
        "reasoning_end": "</think>",
        "parallel_calls": True,
    },
    "parts": {"part_roles": frozenset({"system", "user", "assistant"}), "system": True},
    "textargs": {
        "arguments": "text",
        "call_content": "null",
        "parallel_calls": False,
        "content_with_calls": False,
        "tool_calls_rendered": True,
    },
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_capabilities(name: str) -> None:
    capabilities, expected = probe_capabilities(source(name)), CAPABILITIES[name]
    assert capabilities.renders
    assert {field: getattr(capabilities, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ raise_exception('no') }}", {"renders": False}),
        ("{{ messages[0].content }}{{ tools|length }}", {"no_tools": "absent"}),
        ("{% if tools is undefined %}{{ x.y.z }}{% endif %}"
         "{% for t in tools %}{% endfor %}{{ messages[0].content }}", {"no_tools": "empty"}),
        ("{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}{# developer #}",
         {"developer": False}),
        ("{% for m in messages %}{% if m.role == 'developer' %}DEV{% endif %}{{ m.content }}"
         "{% endfor %}", {"developer": True}),
        ("{% for m in messages %}{{ m.content }}{{ m.thinking }}{% endfor %}",
         {"reasoning_fields": ("reasoning_content", "thinking")}),
        ("{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
         "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
         "{% else %}{{ m.content }}{% endif %}{% endfor %}", {"tools_need_system": True}),
        ("{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}"
         "{{ messages[0].content }}", {"tools_rendered": True, "bare_tools": False}),
        ("{{ messages[0].content }}{{ functions }}", {"tools_rendered": True}),
        ("{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
         {"renders": False}),
    ],
)  # fmt: skip
def test_capabilities_of_odd_templates(text: str, expected: dict[str, Any]) -> None:
    capabilities = probe_capabilities(text)
    assert {field: getattr(capabilities, field) for field in expected} == expected


def test_a_template_cannot_change_the_probes_of_others() -> None:
    spoil = "{% if tools %}{% set _ = tools[0].function.pop('name') %}{% endif %}"
    assert not probe_capabilities(spoil + "{{ messages[0].content }}").tools_rendered
    assert CapabilityProbe(ChatTemplate(source("agent"))).probe_all().tools_rendered


@measures_time
def test_probing_is_cheap_and_done_once() -> None:
    for name in CAPABILITIES:
        template = ChatTemplate(source(name))
        started = time.thread_time()
        CapabilityProbe(template).probe_all()
        assert time.thread_time() - started < 0.05
    assert probe_capabilities(source("agent")) is probe_capabilities(source("agent"))


# How conversations are changed

SYSTEM, USER, MORE = message("system", "s"), message("user", "u"), message("user", "v")
ANSWER, OTHER, LATER = message("assistant", "a"), message("assistant", "b"), message("system", "t")

RESULT = "<tool_response>\nresult{}\n</tool_response>"
CALL = '<tool_call>\n{"name": "function1", "arguments": {"city": "argument1"}}\n</tool_call>'

CHANGES: dict[str, tuple[dict[str, Any], list[Message], list[tuple[str, Any]]]] = {
    "nothing is changed without need": (
        {},
        [SYSTEM, LATER, ANSWER, USER, MORE, LATER],
        [("system", "s"), ("system", "t"), ("assistant", "a"), ("user", "u"), ("user", "v"),
         ("system", "t")],
    ),
    "no system at all": (
        {"system": False},
        [SYSTEM, ANSWER, USER, LATER],
        [("assistant", "a"), ("user", "s\n\nt\n\nu")],
    ),
    "no system and no user message": ({"system": False}, [SYSTEM], [("user", "s")]),
    "a later system moves to the front": (
        {"system_later": False, "system_twice": False},
        [SYSTEM, USER, LATER, ANSWER],
        [("system", "s\n\nt"), ("user", "u"), ("assistant", "a")],
    ),
    "a later system becomes the first": (
        {"system_later": False},
        [USER, LATER, ANSWER],
        [("system", "t"), ("user", "u"), ("assistant", "a")],
    ),
    "two systems become one": (
        {"system_twice": False},
        [SYSTEM, LATER, USER],
        [("system", "s\n\nt"), ("user", "u")],
    ),
    "developers are systems": (
        {"developer": False},
        [message("developer", "d"), USER],
        [("system", "d"), ("user", "u")],
    ),
    "users become one": ({"user_twice": False}, [USER, MORE], [("user", "u\n\nv")]),
    "assistants become one": (
        {"assistant_twice": False},
        [USER, ANSWER, OTHER],
        [("user", "u"), ("assistant", "a\n\nb")],
    ),
    "an assistant cannot begin": (
        {"assistant_first": False},
        [SYSTEM, ANSWER, USER],
        [("system", "s"), ("user", ""), ("assistant", "a"), ("user", "u")],
    ),
    "a user message is required": (
        {"without_user": False},
        [SYSTEM],
        [("system", "s"), ("user", "")],
    ),
    "null is empty": ({}, [message("user")], [("user", "")]),
    "parts": (
        {"part_roles": frozenset({"user"})},
        [USER],
        [("user", [{"type": "text", "text": "u"}])],
    ),
    "calls alone, null": (
        {"call_content": "null"},
        [USER, calls(1)],
        [("user", "u"), ("assistant", None)],
    ),
    "results that are not rendered": (
        {"tool_results_rendered": False, "user_twice": False},
        [USER, calls(1, 2), result(1), result(2)],
        [("user", "u"), ("assistant", ""),
         ("user", f"{RESULT.format(1)}\n{RESULT.format(2)}")],
    ),
    "calls that are not rendered": (
        {"tool_calls_rendered": False},
        [calls(1, content="a"), result(1)],
        [("assistant", f"a\n{CALL}"), ("user", RESULT.format(1))],
    ),
    "a result without a call": (
        {"lone_results": False},
        [USER, result(1), calls(1), result(1)],
        [("user", "u"), ("user", RESULT.format(1)), ("assistant", ""),
         ("tool", "result1")],
    ),
    "one call at a time": (
        {"parallel_calls": False},
        [calls(1, 2, content="a"), result(2), result(1), USER],
        [("assistant", "a"), ("tool", "result1"), ("assistant", ""), ("tool", "result2"),
         ("user", "u")],
    ),
    "text and calls apart": (
        {"content_with_calls": False, "assistant_twice": False},
        [USER, calls(1, content="a"), result(1)],
        [("user", "u"), ("assistant", "a"), ("assistant", ""), ("tool", "result1")],
    ),
    "reasoning that does not go with text and calls": (
        {"reasoning_with_both": False},
        [message("assistant", "a", reasoning="r", tool_calls=(call(1),))],
        [("assistant", "r\n\na")],
    ),
    "an answer between result and user": (
        {"user_after_result": False, "filler": " "},
        [USER, calls(1), result(1), MORE],
        [("user", "u"), ("assistant", ""), ("tool", "result1"), ("assistant", " "), ("user", "v")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_conversations_change_as_the_template_requires(name: str) -> None:
    changes, messages, expected = CHANGES[name]
    before = msgspec.msgpack.encode(messages)
    assert summarize(prepare_messages(messages, capable(**changes))) == expected
    assert msgspec.msgpack.encode(messages) == before


@pytest.mark.parametrize("name", CAPABILITIES)
def test_chats_that_need_no_changes_are_recognised(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Arranging them, too, would change nothing."""
    capabilities = capable(**CAPABILITIES[name])
    roles: tuple[Role, ...] = ("system", "developer", "user", "assistant", "function")
    for size in range(1, 5):
        for sequence in itertools.product(roles, repeat=size):
            messages = [message(role, str(i)) for i, role in enumerate(sequence)]
            quick = prepare_messages(messages, capabilities)
            with monkeypatch.context() as patch:
                patch.setattr(conversation, "is_alternating", lambda *_, **__: False)
                assert prepare_messages(messages, capabilities) == quick


def test_arguments_arrive_as_dicts_and_unparsable_ones_as_text() -> None:
    messages = [calls(1), message("assistant", tool_calls=(call(2, "{oops"),))]
    prepared = prepare_messages(messages, EVERYTHING)
    arguments = [turn["tool_calls"][0]["function"]["arguments"] for turn in prepared]
    assert arguments == [{"city": "argument1"}, "{oops"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", {}), ("  ", {}), ("[1]", "[1]"), ("{}", {}), ("nul", "nul"), ("[" * 99999, "[" * 99999),
     ('{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 5000 + "}")],
)  # fmt: skip
def test_arguments_of_all_kinds(text: str, expected: Any) -> None:
    assert parse_arguments(text) == expected


def test_arguments_for_templates_that_take_only_one_kind() -> None:
    turn = message("assistant", tool_calls=(call(1), call(2, "{oops")))
    text = prepare_messages([turn], capable(arguments="text"))[0]["tool_calls"]
    objects = prepare_messages([turn], capable(raw_arguments=False))[0]["tool_calls"]
    arguments = [call["function"]["arguments"] for call in text]
    assert arguments == ['{"city": "argument1"}', "{oops"]
    assert objects[1]["function"]["arguments"] == {"arguments": "{oops"}


def test_results_in_the_order_of_their_calls() -> None:
    messages = [calls(1, 2, 3), result(3), result(1), result(2), USER, calls(2, 1), result(1)]
    prepared = prepare_messages([*messages, result(2)], EVERYTHING)
    results = [(turn["content"], turn["name"]) for turn in prepared if turn["role"] == "tool"]
    assert [content for content, _ in results] == [f"result{n}" for n in (1, 2, 3, 2, 1)]
    assert results[0] == ("result1", "function1")


def test_results_without_an_id_answer_the_first_open_call() -> None:
    old = [message("function", "r1", name="function1"), message("tool", "r2")]
    prepared = prepare_messages([calls(1, 2), *old], EVERYTHING)
    assert [turn["tool_call_id"] for turn in prepared[1:]] == ["call_1", "call_2"]
    assert [turn["role"] for turn in prepared[1:]] == ["tool", "tool"]


def test_nothing_of_the_request_is_changed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [Tool(name="f", parameters=schema)]
    prepared = prepare_tools(tools, EVERYTHING)
    assert prepared[0]["function"] == {"name": "f", "parameters": schema}
    assert "description" not in schema


def test_ids_of_nine_letters() -> None:
    messages = [calls(1, 2), result(1), result(2)]
    assert prepare_messages(messages, capable(tiny_ids=False)) == prepare_messages(
        messages, capable(short_ids=True)
    )
    prepared = prepare_messages(messages, capable(short_ids=True))
    ids = [call["id"] for call in prepared[0]["tool_calls"]]
    assert ids == [turn["tool_call_id"] for turn in prepared[1:]]
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
    assert ids[0] != ids[1]


def test_reasoning_goes_where_the_template_reads_it() -> None:
    turn = message("assistant", "a", reasoning="r")
    assert prepare_messages([turn], EVERYTHING)[0]["reasoning_content"] == "r"
    fields = ("reasoning_content", "thinking")
    prepared = prepare_messages([turn], capable(reasoning_fields=fields))[0]
    assert prepared["thinking"] == prepared["reasoning_content"] == "r"


def test_reasoning_in_the_content_is_split_off_as_the_template_would() -> None:
    turns = [USER, message("assistant", "<think>\nhm\n</think>\n\nyes"), MORE]
    prepared = prepare_messages(turns, probe_capabilities(source("agent")))[1]
    assert (prepared["content"], prepared["reasoning_content"]) == ("yes", "hm")
    unchanged = prepare_messages(turns, EVERYTHING)[1]["content"]
    assert unchanged == flatten_content(turns[1].content)


def test_names_stay() -> None:
    assert prepare_messages([message("user", "u", name="Ada")], EVERYTHING)[0]["name"] == "Ada"


@pytest.mark.parametrize("first", [[], [SYSTEM], [message("developer", "s")]])
def test_tools_that_are_not_rendered_go_into_the_system_message(first: list[Message]) -> None:
    """Then earlier calls and results are also written in the form that the model must use."""
    tools = [Tool(name="f"), Tool(name="g", description="G.", parameters={"type": "object"})]
    capabilities = capable(tools_rendered=False)
    assert prepare_tools(tools, capabilities) == []
    prepared = prepare_messages([*first, USER, calls(1), result(1)], capabilities, tools)
    summary = summarize(prepared)
    assert [role for role, _ in summary] == [
        first[0].role if first else "system",
        "user",
        "assistant",
        "user",
    ]
    head = summary[0][1]
    assert head.startswith("s\n\n# Tools" if first else "# Tools")
    lines = head.partition("<tools>\n")[2].partition("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in lines] == prepare_tools(tools, EVERYTHING)
    assert [content for _, content in summary[2:]] == [CALL, RESULT.format(1)]
    assert all("tool_calls" not in turn for turn in prepared)


def test_the_generic_form_is_the_output_format_of_answers() -> None:
    """The parser reads the model's earlier calls as calls."""
    arguments = ['{"city": "Zürich", "n": [1, null]}', "", " {} "]
    calls = tuple(call(number, text) for number, text in enumerate(arguments))
    turn = generic_tools.write_calls(Turn(role="assistant", text="Let me see.", tool_calls=calls))
    read = parse_tool_call_complete(turn.text, generic_tools.FORMAT)
    assert read["normal_text"].strip() == "Let me see."
    assert [parsed["name"] for parsed in read["tool_calls"]] == [call.name for call in calls]
    values = [json.loads(parsed["arguments"]) for parsed in read["tool_calls"]]
    assert values == [{"city": "Zürich", "n": [1, None]}, {}, {}]


def test_tools_without_description_and_parameters() -> None:
    [tool] = prepare_tools([Tool(name="f", strict=True)], capable(bare_tools=False))
    assert tool["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


# Every real template, with conversations that it was not made for

HARD: list[list[Message]] = [
    [USER],
    [message("developer", "d"), USER],
    [USER, ANSWER, LATER, MORE],
    [SYSTEM, LATER, USER, MORE, ANSWER, OTHER, MORE],
    [ANSWER, USER],
    [SYSTEM],
    [USER, calls(1, content="a"), result(1), MORE],
    [SYSTEM, USER, calls(1, 2), result(2), result(1), ANSWER, MORE],
    [USER, message("assistant", tool_calls=(call(1, "argument1 is no JSON"),)), result(1)],
]


def add_words(messages: list[Message]) -> list[Message]:
    """Give each message words that no template writes by itself."""
    return [
        turn
        if turn.tool_calls or turn.role == "tool"
        else message(turn.role, f"zq{flatten_content(turn.content)}{index}")
        for index, turn in enumerate(messages)
    ]


def words_of(messages: list[Message]) -> list[str]:
    words = [flatten_content(turn.content) for turn in messages if not turn.tool_calls]
    for call in (call for turn in messages for call in turn.tool_calls):
        words += [call.name, f"argument{call.id[-1]}"]
    return words


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the real templates are missing")
def test_real_templates_lose_nothing() -> None:
    for path in sorted(REAL.glob("*/*.jinja")):
        template = compile_template(path.read_text())
        capabilities = probe_capabilities(path.read_text())
        variables: dict[str, Any] = {"eos_token": "</s>", "functions": "[]", "datetime": "now"}
        variables |= {} if capabilities.no_tools == "absent" else {"tools": None}
        for messages in map(add_words, HARD):
            prepared = prepare_messages(messages, capabilities)
            variables |= {"messages": prepared, "bos_token": "<s>"}
            try:
                text = template.render(variables)
            except TemplateRejected as error:
                pytest.fail(f"{path.name}: {error.message}")
            assert [word for word in words_of(messages) if word not in text] == [], path.name


PARTS = """{%- for m in messages -%}[{{ m.role }}]
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}{% if part.type == 'thinking' %}<t>{{ part.thinking }}</t>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"""


def test_reasoning_goes_into_a_part_if_the_template_reads_it_there() -> None:
    capabilities = probe_capabilities(PARTS)
    assert capabilities.reasoning_parts
    messages = [message("user", "q"), message("assistant", "a", reasoning="hm")]
    turns = prepare_messages(messages, capabilities)
    text = compile_template(PARTS).render({"messages": turns})
    assert text == "[user]q[assistant]<t>hm</t>a"
    assert not probe_capabilities(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    ).reasoning_parts
