"""The tools of a chat completion request, and which of them the answer may or must call."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.tool_choice import (
    DecodedToolChoice,
    allow_tools,
    decode_mode,
    force_tool,
    make_invalid_tool_choice_error,
    make_undeclared_tool_error,
)
from dragoman.types import Tool


class ChatFunctionCall(Struct):
    name: openai.Name
    arguments: str


class ChatFunctionName(Struct):
    name: str


class ChatToolName(Struct):
    """A declared tool; some clients send the name at this level."""

    type: str
    function: ChatFunctionName | None = None
    name: str | None = None


ChatToolNames: TypeAlias = Annotated[list[ChatToolName], Meta(max_length=1024)]


class ChatAllowedTools(Struct):
    mode: str
    tools: ChatToolNames


class ChatToolChoice(Struct):
    """`function`: one tool. `allowed_tools`: some tools; some clients list them at this level."""

    type: str
    function: ChatFunctionName | None = None
    name: str | None = None
    allowed_tools: ChatAllowedTools | None = None
    mode: str | None = None
    tools: ChatToolNames | None = None


def decode_tool_choice(
    choice: str | ChatToolChoice | None, declared: tuple[Tool, ...]
) -> DecodedToolChoice:
    match choice:
        case None:
            return DecodedToolChoice("auto")
        case str():
            return decode_mode(choice, bool(declared))
        case ChatToolChoice(type="function"):
            return force_tool(_decode_name(choice, _get_names(declared), "tool_choice"))
        case ChatToolChoice(type="allowed_tools"):
            return _decode_allowed_tools(choice, declared)
    raise make_invalid_tool_choice_error()


def _decode_allowed_tools(choice: ChatToolChoice, declared: tuple[Tool, ...]) -> DecodedToolChoice:
    path, mode, tools = "tool_choice", choice.mode, choice.tools
    if choice.allowed_tools is not None:
        path, mode = f"{path}.allowed_tools", choice.allowed_tools.mode
        tools = choice.allowed_tools.tools
    if not tools:
        raise BadRequest(f"`{path}.tools` must list a tool.", param=f"{path}.tools")
    known = _get_names(declared)
    names = {_decode_name(tool, known, f"{path}.tools[{i}]") for i, tool in enumerate(tools)}
    return allow_tools(mode, names, declared, path)


def _get_names(tools: tuple[Tool, ...]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)


def _decode_name(tool: ChatToolName | ChatToolChoice, declared: frozenset[str], path: str) -> str:
    if tool.type != "function":
        raise BadRequest(f"`{path}` must be of type `function`.", param=path)
    name = tool.name if tool.function is None else tool.function.name
    if name is None:
        raise BadRequest(f"`{path}` must name a tool.", param=path)
    if name not in declared:
        raise make_undeclared_tool_error(path)
    return name
