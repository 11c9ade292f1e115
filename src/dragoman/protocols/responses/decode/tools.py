"""The tools of a Responses request, and which of them the answer may or must call.

The model knows each tool by one flat name. A tool of a namespace has the namespace's name in front,
so that its name does not depend on what else is declared; `ToolOrigin` leads back to the client's
name. Tools that only other servers can run are dropped, with a warning. `mcp` tools are
servers that must list their tools first: the caller requests the lists and passes them as `remote`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.protocols.responses.decode.items import RawTools
from dragoman.protocols.responses.types import ToolOrigin, UniqueNames
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import check_depth, convert_value, make_missing_field_error
from dragoman.protocols.shared.response_format import GrammarText
from dragoman.protocols.shared.tool_choice import (
    DecodedToolChoice,
    allow_tools,
    decode_mode,
    force_tool,
    make_duplicate_tool_error,
    make_invalid_tool_choice_error,
    make_undeclared_tool_error,
)
from dragoman.types import Constraint, Json, Tool

MAX_TOOLS = 4096
_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


class ResponsesFunctionTool(Struct):
    name: openai.Name
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


class CustomToolFormat(Struct):
    """What the input of a custom tool must satisfy: `text`, or a `grammar`."""

    type: str
    syntax: str | None = None
    definition: GrammarText | None = None


class CustomTool(Struct):
    name: openai.Name
    description: str | None = None
    format: CustomToolFormat | None = None


class ToolNamespace(Struct):
    name: openai.Name
    tools: RawTools
    description: str | None = None


class ResponsesToolName(Struct):
    """A declared tool, or all tools of a server or a namespace."""

    type: str
    name: str | None = None
    namespace: str | None = None
    server_label: str | None = None


class ResponsesToolChoice(ResponsesToolName):
    mode: str | None = None
    tools: Annotated[list[ResponsesToolName], Meta(max_length=1024)] | None = None


class ResponsesToolSet(Struct):
    """The tools that a request declares, by the flat names that the model knows."""

    tools: dict[str, Tool] = field(default_factory=dict)
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    server_labels: list[str] = field(default_factory=list)  # of servers that have more tools
    dropped_types: list[str] = field(default_factory=list)  # types that cannot run here
    list_count: int = 0  # lists of tools so far
    _names: UniqueNames = field(default_factory=UniqueNames)
    _flat_names: dict[tuple[str | None, str], str] = field(default_factory=dict)
    # Flat names by the bare name; None for a name in several namespaces.
    _by_bare_name: dict[str, str | None] = field(default_factory=dict)
    _last_list: dict[str, int] = field(default_factory=dict)  # that declared a tool

    @property
    def warnings(self) -> list[str]:
        types = dict.fromkeys(self.dropped_types)
        return [
            f"Tools of type `{kind}` are ignored: this server cannot run them." for kind in types
        ]

    def get_flat_name(self, namespace: str | None, name: str) -> str:
        """Return the flat name of a tool, declared or not; clients may omit its namespace."""
        flat = self._flat_names.get((namespace, name))
        if flat is None and namespace is None:
            flat = self._by_bare_name.get(name)
        return flat or join_name(namespace, name)

    def add(self, tool: Tool, origin: ToolOrigin) -> str:
        """Add a tool, or replace one of an earlier list; return its flat name."""
        key = origin.namespace, origin.name
        flat = self._flat_names.get(key)
        if flat is not None and self._last_list[flat] == self.list_count:
            path = tool.param.rpartition(".")[0]
            raise make_duplicate_tool_error(origin.name, f"{path}.name")
        if flat is None:
            if len(self.tools) == MAX_TOOLS:
                raise BadRequest(f"There are more than {MAX_TOOLS:,} tools.", param="tools")
            flat = self._flat_names[key] = self._names.make_unique(join_name(*key))
            self._by_bare_name[origin.name] = None if origin.name in self._by_bare_name else flat
        self.tools[flat] = replace(tool, name=flat)
        self.origins[flat] = origin
        self._last_list[flat] = self.list_count
        return flat


def join_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


def make_remote_name(server_label: str, name: str) -> str:
    """Return the flat name of a remote server's tool."""
    return join_name(server_label, _INVALID_CHARACTER.sub("_", name))


