"""Tools that are functions with a JSON schema, and which tools an answer may or must call.

OpenAI and Ollama declare functions alike. The wire APIs differ in how they name a tool, but not in
what a choice of one, some or no tools means.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import make_missing_field_error
from dragoman.types import Json, Tool

ToolChoiceMode: TypeAlias = Literal["auto", "none", "required"]


class DecodedToolChoice(Struct):
    """A `tool_choice`, whatever the wire API."""

    mode: ToolChoiceMode
    allowed_tools: tuple[str, ...] | None = None
    forces_named_tool: bool = False


def decode_mode(mode: str, has_tools: bool) -> DecodedToolChoice:
    """Decode a choice that names no tools."""
    match mode:
        case "auto" | "none":
            return DecodedToolChoice(mode)
        case "required":
            if not has_tools:
                raise BadRequest("`tool_choice: required` needs `tools`.", param="tool_choice")
            return DecodedToolChoice("required")
    raise make_invalid_tool_choice_error()


def force_tool(name: str) -> DecodedToolChoice:
    return DecodedToolChoice("required", (name,), forces_named_tool=True)


def allow_tools(
    mode: str | None, names: Collection[str], declared: Sequence[Tool], path: str
) -> DecodedToolChoice:
    """Allow some of the tools, in the order in which they are declared."""
    match mode:
        case "auto" | "required":
            allowed = tuple(tool.name for tool in declared if tool.name in names)
            return DecodedToolChoice(mode, allowed)
    raise BadRequest(f"`{path}.mode` must be `auto` or `required`.", param=f"{path}.mode")


def make_undeclared_tool_error(path: str) -> BadRequest:
    return BadRequest(f"`{path}` names a tool that is not declared in `tools`.", param=path)


def make_duplicate_tool_error(name: str, path: str) -> BadRequest:
    return BadRequest(f"Two tools are named `{name}`.", param=path)


def make_invalid_tool_choice_error() -> BadRequest:
    return BadRequest(
        "`tool_choice` must be `none`, `auto`, `required`, name a tool or list `allowed_tools`.",
        param="tool_choice",
    )


class ChatFunction(Struct):
    """A function the model may call."""

    name: openai.Name
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


class ChatTool(Struct):
    type: str
    function: ChatFunction | None = None


def decode_tools(tools: Sequence[ChatTool] | None) -> tuple[Tool, ...]:
    decoded: dict[str, Tool] = {}
    for i, tool in enumerate(tools or ()):
        path = f"tools[{i}]"
        function = tool.function
        if tool.type != "function":
            raise BadRequest(f"`{path}` must be of type `function`.", param=path)
        if function is None:
            raise make_missing_field_error(f"{path}.function")
        if function.name in decoded:
            raise make_duplicate_tool_error(function.name, f"{path}.function.name")
        decoded[function.name] = Tool(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            strict=function.strict,
            param=f"{path}.function.parameters",
        )
    return tuple(decoded.values())
