"""Chat completions: the tools of a request, and which of them the answer may or must call."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols import openai
from dragoman.types import Tool

Mode: TypeAlias = Literal["auto", "none", "required"]


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


class Chosen(Struct):
    """What a `tool_choice` comes down to."""

    mode: Mode
    callable: tuple[str, ...] | None = None
    named: bool = False


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
        case None | "auto":
            return Chosen("auto")
        case "none":
            return Chosen("none")
        case "required":
            if not declared:
                raise BadRequest("`tool_choice: required` needs `tools`.", param="tool_choice")
            return Chosen("required")
        case ToolChoice(type="function"):
            name = _name(said, "tool_choice")
            return Chosen("required", _known([(name, "tool_choice")], declared), named=True)
        case ToolChoice(type="allowed_tools"):
            return _allowed(said, declared)
    raise BadRequest(
        "`tool_choice` must be `none`, `auto`, `required`, name a tool or list `allowed_tools`.",
        param="tool_choice",
    )


def _allowed(said: ToolChoice, declared: tuple[Tool, ...]) -> Chosen:
    at, mode, listed = "tool_choice", said.mode, said.tools
    if said.allowed_tools is not None:
        at, mode, listed = f"{at}.allowed_tools", said.allowed_tools.mode, said.allowed_tools.tools
    if not listed:
        raise BadRequest(f"`{at}.tools` must list a tool.", param=f"{at}.tools")
    named = [(_name(one, f"{at}.tools[{i}]"), f"{at}.tools[{i}]") for i, one in enumerate(listed)]
    match mode:
        case "auto" | "required":
            return Chosen(mode, _known(named, declared))
    raise BadRequest(f"`{at}.mode` must be `auto` or `required`.", param=f"{at}.mode")


def _name(said: ToolName | ToolChoice, at: str) -> str:
    if said.type != "function":
        raise BadRequest(f"`{at}` must be of type `function`.", param=at)
    name = said.name if said.function is None else said.function.name
    if name is None:
        raise BadRequest(f"`{at}` must name a tool.", param=at)
    return name


def _known(named: list[tuple[str, str]], declared: tuple[Tool, ...]) -> tuple[str, ...]:
    """The tools that were named, in the order in which they were declared."""
    names = [tool.name for tool in declared]
    for name, at in named:
        if name not in names:
            raise BadRequest(f"`{at}` names a tool that is not declared in `tools`.", param=at)
    wanted = {name for name, _ in named}
    return tuple(name for name in names if name in wanted)
