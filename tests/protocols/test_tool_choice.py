"""A choice of many tools is no more work than the choice and the tools together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dragoman.protocols.chat import tools as chat_tools
from dragoman.protocols.responses.decode import tools
from dragoman.protocols.responses.types import ToolOrigin
from dragoman.types import Tool
from tests.support.work_counter import count_lines

Choice = Callable[[], object]


class Label(str):
    """One that is seen to be compared."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def allowed(*listed: dict[str, str]) -> dict[str, object]:
    return {"type": "allowed_tools", "mode": "auto", "tools": [*listed]}


def offered(names: int, labels: int = 0) -> tools.ResponsesToolSet:
    known = {
        f"n__f{at}": ToolOrigin(kind="function", name=f"f{at}", namespace="n")
        for at in range(names)
    }
    declared = {name: Tool(name=name) for name in known}
    return tools.ResponsesToolSet(declared, known, [Label(f"l{at}") for at in range(labels)])


def in_chat(n: int) -> Choice:
    declared = tuple(Tool(name=f"f{at}") for at in range(n))
    named = [chat_tools.ChatToolName("function", name=tool.name) for tool in declared]
    choice = chat_tools.ChatToolChoice("allowed_tools", mode="auto", tools=named)
    return lambda: chat_tools.decode_tool_choice(choice, declared)


def of_a_namespace(n: int) -> Choice:
    """Listed again and again, though it is all of them."""
    choice, declared = allowed(*[{"type": "namespace", "name": "n"}] * n), offered(n)
    return lambda: tools.decode_tool_choice(choice, declared, ())


def of_many_servers(n: int) -> Choice:
    listed = [{"type": "mcp", "server_label": f"l{at}"} for at in range(n)]
    declared = offered(0, n)
    return lambda: tools.decode_tool_choice(allowed(*listed), declared, ())


def of_a_server(n: int) -> Choice:
    remote = [Tool(name=f"l0__f{at}") for at in range(n)]
    listed = [{"type": "mcp", "server_label": "l0", "name": f"f{at}"} for at in range(n)]
    declared = offered(0, 2)
    return lambda: tools.decode_tool_choice(allowed(*listed), declared, remote)


@pytest.mark.parametrize("choice", [in_chat, of_a_namespace, of_many_servers, of_a_server])
def test_twice_the_tools_are_twice_the_work(choice: Callable[[int], Choice]) -> None:
    assert count_lines(choice(256)) < 2.2 * count_lines(choice(128))


def test_a_server_is_known_by_the_longest_label_that_fits() -> None:
    declared = tools.ResponsesToolSet(server_labels=["a", "a__b", "c"])
    remote = [Tool(name=name) for name in ("a__x", "a__b__x", "c__x", "d__x")]
    for label, wanted in (("a", ("a__x",)), ("a__b", ("a__b__x",)), ("c", ("c__x",))):
        choice = allowed({"type": "mcp", "server_label": label})
        assert tools.decode_tool_choice(choice, declared, remote)[0].allowed_tools == wanted
    both = allowed({"type": "mcp", "server_label": "a", "name": "b__x"})
    assert tools.decode_tool_choice(both, declared, remote)[0].allowed_tools == ()
