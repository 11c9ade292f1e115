"""The tools of a request, and which of them the answer may or must call.

A model knows a tool by one flat name. A tool of a namespace has that of the namespace in front, so
that it is called the same whatever else is declared; `Known` leads back to what the client says.
Tools that only other servers can run are left out with a warning. `mcp` tools stand for servers
that have to be asked first: the caller does so, and brings their tools as `remote`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.protocols.responses.decode.items import RawTools
from dragoman.protocols.responses.types import ToolOrigin, UniqueNames
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import check_depth, convert_value
from dragoman.protocols.shared.response_format import GrammarText
from dragoman.protocols.shared.tool_choice import (
    DecodedToolChoice,
    allow_tools,
    decode_mode,
    force_tool,
    invalid_tool_choice,
    undeclared_tool,
)
from dragoman.types import Constraint, Tool

MOST = 4096  # tools
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


class ResponsesFunctionTool(Struct):
    name: openai.Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomToolFormat(Struct):
    """`text`, or a `grammar`: what the text of a custom tool looks like."""

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
    """A tool that was declared, or all those of a server or a namespace."""

    type: str
    name: str | None = None
    namespace: str | None = None
    server_label: str | None = None


class ResponsesToolChoice(ResponsesToolName):
    mode: str | None = None
    tools: Annotated[list[ResponsesToolName], Meta(max_length=1024)] | None = None


class DeclaredTools(Struct):
    """The tools that were declared, by the names that the model knows."""

    tools: dict[str, Tool] = field(default_factory=dict)
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    server_labels: list[str] = field(default_factory=list)  # of servers that have more
    dropped_types: list[str] = field(default_factory=list)  # kinds that cannot be run here
    lists: int = 0  # how many lists of tools there were
    _names: UniqueNames = field(default_factory=UniqueNames)
    _flats: dict[tuple[str | None, str], str] = field(default_factory=dict)
    _alone: dict[str, str | None] = field(default_factory=dict)  # None: in several namespaces
    _list: dict[str, int] = field(default_factory=dict)  # in which a tool was declared last

    @property
    def warnings(self) -> list[str]:
        kinds = dict.fromkeys(self.dropped_types)
        return [f"Tools of type `{kind}` are left out: they cannot be run here." for kind in kinds]

    def get_flat_name(self, namespace: str | None, name: str) -> str:
        """What a tool is called here, declared or not; clients may forget its namespace."""
        found = self._flats.get((namespace, name))
        if found is None and namespace is None:
            found = self._alone.get(name)
        return found or join_name(namespace, name)

    def add(self, tool: Tool, known: ToolOrigin) -> str:
        """Add a tool, or replace one of an earlier list; the name that it has here."""
        key = known.namespace, known.name
        flat = self._flats.get(key)
        if flat is not None and self._list[flat] == self.lists:
            at = tool.param.rpartition(".")[0]
            raise BadRequest(f"Two tools are called `{known.name}`.", param=f"{at}.name")
        if flat is None:
            if len(self.tools) == MOST:
                raise BadRequest(f"There are more than {MOST:,} tools.", param="tools")
            flat = self._flats[key] = self._names.make_unique(join_name(*key))
            self._alone[known.name] = None if known.name in self._alone else flat
        self.tools[flat] = replace(tool, name=flat)
        self.origins[flat] = known
        self._list[flat] = self.lists
        return flat


def join_name(namespace: str | None, name: str) -> str:
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


def make_remote_name(label: str, name: str) -> str:
    """What the tool of a remote server is called here."""
    return join_name(label, _ODD.sub("_", name))


def decode_tools(
    said: RawTools | None, later: Iterable[tuple[RawTools, str]] = ()
) -> DeclaredTools:
    """The tools of a request, and those that items add `later`, each list with its place.

    A tool that is declared twice at once is an error; one that is added replaces an earlier one.
    """
    found = DeclaredTools()
    for tools, at in ((said or [], "tools"), *later):
        for i, tool in enumerate(tools):
            _declare(found, tool, f"{at}[{i}]")
        found.lists += 1
    return found


def _declare(
    found: DeclaredTools, said: dict[str, Any], at: str, namespace: str | None = None
) -> str | None:
    """Add a tool, whatever it is; its name, if the model is to know it."""
    check_depth(said, at)
    kind = get_type(said, at)
    match kind:
        case "function":
            tool = _function(convert_value(said, ResponsesFunctionTool, at), at)
            return found.add(tool, ToolOrigin(kind="function", name=tool.name, namespace=namespace))
        case "custom":
            tool = _custom(convert_value(said, CustomTool, at), at)
            return found.add(tool, ToolOrigin(kind="custom", name=tool.name, namespace=namespace))
        case "namespace" if namespace is None:
            _unfold(found, convert_value(said, ToolNamespace, at), at)
        case "mcp" if namespace is None:
            found.server_labels.append(str(said.get("server_label")))
        case _:
            found.dropped_types.append(kind)
    return None


def get_type(said: dict[str, Any], at: str) -> str:
    if "type" not in said:
        at = f"{at}.type"
        raise BadRequest(f"`{at}` is required.", param=at, code="missing_required_parameter")
    kind = said["type"]
    if not isinstance(kind, str) or len(kind) > 64:
        at = f"{at}.type"
        raise BadRequest(f"`{at}` must be a string of at most 64 characters.", param=at)
    return kind


def _unfold(found: DeclaredTools, said: ToolNamespace, at: str) -> None:
    """The tools of a namespace; what is said of it as a whole is said with the first."""
    names = [
        _declare(found, tool, f"{at}.tools[{i}]", said.name) for i, tool in enumerate(said.tools)
    ]
    first = next((name for name in names if name is not None), None)
    if said.description and first is not None:
        tool = found.tools[first]
        both = [f"{said.name}: {said.description}", tool.description]
        text = "\n\n".join(text for text in both if text)
        found.tools[first] = replace(tool, description=text)


def _function(said: ResponsesFunctionTool, at: str) -> Tool:
    return Tool(
        name=said.name,
        description=said.description,
        parameters=said.parameters,
        strict=said.strict,
        param=f"{at}.parameters",
    )


def _custom(said: CustomTool, at: str) -> Tool:
    """A tool that takes free text: to the model, a function of one string."""
    shape = _input(said.format, f"{at}.format")
    wanted = "The text to call this tool with."
    if said.format is not None and shape is not None:
        wanted += f" It follows this {said.format.syntax} grammar:\n{shape.value}"
    return Tool(
        name=said.name,
        description=said.description,
        parameters={
            "type": "object",
            "properties": {"input": {"type": "string", "description": wanted}},
            "required": ["input"],
            "additionalProperties": False,
        },
        param=f"{at}.format",
        takes_free_text=True,
        input=shape,
    )


def _input(said: CustomToolFormat | None, at: str) -> Constraint | None:
    if said is None or said.type == "text":
        return None
    if said.type != "grammar":
        raise BadRequest(f"`{at}.type` must be `text` or `grammar`.", param=f"{at}.type")
    inside = f"{at}.definition"
    if said.definition is None:
        raise BadRequest(
            f"`{inside}` is required.", param=inside, code="missing_required_parameter"
        )
    match said.syntax:
        case "lark":
            return Constraint(kind="grammar", value=said.definition, param=inside, language="lark")
        case "regex":
            return Constraint(kind="regex", value=said.definition, param=inside)
    raise BadRequest(f"`{at}.syntax` must be `lark` or `regex`.", param=f"{at}.syntax")


# The choice

NOTHING_LEFT = "`tool_choice` has no effect: none of its tools can be called here."


def decode_tool_choice(
    said: str | dict[str, Any] | None, declared: DeclaredTools, remote: Sequence[Tool]
) -> tuple[DecodedToolChoice, list[str]]:
    """What the choice comes down to, and a sentence for what of it cannot be kept to."""
    every = (*declared.tools.values(), *remote)
    if said is None or isinstance(said, str):
        unusable = bool(declared.server_labels or declared.dropped_types)
        if said == "required" and not every and unusable:
            return DecodedToolChoice("auto"), [NOTHING_LEFT]
        return decode_mode(said or "auto", bool(every)), []
    choice: ResponsesToolChoice = convert_value(said, ResponsesToolChoice, "tool_choice")
    if choice.type == "allowed_tools":
        return _allowed(choice, declared, remote)
    names = ToolLookup(declared, remote).find(choice, "tool_choice")
    if not names:
        return DecodedToolChoice("auto"), [NOTHING_LEFT]
    if len(names) == 1 and choice.name is not None and choice.type != "namespace":
        return force_tool(names[0]), []
    return allow_tools("required", names, every, "tool_choice"), []


def _allowed(
    said: ResponsesToolChoice, declared: DeclaredTools, remote: Sequence[Tool]
) -> tuple[DecodedToolChoice, list[str]]:
    at = "tool_choice"
    if not said.tools:
        raise BadRequest(f"`{at}.tools` must list a tool.", param=f"{at}.tools")
    names: set[str] = set()
    choosable, seen = ToolLookup(declared, remote), set[tuple[str | None, ...]]()
    for i, tool in enumerate(said.tools):
        key = (tool.type, tool.namespace, tool.name, tool.server_label)
        if key not in seen:  # one that is listed again may stand for thousands of tools
            names.update(choosable.find(tool, f"{at}.tools[{i}]"))
            seen.add(key)
    found = allow_tools(said.mode, names, (*declared.tools.values(), *remote), at)
    if names or found.mode == "auto":
        return found, []
    return DecodedToolChoice("auto", ()), [NOTHING_LEFT]


class ToolLookup:
    """The tools that a choice may mean, found once for all that it lists."""

    def __init__(self, declared: DeclaredTools, remote: Sequence[Tool]) -> None:
        self._declared = declared
        self._spaces: dict[str | None, list[str]] = {}  # by namespace
        for flat, known in declared.origins.items():
            self._spaces.setdefault(known.namespace, []).append(flat)
        self._theirs: dict[str | None, dict[str, None]] = {
            one: {} for one in declared.server_labels
        }
        # where several servers may be meant, the longest name tells
        longest = sorted(declared.server_labels, key=len, reverse=True) if remote else []
        starts = [(join_name(label, ""), label) for label in longest]
        for tool in remote:
            fit = (label for start, label in starts if tool.name.startswith(start))
            self._theirs.get(next(fit, None), {})[tool.name] = None

    def find(self, said: ResponsesToolName, at: str) -> list[str]:
        """The tools that are meant; none where only another server could run them."""
        match said.type:
            case "function" | "custom" | "namespace":
                if said.name is None:
                    raise BadRequest(f"`{at}` must name a tool.", param=at)
                names = self._own(said.type, said.namespace, said.name)
                if not names:
                    raise undeclared_tool(at)
                return names
            case "mcp":
                theirs = self._theirs.get(said.server_label)
                if theirs is None:
                    raise undeclared_tool(at)
                if said.name is None:
                    return list(theirs)
                name = make_remote_name(said.server_label or "", said.name)
                return [name] if name in theirs else []
            case "allowed_tools":
                raise invalid_tool_choice()
        return []

    def _own(self, kind: str, namespace: str | None, name: str) -> list[str]:
        if kind == "namespace":
            return self._spaces.get(name, [])
        flat = self._declared.get_flat_name(namespace, name)
        return [flat] if flat in self._declared.origins else []
