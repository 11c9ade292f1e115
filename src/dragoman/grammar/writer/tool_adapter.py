"""Adapts a tool's schema to what the parser of a format can read back.

Between tags everything is text, and the parser consults the tool's schema for the type of a
parameter: any type that any option of the schema allows. So the nodes of a tool are adapted before
they are written. A string excludes text that would be read as another type, and of listed values
only those remain that are read back unchanged. What cannot be adapted, and what a format has no
syntax for, is reported with its JSON pointer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from dragoman.errors import Unsupported
from dragoman.grammar.client.grammar_text import GrammarText
from dragoman.grammar.regex.full_match import is_supported_pattern
from dragoman.grammar.regex.schema_pattern import translate_pattern
from dragoman.grammar.schema.nodes import (
    Anything,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Nothing,
    Object,
    SchemaReference,
    String,
)
from dragoman.grammar.schema.simplify import (
    expand_options,
    get_child_nodes,
    simplify_object,
    union_nodes,
    write_canonical_json,
)
from dragoman.grammar.writer.tool_names import ParsedTool
from dragoman.grammar.writer.unquoted_text import (
    ALL_TYPES,
    UnambiguousText,
    list_restricted_types,
    list_types,
)
from dragoman.output import spec
from dragoman.output.arguments.cast import cast
from dragoman.output.arguments.schemas.json_pointer import (
    UnresolvedReference,
    escape_token,
    resolve_reference,
)
from dragoman.output.arguments.schemas.parameter_types import STRING, Types, read_parameter_schema
from dragoman.output.arguments.schemas.schema_references import localize_references
from dragoman.output.arguments.tags import CDATA
from dragoman.types import Json

UNLISTED = "\0"  # a name that no schema lists
MAX_VISITED = 256  # schemas that are searched for a name


def adapt_tool(
    tool_format: spec.ToolFormat, tool: ParsedTool, parameters: Json
) -> tuple[ParsedTool, list[str]]:
    """Adapt a tool to a format; also return the pointers of what is then not enforced."""
    pointers: list[str] = []
    for body in tool_format.bodies:
        adapter = _ToolAdapter(tool_format, body, tool, parameters)
        pointers += adapter.iter_unwritable()
        tool = adapter.adapt()
        pointers += adapter.misread
    return tool, list(dict.fromkeys(pointers))


class _ToolAdapter:
    """Adapts a tool to one kind of call body."""

    def __init__(
        self, tool_format: spec.ToolFormat, body: spec.CallBody, tool: ParsedTool, parameters: Json
    ) -> None:
        self._body = body
        self._tool = tool
        self._parameters = localize_references(parameters)
        self._reader = read_parameter_schema(parameters)
        self._is_nested = isinstance(body, spec.NestedElements)
        # whether the format states the type of each value, or at least distinguishes strings
        self._states_types = _states_types(body)
        self._distinguishes_strings = self._states_types or (
            isinstance(body, spec.NamedObject) and not body.casts_strings
        )
        self._default_types = _list_default_types(body)
        self._end_markers = _list_end_markers(tool_format, body)
        self._types_by_name: dict[str, Types] = {}
        self._adapted: dict[tuple[Node, Types | None], Node] = {}
        self._empty_pointer = ""  # of a part that allows no value any more
        self.misread: list[str] = []

    # What the format cannot write

    def iter_unwritable(self) -> Iterator[str]:
        """Yield the pointers of what the format has no syntax for."""
        body = self._body
        is_bare = isinstance(body, spec.NamedObject) and body.unquoted_values
        separate = isinstance(body, spec.TaggedArguments | spec.NestedElements | spec.PythonCalls)
        if not is_bare and not separate:
            return
        if any(isinstance(node, LlguidanceSchema) for node in self._tool.argument_nodes):
            yield ""
        if isinstance(body, spec.PythonCalls):
            return
        list_parts: Callable[[Node], Iterable[Node]]
        list_parts = self._iter_descendants if is_bare or self._is_nested else self._list_options
        for key, node in self._iter_properties():
            for part in list_parts(node):
                if isinstance(part, LlguidanceSchema) and (is_bare or "string" in list_types(part)):
                    yield _find_pointer(self._parameters, key)
                elif pattern := _get_unsupported_pattern(part):
                    yield _find_pattern_pointer(self._parameters, pattern)

    def _iter_properties(self) -> Iterator[tuple[str | None, Node]]:
        """Yield the properties of all options; additional properties have no name."""
        for node in self._tool.argument_nodes:
            if isinstance(node, Object):
                yield from node.properties
                yield None, node.additional

    def _list_options(self, node: Node) -> list[Node]:
        return expand_options(node, self._tool.definitions)

    def _iter_descendants(self, node: Node) -> Iterator[Node]:
        """Yield a node and everything inside it."""
        queue, seen = [node], set[Node]()
        while queue:
            part = queue.pop()
            if part not in seen:
                seen.add(part)
                yield part
                if isinstance(part, SchemaReference):
                    queue.append(self._tool.definitions[part.name])
                queue += get_child_nodes(part)

    # What the parser would misread

    def adapt(self) -> ParsedTool:
        """Return the tool without values that the parser would read as others."""
        body, tool = self._body, self._tool
        typed = isinstance(body, spec.NamedObject) and body.types_from_schema
        if not typed and not isinstance(body, spec.TaggedArguments | spec.NestedElements):
            return tool
        adapted = tuple(
            self._adapt_option(node) if isinstance(node, Object) else node
            for node in tool.argument_nodes
        )
        possible = [node for node in adapted if not isinstance(node, Nothing)]
        if not possible:
            raise Unsupported(
                f"`{tool.param}`: no value that `{self._empty_pointer}` allows can be written in "
                f"this model's format.",
                param=tool.param,
            )
        if self._is_nested:
            definitions = {
                name: self._adapt_node(node, None) for name, node in tool.definitions.items()
            }
            return replace(tool, root=union_nodes(possible), definitions=definitions)
        if adapted == tool.argument_nodes:
            return tool
        return replace(tool, root=union_nodes(possible))

    def _adapt_option(self, node: Object) -> Node:
        properties = tuple(
            (key, self._adapt_argument(key, value, (key,))) for key, value in node.properties
        )
        unlisted = [name for name, _ in self._iter_properties() if name and name not in node.names]
        additional = self._adapt_argument(None, node.additional, (*unlisted, UNLISTED))
        return simplify_object(replace(node, properties=properties, additional=additional))

    def _adapt_argument(self, key: str | None, node: Node, names: Sequence[str]) -> Node:
        """Adapt an argument that the parser types by what the schema states of these names."""
        if isinstance(node, Anything | Nothing):
            return node
        read_types = [self._get_read_types(name) for name in dict.fromkeys(names)]
        certain = frozenset[str]().union(*map(_list_certain_types, self._list_options(node)))
        if any(not _includes_type(types, name) for types in read_types for name in certain):
            self.misread.append(_find_pointer(self._parameters, key))
        adapted = self._adapt_node(node, frozenset().union(*read_types))
        if isinstance(adapted, Nothing):
            self._empty_pointer = _find_pointer(self._parameters, key)
        return adapted

    def _get_read_types(self, name: str) -> Types:
        """Return the types as which the parser may read the argument of this name."""
        if self._states_types:
            return ALL_TYPES
        if name not in self._types_by_name:
            self._types_by_name[name] = self._reader.get_member(name).types
        return self._types_by_name[name] or self._default_types

    def _adapt_node(self, node: Node, read_types: Types | None) -> Node:
        """Adapt a node that the parser reads as these types; None stands for the node's own."""
        key = node, read_types
        if key not in self._adapted:
            self._adapted[key] = node  # ends the recursion of nodes that refer back to it
            self._adapted[key] = self._adapt_new_node(node, read_types)
        return self._adapted[key]

    def _adapt_new_node(self, node: Node, read_types: Types | None) -> Node:
        options = self._list_options(node)
        if any(isinstance(option, Anything | GrammarText) for option in options):
            return node
        if read_types is None:
            read_types = frozenset[str]().union(*map(list_types, options))
        readable = [self._drop_unreadable_values(option, read_types) for option in options]
        left = frozenset[str]().union(*map(list_types, readable))
        excluded = frozenset(name for name in read_types - STRING if not _includes_type(left, name))
        if isinstance(self._body, spec.NamedObject):
            excluded |= list_restricted_types(readable)  # `TaggedValueWriter` does it for tags
        if self._distinguishes_strings:
            excluded = frozenset()
        adapted = [self._adapt_single(option, excluded, readable) for option in readable]
        return node if adapted == options else union_nodes(adapted)

    def _drop_unreadable_values(self, node: Node, read_types: Types) -> Node:
        """Drop the listed values that the parser does not read back unchanged."""
        if not isinstance(node, Literals):
            return node
        return Literals(
            tuple(value for value in node.values if self._is_read_back(value, read_types))
        )

    def _adapt_single(self, node: Node, excluded: Types, options: Sequence[Node]) -> Node:
        match node:
            case Literals(()):
                return Nothing()
            case String() if excluded:
                return UnambiguousText(
                    node.min_length,
                    node.max_length,
                    node.pattern,
                    node.format,
                    excluded_types=excluded,
                )
            case Object() if self._is_nested:
                objects = [option for option in options if isinstance(option, Object)]
                return self._adapt_nested_object(node, objects)
            case Array() if self._is_nested:
                prefix = tuple(self._adapt_node(item, None) for item in node.prefix_items)
                return replace(node, prefix_items=prefix, items=self._adapt_node(node.items, None))
        return node

    def _adapt_nested_object(self, node: Object, objects: Sequence[Object]) -> Node:
        """Adapt an object inside another one; `objects` are all the alternatives to it."""

        def adapt_property(key: str, value: Node) -> Node:
            if len(objects) == 1:
                return self._adapt_node(value, None)
            values = [dict(other.properties).get(key, other.additional) for other in objects]
            types = [list_types(option) for each in values for option in self._list_options(each)]
            known = frozenset[str]().union(*(names for names in types if names != ALL_TYPES))
            return self._adapt_node(value, known)

        properties = tuple((key, adapt_property(key, value)) for key, value in node.properties)
        return simplify_object(replace(node, properties=properties))

    def _is_read_back(self, literal: str, read_types: Types) -> bool:
        """Whether the parser reads a value back unchanged."""
        value = json.loads(literal)
        if isinstance(value, str):
            if any((value + marker).find(marker) < len(value) for marker in self._end_markers):
                return False
            return self._distinguishes_strings or json.loads(cast(value, read_types)) == value
        if self._states_types:
            return True
        return write_canonical_json(json.loads(cast(literal, read_types))) == write_canonical_json(
            value
        )


