"""Chat completions: the tools of a request, and which of them the answer may or must call."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.tool_choice import (
    DecodedToolChoice,
    allow_tools,
    decode_mode,
    force_tool,
    invalid_tool_choice,
    undeclared_tool,
)
from dragoman.types import Tool


class ChatFunction(Struct):
    """A function the model may call."""

    name: openai.Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Struct):
    type: str
    function: ChatFunction | None = None


class ChatFunctionName(Struct):
    name: str


class ChatToolName(Struct):
    """A declared tool; some clients have the name right in here."""

    type: str
    function: ChatFunctionName | None = None
    name: str | None = None


ToolNames: TypeAlias = Annotated[list[ChatToolName], Meta(max_length=1024)]


class ChatAllowedTools(Struct):
    mode: str
    tools: ToolNames


class ChatToolChoice(Struct):
    """`function`: this tool. `allowed_tools`: some of them, which some clients have in here."""

    type: str
    function: ChatFunctionName | None = None
    name: str | None = None
    allowed_tools: ChatAllowedTools | None = None
    mode: str | None = None
    tools: ToolNames | None = None


def decode_tools(said: list[ChatTool] | None) -> tuple[Tool, ...]:
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


def decode_tool_choice(
    said: str | ChatToolChoice | None, declared: tuple[Tool, ...]
) -> DecodedToolChoice:
    match said:
        case None:
            return DecodedToolChoice("auto")
        case str():
            return decode_mode(said, bool(declared))
        case ChatToolChoice(type="function"):
            return force_tool(_name(said, _names(declared), "tool_choice"))
        case ChatToolChoice(type="allowed_tools"):
            return _allowed(said, declared)
    raise invalid_tool_choice()


def _allowed(said: ChatToolChoice, declared: tuple[Tool, ...]) -> DecodedToolChoice:
    at, mode, listed = "tool_choice", said.mode, said.tools
    if said.allowed_tools is not None:
        at, mode, listed = f"{at}.allowed_tools", said.allowed_tools.mode, said.allowed_tools.tools
    if not listed:
        raise BadRequest(f"`{at}.tools` must list a tool.", param=f"{at}.tools")
    known = _names(declared)
    names = {_name(tool, known, f"{at}.tools[{i}]") for i, tool in enumerate(listed)}
    return allow_tools(mode, names, declared, at)


def _names(tools: tuple[Tool, ...]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)


def _name(said: ChatToolName | ChatToolChoice, declared: frozenset[str], at: str) -> str:
    if said.type != "function":
        raise BadRequest(f"`{at}` must be of type `function`.", param=at)
    name = said.name if said.function is None else said.function.name
    if name is None:
        raise BadRequest(f"`{at}` must name a tool.", param=at)
    if name not in declared:
        raise undeclared_tool(at)
    return name
