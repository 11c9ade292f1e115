"""The tools of a request, and which of them the answer may or must call.

A tool of the client's own brings its schema. Some are known by their type only: those that the
client runs have the schemas that models of this dialect were taught; those that run at the vendor's
are left out, with a warning, because an agent offers them to every model.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.tool_choice import DecodedToolChoice, force_tool, undeclared_tool
from dragoman.types import Tool

TEXT = {"type": "string"}
LINE = {"type": "integer"}
RANGE = {"type": "array", "items": LINE, "minItems": 2, "maxItems": 2}


class MessagesTool(Struct):
    """A tool: with a schema, or of a type that is known."""

    name: openai.Name | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    # Accepted and without effect here.
    cache_control: Any = None


class MessagesToolChoice(Struct):
    """`auto`, `any`, `none`, or `tool` with a name."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class DecodedTools(Struct):
    """The tools that can be offered, and what is to be said of the others."""

    tools: tuple[Tool, ...]
    dropped_names: frozenset[str]
    warnings: tuple[str, ...]


def decode_tools(said: list[MessagesTool] | None) -> DecodedTools:
    found: dict[str, Tool] = {}
    left_out: list[str] = []
    warnings: list[str] = []
    for i, param in enumerate(said or ()):
        at = f"tools[{i}]"
        tool = _tool(param, at)
        if tool is None:
            left_out.append(param.name or "")
            warnings.append(f"`{at}` is left out: `{param.type}` cannot be run here.")
            continue
        if tool.name in found:
            raise BadRequest(f"Two tools are called `{tool.name}`.", param=f"{at}.name")
        found[tool.name] = tool
    return DecodedTools(tuple(found.values()), frozenset(left_out), tuple(warnings))


def _tool(said: MessagesTool, at: str) -> Tool | None:
    kind = said.type or "custom"
    if kind == "custom":
        return _custom(said, at)
    own = next((make for prefix, make in KNOWN.items() if kind.startswith(prefix)), None)
    if own is None:
        return None
    name, description, parameters = own(kind)
    return Tool(
        name=said.name or name,
        description=description,
        parameters=parameters,
        strict=said.strict,
        param=at,
    )


def _custom(said: MessagesTool, at: str) -> Tool:
    for field in ("name", "input_schema"):
        if getattr(said, field) is None:
            raise BadRequest(
                f"`{at}.{field}` is required.",
                param=f"{at}.{field}",
                code="missing_required_parameter",
            )
    return Tool(
        name=said.name or "",
        description=said.description,
        parameters=said.input_schema,
        strict=said.strict,
        param=f"{at}.input_schema",
    )


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _bash(kind: str) -> tuple[str, str, Any]:
    words = "Runs a command in a bash shell that stays open. `restart` starts a new shell."
    return "bash", words, _schema([], command=TEXT, restart={"type": "boolean"})


def _text_editor(kind: str) -> tuple[str, str, Any]:
    old = kind in ("text_editor_20241022", "text_editor_20250124")
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if old else [])]
    inserted = {} if old else {"insert_text": TEXT}
    name = "str_replace_editor" if old else "str_replace_based_edit_tool"
    words = (
        "Views and edits files. `view` shows a file (`view_range`: first and last line) or a "
        "directory, `create` writes `file_text`, `str_replace` puts `new_str` in place of "
        f"`old_str`, `insert` puts `{'new_str' if old else 'insert_text'}` behind `insert_line`."
    )
    parameters = _schema(
        ["command", "path"],
        command={"type": "string", "enum": commands},
        path=TEXT,
        view_range=RANGE,
        file_text=TEXT,
        old_str=TEXT,
        new_str=TEXT,
        insert_line=LINE,
        **inserted,
    )
    return name, words, parameters


def _memory(kind: str) -> tuple[str, str, Any]:
    commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
    words = (
        "Keeps notes in files under /memories that outlast the conversation: `view`, `create`, "
        "`str_replace`, `insert` and `delete` take a `path`, `rename` an `old_path` and a "
        "`new_path`."
    )
    parameters = _schema(
        ["command"],
        command={"type": "string", "enum": commands},
        path=TEXT,
        view_range=RANGE,
        file_text=TEXT,
        old_str=TEXT,
        new_str=TEXT,
        insert_line=LINE,
        insert_text=TEXT,
        old_path=TEXT,
        new_path=TEXT,
    )
    return "memory", words, parameters


# by how their types begin; a date follows
KNOWN = {"bash_2": _bash, "text_editor_2": _text_editor, "memory_2": _memory}


def decode_tool_choice(
    said: MessagesToolChoice | None, offer: DecodedTools
) -> tuple[DecodedToolChoice, tuple[str, ...]]:
    """The choice, and what was chosen that cannot be had, a sentence each."""
    match said.type if said is not None else "auto":
        case "auto":
            return DecodedToolChoice("auto"), ()
        case "none":
            return DecodedToolChoice("none"), ()
        case "any" if offer.tools:
            return DecodedToolChoice("required"), ()
        case "any" if offer.dropped_names:
            return DecodedToolChoice("auto"), (
                "`tool_choice` has no effect: all tools are left out.",
            )
        case "any":
            raise BadRequest("`tool_choice: any` needs `tools`.", param="tool_choice")
        case "tool":
            return _named(said.name if said is not None else None, offer)
    raise BadRequest(
        "`tool_choice.type` must be `auto`, `any`, `tool` or `none`.", param="tool_choice.type"
    )


def _named(name: str | None, offer: DecodedTools) -> tuple[DecodedToolChoice, tuple[str, ...]]:
    at = "tool_choice.name"
    if name is None:
        raise BadRequest(f"`{at}` is required.", param=at, code="missing_required_parameter")
    if any(tool.name == name for tool in offer.tools):
        return force_tool(name), ()
    if name in offer.dropped_names:
        return DecodedToolChoice("auto"), ("`tool_choice` has no effect: its tool is left out.",)
    raise undeclared_tool(at)