def _states_types(body: spec.CallBody) -> bool:
    return isinstance(body, spec.TaggedArguments) and "{" in body.key_spelling.replace("{key}", "")


def _list_default_types(body: spec.CallBody) -> Types:
    """Return the types as which the parser reads a value that the schema does not type."""
    if isinstance(body, spec.TaggedArguments):
        return STRING if body.untyped == "text" else frozenset()
    return ALL_TYPES if isinstance(body, spec.NamedObject) else frozenset()


def _list_certain_types(node: Node) -> Types:
    """Return the types that the parser must know; unreadable literals are dropped instead."""
    return frozenset() if isinstance(node, Literals) else list_types(node)


def _includes_type(types: Types, name: str) -> bool:
    return name in types or (name == "integer" and "number" in types)


def _get_unsupported_pattern(node: Node) -> str | None:
    pattern = node.pattern if isinstance(node, String) else None
    return None if pattern is None or is_supported_pattern(pattern) else pattern


def _list_end_markers(tool_format: spec.ToolFormat, body: spec.CallBody) -> list[str]:
    """Return the markers that end a value, wherever in it they are."""
    closing = (*tool_format.call.close, *tool_format.section.close)
    markers: list[str] = []
    if isinstance(body, spec.TaggedArguments):
        markers += (*body.value.close, *body.key.open, *closing)
        markers += CDATA[:1] if body.cdata else ()
    elif isinstance(body, spec.NestedElements):
        markers += (f"{body.prefix}<", *closing)
    return [start for marker in markers if (start := marker.split(spec.GAP)[0])]


