"""Chat completions: the tools of a request, and which of them the answer may or must call."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.tool_choice import Chosen, by_word, one, some, undeclared, unreadable
from dragoman.types import Tool


class Function(Struct):
    """A function the model may call."""

    name: openai.Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct):
    type: str
    function: Function | None = None


class FunctionName(Struct):
    name: str


class ToolName(Struct):
    """A declared tool; some clients have the name right in here."""

    type: str
    function: FunctionName | None = None
    name: str | None = None


ToolNames: TypeAlias = Annotated[list[ToolName], Meta(max_length=1024)]


class AllowedTools(Struct):
    mode: str
    tools: ToolNames


class ToolChoice(Struct):
    """`function`: this tool. `allowed_tools`: some of them, which some clients have in here."""

    type: str
    function: FunctionName | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None
    mode: str | None = None
    tools: ToolNames | None = None


def tools(said: list[FunctionTool] | None) -> tuple[Tool, ...]:
    found: dict[str, Tool] = {}
    for i, tool in enumerate(said or ()):
        at = f"tools[{i}]"
        one = tool.function
        if tool.type != "function" or one is None:
            raise BadRequest(f"`{at}` must be of type `function`.", param=at)
        if one.name in found:
            raise BadRequest(f"Two tools are called `{one.name}`.", param=f"{at}.function.name")
        found[one.name] = Tool(
            name=one.name,
            description=one.description,
            parameters=one.parameters,
            strict=one.strict,
            param=f"{at}.function.parameters",
        )
    return tuple(found.values())


def chosen(said: str | ToolChoice | None, declared: tuple[Tool, ...]) -> Chosen:
    match said:
        case None:
            return Chosen("auto")
        case str():
            return by_word(said, bool(declared))
        case ToolChoice(type="function"):
            return one(_name(said, _names(declared), "tool_choice"))
        case ToolChoice(type="allowed_tools"):
            return _allowed(said, declared)
    raise unreadable()


def _allowed(said: ToolChoice, declared: tuple[Tool, ...]) -> Chosen:
    at, mode, listed = "tool_choice", said.mode, said.tools
    if said.allowed_tools is not None:
        at, mode, listed = f"{at}.allowed_tools", said.allowed_tools.mode, said.allowed_tools.tools
    if not listed:
        raise BadRequest(f"`{at}.tools` must list a tool.", param=f"{at}.tools")
    known = _names(declared)
    names = {_name(tool, known, f"{at}.tools[{i}]") for i, tool in enumerate(listed)}
    return some(mode, names, declared, at)


def _names(tools: tuple[Tool, ...]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)


def _name(said: ToolName | ToolChoice, declared: frozenset[str], at: str) -> str:
    if said.type != "function":
        raise BadRequest(f"`{at}` must be of type `function`.", param=at)
    name = said.name if said.function is None else said.function.name
    if name is None:
        raise BadRequest(f"`{at}` must name a tool.", param=at)
    if name not in declared:
        raise undeclared(at)
    return name
