"""Which tools an answer may or must call.

The wire APIs differ in how they name a tool; what it means that one, some or none may be called is
the same for all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.types import Tool

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
    raise invalid_tool_choice()


def force_tool(name: str) -> DecodedToolChoice:
    return DecodedToolChoice("required", (name,), forces_named_tool=True)


def allow_tools(
    mode: str | None, names: Collection[str], declared: Sequence[Tool], at: str
) -> DecodedToolChoice:
    """Allow some of the tools, in the order in which they are declared."""
    match mode:
        case "auto" | "required":
            allowed = tuple(tool.name for tool in declared if tool.name in names)
            return DecodedToolChoice(mode, allowed)
    raise BadRequest(f"`{at}.mode` must be `auto` or `required`.", param=f"{at}.mode")


def undeclared_tool(at: str) -> BadRequest:
    return BadRequest(f"`{at}` names a tool that is not declared in `tools`.", param=at)


def duplicate_tool(name: str, at: str) -> BadRequest:
    return BadRequest(f"Two tools are named `{name}`.", param=at)


def invalid_tool_choice() -> BadRequest:
    return BadRequest(
        "`tool_choice` must be `none`, `auto`, `required`, name a tool or list `allowed_tools`.",
        param="tool_choice",
    )