# Pointers


def _find_pointer(root: Json, key: str | None) -> str:
    """Find the schema of a parameter; a key of None stands for additional properties."""
    queue, seen = [("", root)], set[int]()
    while queue and len(seen) < MAX_VISITED:
        pointer, schema = queue.pop(0)
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if key is None and isinstance(schema.get("additionalProperties"), dict):
            return f"{pointer}/additionalProperties"
        if key is not None and key in schema.get("properties", ()):
            return f"{pointer}/properties/{escape_token(key)}"
        for keyword in ("allOf", "anyOf", "oneOf"):
            for index, option in enumerate(schema.get(keyword, ())):
                queue.append((f"{pointer}/{keyword}/{index}", option))
        with suppress(UnresolvedReference):
            queue += [resolve_reference(root, schema["$ref"])] if "$ref" in schema else []
    return ""


def _find_pattern_pointer(root: Json, pattern: str) -> str:
    queue: list[tuple[str, Json]] = [("", root)]
    while queue:
        pointer, value = queue.pop()
        if isinstance(value, list):
            queue += [(f"{pointer}/{index}", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            written = value.get("pattern")
            if isinstance(written, str) and translate_pattern(written) == pattern:
                return f"{pointer}/pattern"
            queue += [(f"{pointer}/{escape_token(name)}", item) for name, item in value.items()]
    return ""
