"""Decoding a choice of many tools takes time linear in the choice and the tools."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dragoman.protocols.chat import tools as chat_tools
from dragoman.protocols.responses.decode import tools
from dragoman.protocols.responses.types import ToolOrigin
from dragoman.types import Tool
from tests.support.work_counter import count_lines

Choice = Callable[[], object]


class ComparedLabel(str):
    """A label whose comparisons are counted, because they run Python code."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def make_choice(*tools: dict[str, str]) -> dict[str, object]:
    return {"type": "allowed_tools", "mode": "auto", "tools": [*tools]}


def declare(count: int, server_count: int = 0) -> tools.ResponsesToolSet:
    origins = {
        f"n__f{i}": ToolOrigin(kind="function", name=f"f{i}", namespace="n") for i in range(count)
    }
    declared = {name: Tool(name=name) for name in origins}
    return tools.ResponsesToolSet(
        declared, origins, [ComparedLabel(f"l{i}") for i in range(server_count)]
    )


def choose_in_chat(count: int) -> Choice:
    declared = tuple(Tool(name=f"f{i}") for i in range(count))
    names = [chat_tools.ChatToolName("function", name=tool.name) for tool in declared]
    choice = chat_tools.ChatToolChoice("allowed_tools", mode="auto", tools=names)
    return lambda: chat_tools.decode_tool_choice(choice, declared)


def choose_namespace(count: int) -> Choice:
    """Choose a namespace that is listed again and again."""
    choice, declared = make_choice(*[{"type": "namespace", "name": "n"}] * count), declare(count)
    return lambda: tools.decode_tool_choice(choice, declared, ())


def choose_many_servers(count: int) -> Choice:
    entries = [{"type": "mcp", "server_label": f"l{i}"} for i in range(count)]
    declared = declare(0, count)
    return lambda: tools.decode_tool_choice(make_choice(*entries), declared, ())


def choose_server_tools(count: int) -> Choice:
    remote = [Tool(name=f"l0__f{i}") for i in range(count)]
    entries = [{"type": "mcp", "server_label": "l0", "name": f"f{i}"} for i in range(count)]
    declared = declare(0, 2)
    return lambda: tools.decode_tool_choice(make_choice(*entries), declared, remote)


@pytest.mark.parametrize(
    "choice", [choose_in_chat, choose_namespace, choose_many_servers, choose_server_tools]
)
def test_decoding_time_is_linear_in_the_number_of_tools(choice: Callable[[int], Choice]) -> None:
    assert count_lines(choice(256)) < 2.2 * count_lines(choice(128))


def test_the_longest_matching_label_names_the_server() -> None:
    declared = tools.ResponsesToolSet(server_labels=["a", "a__b", "c"])
    remote = [Tool(name=name) for name in ("a__x", "a__b__x", "c__x", "d__x")]
    for label, expected in (("a", ("a__x",)), ("a__b", ("a__b__x",)), ("c", ("c__x",))):
        choice = make_choice({"type": "mcp", "server_label": label})
        assert tools.decode_tool_choice(choice, declared, remote)[0].allowed_tools == expected
    choice = make_choice({"type": "mcp", "server_label": "a", "name": "b__x"})
    assert tools.decode_tool_choice(choice, declared, remote)[0].allowed_tools == ()