def decode_tools(
    tools: RawTools | None, added: Iterable[tuple[RawTools, str]] = ()
) -> ResponsesToolSet:
    """Decode the tools of a request, and those that items add, each list with its path.

    A tool that one list declares twice is an error; a later list replaces a tool.
    """
    declared = ResponsesToolSet()
    for raw_tools, path in ((tools or [], "tools"), *added):
        for i, tool in enumerate(raw_tools):
            _declare(declared, tool, f"{path}[{i}]")
        declared.list_count += 1
    return declared


def _declare(
    declared: ResponsesToolSet, tool: dict[str, Json], path: str, namespace: str | None = None
) -> str | None:
    """Add a tool of any type; return its flat name if the model may call it."""
    check_depth(tool, path)
    kind = get_type(tool, path)
    match kind:
        case "function":
            decoded = _decode_function(convert_value(tool, ResponsesFunctionTool, path), path)
            origin = ToolOrigin(kind="function", name=decoded.name, namespace=namespace)
            return declared.add(decoded, origin)
        case "custom":
            decoded = _decode_custom(convert_value(tool, CustomTool, path), path)
            origin = ToolOrigin(kind="custom", name=decoded.name, namespace=namespace)
            return declared.add(decoded, origin)
        case "namespace" if namespace is None:
            _declare_namespace(declared, convert_value(tool, ToolNamespace, path), path)
        case "mcp" if namespace is None:
            declared.server_labels.append(str(tool.get("server_label")))
        case _:
            declared.dropped_types.append(kind)
    return None


def get_type(tool: dict[str, Json], path: str) -> str:
    path = f"{path}.type"
    if "type" not in tool:
        raise make_missing_field_error(path)
    kind = tool["type"]
    if not isinstance(kind, str) or len(kind) > 64:
        raise BadRequest(f"`{path}` must be a string of at most 64 characters.", param=path)
    return kind


def _declare_namespace(declared: ResponsesToolSet, namespace: ToolNamespace, path: str) -> None:
    """Add the tools of a namespace; its description goes in front of the first tool's."""
    names = [
        _declare(declared, tool, f"{path}.tools[{i}]", namespace.name)
        for i, tool in enumerate(namespace.tools)
    ]
    first = next((name for name in names if name is not None), None)
    if namespace.description and first is not None:
        tool = declared.tools[first]
        descriptions = [f"{namespace.name}: {namespace.description}", tool.description]
        text = "\n\n".join(description for description in descriptions if description)
        declared.tools[first] = replace(tool, description=text)


def _decode_function(tool: ResponsesFunctionTool, path: str) -> Tool:
    return Tool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
        param=f"{path}.parameters",
    )


def _decode_custom(tool: CustomTool, path: str) -> Tool:
    """Decode a tool that takes free text: for the model, a function with one string."""
    constraint = _decode_input_format(tool.format, f"{path}.format")
    description = "The text to call this tool with."
    if tool.format is not None and constraint is not None:
        description += f" It follows this {tool.format.syntax} grammar:\n{constraint.value}"
    return Tool(
        name=tool.name,
        description=tool.description,
        parameters={
            "type": "object",
            "properties": {"input": {"type": "string", "description": description}},
            "required": ["input"],
            "additionalProperties": False,
        },
        param=f"{path}.format",
        takes_free_text=True,
        input=constraint,
    )


def _decode_input_format(input_format: CustomToolFormat | None, path: str) -> Constraint | None:
    if input_format is None or input_format.type == "text":
        return None
    if input_format.type != "grammar":
        raise BadRequest(f"`{path}.type` must be `text` or `grammar`.", param=f"{path}.type")
    definition, param = input_format.definition, f"{path}.definition"
    if definition is None:
        raise make_missing_field_error(param)
    match input_format.syntax:
        case "lark":
            return Constraint(kind="grammar", value=definition, param=param, language="lark")
        case "regex":
            return Constraint(kind="regex", value=definition, param=param)
    raise BadRequest(f"`{path}.syntax` must be `lark` or `regex`.", param=f"{path}.syntax")


# Tool choice

