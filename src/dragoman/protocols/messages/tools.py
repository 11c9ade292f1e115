"""The tools of a Messages request, and which of them the answer may or must call.

A tool of the client's own brings its schema. Others are known by their type only: those that the
client runs get the schemas that models of this API were trained with; those that the vendor's
servers run are dropped, with a warning, because an agent sends them to every model.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import require
from dragoman.protocols.shared.tool_choice import (
    DecodedToolChoice,
    force_tool,
    make_duplicate_tool_error,
    make_undeclared_tool_error,
)
from dragoman.types import Json, Tool

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
LINE_RANGE = {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}
# the fields of tools that view and edit files
FILE_FIELDS: dict[str, Json] = {
    "path": STRING,
    "view_range": LINE_RANGE,
    "file_text": STRING,
    "old_str": STRING,
    "new_str": STRING,
    "insert_line": INTEGER,
}


class MessagesTool(Struct):
    """A tool with a schema, or of a known type."""

    name: openai.Name | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Json] | None = None
    strict: bool | None = None
    # Accepted and without effect here.
    cache_control: Json = None


class MessagesToolChoice(Struct):
    """`auto`, `any`, `none`, or `tool` with a name."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesToolSet(Struct):
    """The tools that the model may call, and warnings about those that are dropped."""

    tools: tuple[Tool, ...]
    dropped_names: frozenset[str]
    warnings: tuple[str, ...]


def decode_tools(tools: list[MessagesTool] | None) -> MessagesToolSet:
    decoded: dict[str, Tool] = {}
    dropped_names: list[str] = []
    warnings: list[str] = []
    for i, fields in enumerate(tools or ()):
        path = f"tools[{i}]"
        tool = _decode_tool(fields, path)
        if tool is None:
            dropped_names.append(fields.name or "")
            warnings.append(f"`{path}` is ignored: this server cannot run `{fields.type}`.")
            continue
        if tool.name in decoded:
            raise make_duplicate_tool_error(tool.name, f"{path}.name")
        decoded[tool.name] = tool
    return MessagesToolSet(tuple(decoded.values()), frozenset(dropped_names), tuple(warnings))


def _decode_tool(tool: MessagesTool, path: str) -> Tool | None:
    kind = tool.type or "custom"
    if kind == "custom":
        return _decode_custom(tool, path)
    make = next((make for prefix, make in CLIENT_TOOLS.items() if kind.startswith(prefix)), None)
    if make is None:
        return None
    name, description, parameters = make(kind)
    return Tool(
        name=tool.name or name,
        description=description,
        parameters=parameters,
        strict=tool.strict,
        param=path,
    )


def _decode_custom(tool: MessagesTool, path: str) -> Tool:
    return Tool(
        name=require(tool.name, f"{path}.name"),
        description=tool.description,
        parameters=require(tool.input_schema, f"{path}.input_schema"),
        strict=tool.strict,
        param=f"{path}.input_schema",
    )


def _make_schema(required: list[str], **properties: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": required}


def _make_bash_tool(kind: str) -> tuple[str, str, Json]:
    description = "Runs a command in a bash shell that stays open. `restart` starts a new shell."
    return "bash", description, _make_schema([], command=STRING, restart={"type": "boolean"})


def _make_text_editor_tool(kind: str) -> tuple[str, str, Json]:
    old = kind in ("text_editor_20241022", "text_editor_20250124")
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if old else [])]
    insert_text = {} if old else {"insert_text": STRING}
    name = "str_replace_editor" if old else "str_replace_based_edit_tool"
    description = (
        "Views and edits files. `view` shows a file (`view_range`: first and last line) or a "
        "directory, `create` writes `file_text`, `str_replace` puts `new_str` in place of "
        f"`old_str`, `insert` puts `{'new_str' if old else 'insert_text'}` behind `insert_line`."
    )
    parameters = _make_schema(
        ["command", "path"],
        command={"type": "string", "enum": commands},
        **FILE_FIELDS,
        **insert_text,
    )
    return name, description, parameters


def _make_memory_tool(kind: str) -> tuple[str, str, Json]:
    commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
    description = (
        "Keeps notes in files under /memories that outlast the conversation: `view`, `create`, "
        "`str_replace`, `insert` and `delete` take a `path`, `rename` an `old_path` and a "
        "`new_path`."
    )
    parameters = _make_schema(
        ["command"],
        command={"type": "string", "enum": commands},
        **FILE_FIELDS,
        insert_text=STRING,
        old_path=STRING,
        new_path=STRING,
    )
    return "memory", description, parameters


# By the prefix of their types, before the date.
CLIENT_TOOLS = {
    "bash_2": _make_bash_tool,
    "text_editor_2": _make_text_editor_tool,
    "memory_2": _make_memory_tool,
}


def decode_tool_choice(
    choice: MessagesToolChoice | None, tools: MessagesToolSet
) -> tuple[DecodedToolChoice, tuple[str, ...]]:
    """Return the choice, and warnings about tools in it that are dropped."""
    match choice.type if choice is not None else "auto":
        case "auto":
            return DecodedToolChoice("auto"), ()
        case "none":
            return DecodedToolChoice("none"), ()
        case "any" if tools.tools:
            return DecodedToolChoice("required"), ()
        case "any" if tools.dropped_names:
            warning = "`tool_choice` has no effect: this server can run none of the tools."
            return DecodedToolChoice("auto"), (warning,)
        case "any":
            raise BadRequest("`tool_choice: any` needs `tools`.", param="tool_choice")
        case "tool":
            return _decode_named_tool(choice.name if choice is not None else None, tools)
    raise BadRequest(
        "`tool_choice.type` must be `auto`, `any`, `tool` or `none`.", param="tool_choice.type"
    )


def _decode_named_tool(
    name: str | None, tools: MessagesToolSet
) -> tuple[DecodedToolChoice, tuple[str, ...]]:
    path = "tool_choice.name"
    name = require(name, path)
    if any(tool.name == name for tool in tools.tools):
        return force_tool(name), ()
    if name in tools.dropped_names:
        warning = "`tool_choice` has no effect: this server cannot run its tool."
        return DecodedToolChoice("auto"), (warning,)
    raise make_undeclared_tool_error(path)
