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


class Chosen(Struct):
    """What a `tool_choice` comes down to."""

    mode: Mode
    callable: tuple[str, ...] | None = None
    named: bool = False


def by_word(said: str, tools: bool) -> Chosen:
    """A choice that is one word; `tools`: there are some to choose from."""
    match said:
        case "auto" | "none":
            return Chosen(said)
        case "required":
            if not tools:
                raise BadRequest("`tool_choice: required` needs `tools`.", param="tool_choice")
            return Chosen("required")
    raise unreadable()


def one(name: str) -> Chosen:
    """This very tool."""
    return Chosen("required", (name,), named=True)


def some(mode: str | None, names: Collection[str], declared: Sequence[Tool], at: str) -> Chosen:
    """Some of the tools, in the order in which they were declared."""
    match mode:
        case "auto" | "required":
            return Chosen(mode, tuple(tool.name for tool in declared if tool.name in names))
    raise BadRequest(f"`{at}.mode` must be `auto` or `required`.", param=f"{at}.mode")


def undeclared(at: str) -> BadRequest:
    return BadRequest(f"`{at}` names a tool that is not declared in `tools`.", param=at)


def unreadable() -> BadRequest:
    return BadRequest(
        "`tool_choice` must be `none`, `auto`, `required`, name a tool or list `allowed_tools`.",
        param="tool_choice",
    )