NO_TOOL_LEFT = "`tool_choice` has no effect: this server can run none of its tools."


def decode_tool_choice(
    choice: str | dict[str, Json] | None, declared: ResponsesToolSet, remote: Sequence[Tool]
) -> tuple[DecodedToolChoice, list[str]]:
    """Return the choice, and a warning if it has no effect."""
    tools = (*declared.tools.values(), *remote)
    if choice is None or isinstance(choice, str):
        has_dropped = bool(declared.server_labels or declared.dropped_types)
        if choice == "required" and not tools and has_dropped:
            return DecodedToolChoice("auto"), [NO_TOOL_LEFT]
        return decode_mode(choice or "auto", bool(tools)), []
    fields: ResponsesToolChoice = convert_value(choice, ResponsesToolChoice, "tool_choice")
    if fields.type == "allowed_tools":
        return _decode_allowed_tools(fields, declared, remote)
    names = ToolLookup(declared, remote).find(fields, "tool_choice")
    if not names:
        return DecodedToolChoice("auto"), [NO_TOOL_LEFT]
    if len(names) == 1 and fields.name is not None and fields.type != "namespace":
        return force_tool(names[0]), []
    return allow_tools("required", names, tools, "tool_choice"), []


def _decode_allowed_tools(
    choice: ResponsesToolChoice, declared: ResponsesToolSet, remote: Sequence[Tool]
) -> tuple[DecodedToolChoice, list[str]]:
    path = "tool_choice"
    if not choice.tools:
        raise BadRequest(f"`{path}.tools` must list a tool.", param=f"{path}.tools")
    names: set[str] = set()
    lookup, seen = ToolLookup(declared, remote), set[tuple[str | None, ...]]()
    for i, tool in enumerate(choice.tools):
        key = (tool.type, tool.namespace, tool.name, tool.server_label)
        if key not in seen:  # a repeated entry may name thousands of tools
            names.update(lookup.find(tool, f"{path}.tools[{i}]"))
            seen.add(key)
    decoded = allow_tools(choice.mode, names, (*declared.tools.values(), *remote), path)
    if names or decoded.mode == "auto":
        return decoded, []
    return DecodedToolChoice("auto", ()), [NO_TOOL_LEFT]


class ToolLookup:
    """Finds the tools that a choice names, indexed once for all its entries."""

    def __init__(self, declared: ResponsesToolSet, remote: Sequence[Tool]) -> None:
        self._declared = declared
        self._by_namespace: dict[str | None, list[str]] = {}
        for flat, origin in declared.origins.items():
            self._by_namespace.setdefault(origin.namespace, []).append(flat)
        labels = declared.server_labels
        self._by_server: dict[str | None, dict[str, None]] = {label: {} for label in labels}
        # The longest label wins where the names of several servers match.
        longest_first = sorted(labels, key=len, reverse=True) if remote else []
        prefixes = [(join_name(label, ""), label) for label in longest_first]
        for tool in remote:
            matching = (label for prefix, label in prefixes if tool.name.startswith(prefix))
            self._by_server.get(next(matching, None), {})[tool.name] = None

    def find(self, tool: ResponsesToolName, path: str) -> list[str]:
        """Return the flat names of the tools; none if only another server can run them."""
        match tool.type:
            case "function" | "custom" | "namespace":
                if tool.name is None:
                    raise BadRequest(f"`{path}` must name a tool.", param=path)
                names = self._find_declared(tool.type, tool.namespace, tool.name)
                if not names:
                    raise make_undeclared_tool_error(path)
                return names
            case "mcp":
                server_tools = self._by_server.get(tool.server_label)
                if server_tools is None:
                    raise make_undeclared_tool_error(path)
                if tool.name is None:
                    return list(server_tools)
                name = make_remote_name(tool.server_label or "", tool.name)
                return [name] if name in server_tools else []
            case "allowed_tools":
                raise make_invalid_tool_choice_error()
        return []

    def _find_declared(self, kind: str, namespace: str | None, name: str) -> list[str]:
        if kind == "namespace":
            return self._by_namespace.get(name, [])
        flat = self._declared.get_flat_name(namespace, name)
        return [flat] if flat in self._declared.origins else []
