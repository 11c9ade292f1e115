"""Which tools an answer may or must call: what a `tool_choice` comes down to.

Dialects differ in how they name a tool; what it means that one, some or none may be called is
alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.types import Tool

Mode: TypeAlias = Literal["auto", "none", "required"]


class DecodedToolChoice(Struct):
    """What a `tool_choice` comes down to."""

    mode: Mode
    allowed_tools: tuple[str, ...] | None = None
    forces_named_tool: bool = False


def decode_mode(said: str, tools: bool) -> DecodedToolChoice:
    """A choice that is one word; `tools`: there are some to choose from."""
    match said:
        case "auto" | "none":
            return DecodedToolChoice(said)
        case "required":
            if not tools:
                raise BadRequest("`tool_choice: required` needs `tools`.", param="tool_choice")
            return DecodedToolChoice("required")
    raise invalid_tool_choice()


def force_tool(name: str) -> DecodedToolChoice:
    """This very tool."""
    return DecodedToolChoice("required", (name,), forces_named_tool=True)


def allow_tools(
    mode: str | None, names: Collection[str], declared: Sequence[Tool], at: str
) -> DecodedToolChoice:
    """Some of the tools, in the order in which they were declared."""
    match mode:
        case "auto" | "required":
            return DecodedToolChoice(
                mode, tuple(tool.name for tool in declared if tool.name in names)
            )
    raise BadRequest(f"`{at}.mode` must be `auto` or `required`.", param=f"{at}.mode")


def undeclared_tool(at: str) -> BadRequest:
    return BadRequest(f"`{at}` names a tool that is not declared in `tools`.", param=at)


def invalid_tool_choice() -> BadRequest:
    return BadRequest(
        "`tool_choice` must be `none`, `auto`, `required`, name a tool or list `allowed_tools`.",
        param="tool_choice",
    )
