"""What a format's reader will make of a tool's arguments, before any of them is written.

Between tags all is text, and the reader asks the tool's schema what it means: of one parameter,
all that any option of the schema allows. So a tool's nodes are fitted to that. A text is none that
would be read as something else, and of listed values those are left which come back as they are.
What cannot be fitted, and what a format cannot write as a schema demands, is told by its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from dragoman.errors import Unsupported
from dragoman.grammar.client.grammar_text import GrammarText
from dragoman.grammar.regex.escape import escape_class_operators
from dragoman.grammar.regex.full_match import is_supported_pattern
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
    canonical_json,
    child_nodes,
    expand_options,
    simplify_object,
    union_nodes,
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
from dragoman.output.arguments.json_pointer import (
    UnresolvedReference,
    escape_token,
    resolve_reference,
)
from dragoman.output.arguments.parameter_types import STRING, Types, read_parameter_schema
from dragoman.output.arguments.tags import CDATA
from dragoman.types import Json

UNKNOWN = "\0"  # a name that no schema knows
MAX_VISITED = 256  # places that are looked at for a name


def adapt_tool(
    tools: spec.ToolFormat, offer: ParsedTool, parameters: Json
) -> tuple[ParsedTool, list[str]]:
    """The tool as this format can write it, and the pointers of what is not enforced then."""
    found = offer
    loose: list[str] = []
    for body in tools.bodies:
        fit = _ToolAdapter(tools, body, found, parameters)
        loose += fit.iter_unwritable()
        found = fit.adapt()
        loose += fit.misread
    return found, list(dict.fromkeys(loose))


class _ToolAdapter:
    """Fits a tool to one way of writing arguments."""

    def __init__(
        self, tools: spec.ToolFormat, body: spec.CallBody, offer: ParsedTool, parameters: Json
    ) -> None:
        self._body = body
        self._tool = offer
        self._parameters = parameters
        self._reader = read_parameter_schema(parameters)
        self._deep = isinstance(body, spec.NestedElements)
        # whether the format itself says what a value is, or at least what a text is
        self._states_types = _states_types(body)
        self._marks_text = self._states_types or (
            isinstance(body, spec.NamedObject) and not body.casts_strings
        )
        self._default_types = _list_default_types(body)
        self._end_markers = _list_end_markers(tools, body)
        self._types_by_name: dict[str, Types] = {}
        self._adapted: dict[tuple[Node, Types | None], Node] = {}
        self._empty_pointer = ""  # the place of what no value is left of
        self.misread: list[str] = []

    # what is written otherwise than a schema demands

    def iter_unwritable(self) -> Iterator[str]:
        """Places of what the format has no way to write."""
        body = self._body
        bare = isinstance(body, spec.NamedObject) and body.unquoted_values
        one_by_one = isinstance(body, spec.TaggedArguments | spec.NestedElements | spec.PythonCalls)
        if not bare and not one_by_one:
            return
        if any(isinstance(one, LlguidanceSchema) for one in self._tool.argument_nodes):
            yield ""
        if isinstance(body, spec.PythonCalls):
            return
        for key, node in self._iter_members():
            for one in (
                self._iter_descendants(node) if bare or self._deep else self._list_leaves(node)
            ):
                if isinstance(one, LlguidanceSchema) and (bare or "string" in list_types(one)):
                    yield _find_pointer(self._parameters, key)
                elif (
                    isinstance(one, String)
                    and one.pattern
                    and not is_supported_pattern(one.pattern)
                ):
                    yield _find_pattern_pointer(self._parameters, one.pattern)

    def _iter_members(self) -> Iterator[tuple[str | None, Node]]:
        """The members of all options; what others may be has no name."""
        for node in self._tool.argument_nodes:
            if isinstance(node, Object):
                yield from node.properties
                yield None, node.additional

    def _list_leaves(self, node: Node) -> list[Node]:
        return expand_options(node, self._tool.definitions)

    def _iter_descendants(self, node: Node) -> Iterator[Node]:
        """A node and all that is in it."""
        queue, seen = [node], set[Node]()
        while queue:
            one = queue.pop()
            if one not in seen:
                seen.add(one)
                yield one
                queue += (
                    [self._tool.definitions[one.name]] if isinstance(one, SchemaReference) else []
                )
                queue += child_nodes(one)

    # what is read otherwise than it was meant

    def adapt(self) -> ParsedTool:
        """The tool with nothing left in it that is read as something else."""
        body, offer = self._body, self._tool
        typed = isinstance(body, spec.NamedObject) and body.types_from_schema
        if not typed and not isinstance(body, spec.TaggedArguments | spec.NestedElements):
            return offer
        made = [
            self._adapt_option(one) if isinstance(one, Object) else one
            for one in offer.argument_nodes
        ]
        kept = [one for one in made if not isinstance(one, Nothing)]
        if not kept:
            raise Unsupported(
                f"`{offer.param}`: no value that `{self._empty_pointer}` allows can be written in this model's "
                f"format.",
                param=offer.param,
            )
        if self._deep:
            known = {name: self._adapt_node(node, None) for name, node in offer.definitions.items()}
            return replace(offer, root=union_nodes(kept), definitions=known)
        return (
            offer if tuple(made) == offer.argument_nodes else replace(offer, root=union_nodes(kept))
        )

    def _adapt_option(self, node: Object) -> Node:
        members = tuple(
            (key, self._adapt_argument(key, one, (key,))) for key, one in node.properties
        )
        strange = [name for name, _ in self._iter_members() if name and name not in node.names]
        others = self._adapt_argument(None, node.additional, (*strange, UNKNOWN))
        return simplify_object(replace(node, properties=members, additional=others))

    def _adapt_argument(self, key: str | None, node: Node, names: Sequence[str]) -> Node:
        """A node of the root, which the reader reads by what it knows of these names."""
        if isinstance(node, Anything | Nothing):
            return node
        types = [self._get_types(name) for name in dict.fromkeys(names)]
        sure = frozenset[str]().union(*map(_list_certain_types, self._list_leaves(node)))
        if any(not _includes_type(some, kind) for some in types for kind in sure):
            self.misread.append(_find_pointer(self._parameters, key))
        found = self._adapt_node(node, frozenset().union(*types))
        if isinstance(found, Nothing):
            self._empty_pointer = _find_pointer(self._parameters, key)
        return found

    def _get_types(self, name: str) -> Types:
        """What the reader takes a value for."""
        if self._states_types:
            return ALL_TYPES
        if name not in self._types_by_name:
            self._types_by_name[name] = self._reader.member(name).types
        return self._types_by_name[name] or self._default_types

    def _adapt_node(self, node: Node, types: Types | None) -> Node:
        """A node where the reader knows these types; None where it knows those of the node."""
        key = node, types
        if key not in self._adapted:
            self._adapted[key] = node  # for whatever refers back to it
            self._adapted[key] = self._adapt_new_node(node, types)
        return self._adapted[key]

    def _adapt_new_node(self, node: Node, types: Types | None) -> Node:
        leaves = self._list_leaves(node)
        if any(isinstance(one, Anything | GrammarText) for one in leaves):
            return node
        own = frozenset[str]().union(*map(list_types, leaves))
        read = own if types is None else types
        kept = [self._drop_unreadable_values(one, read) for one in leaves]
        left = frozenset[str]().union(*map(list_types, kept))
        taken = frozenset(kind for kind in read - STRING if not _includes_type(left, kind))
        if isinstance(self._body, spec.NamedObject):
            taken |= list_restricted_types(kept)  # beside tags that is done where they are written
        if self._marks_text:
            taken = frozenset()
        made = [self._adapt_leaf(one, taken, kept) for one in kept]
        return node if made == leaves else union_nodes(made)

    def _drop_unreadable_values(self, node: Node, read: Types) -> Node:
        """A node without the values that do not come back."""
        if not isinstance(node, Literals):
            return node
        return Literals(tuple(one for one in node.values if self._is_read_back(one, read)))

    def _adapt_leaf(self, node: Node, taken: Types, leaves: Sequence[Node]) -> Node:
        match node:
            case Literals(()):
                return Nothing()
            case String() if taken:
                return UnambiguousText(
                    node.min_length, node.max_length, node.pattern, node.format, taken
                )
            case Object() if self._deep:
                return self._adapt_object(node, [one for one in leaves if isinstance(one, Object)])
            case Array() if self._deep:
                first = tuple(self._adapt_node(one, None) for one in node.prefix_items)
                return replace(node, prefix_items=first, items=self._adapt_node(node.items, None))
        return node

    def _adapt_object(self, node: Object, every: Sequence[Object]) -> Node:
        """An object in another one; `every` are the objects that it may also be."""

        def member(key: str, inner: Node) -> Node:
            nodes = [dict(one.properties).get(key, one.additional) for one in every]
            kinds = [list_types(leaf) for one in nodes for leaf in self._list_leaves(one)]
            types = frozenset[str]().union(*(some for some in kinds if some != ALL_TYPES))
            return self._adapt_node(inner, types if len(every) > 1 else None)

        members = tuple((key, member(key, inner)) for key, inner in node.properties)
        return simplify_object(replace(node, properties=members))

    def _is_read_back(self, value: str, types: Types) -> bool:
        """Whether the reader makes of a value what it is."""
        meant = json.loads(value)
        if isinstance(meant, str):
            if any((meant + one).find(one) < len(meant) for one in self._end_markers):
                return False
            return self._marks_text or json.loads(cast(meant, types)) == meant
        return self._states_types or canonical_json(
            json.loads(cast(value, types))
        ) == canonical_json(meant)


def _states_types(body: spec.CallBody) -> bool:
    return isinstance(body, spec.TaggedArguments) and "{" in body.key_spelling.replace("{key}", "")


def _list_default_types(body: spec.CallBody) -> Types:
    """What a value is surely read as of which the reader's schema says nothing."""
    if isinstance(body, spec.TaggedArguments):
        return STRING if body.untyped == "text" else frozenset()
    return ALL_TYPES if isinstance(body, spec.NamedObject) else frozenset()


def _list_certain_types(node: Node) -> Types:
    """The kinds that must be read as such; of listed values, those are left that are."""
    return frozenset() if isinstance(node, Literals) else list_types(node)


def _includes_type(types: Types, kind: str) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _list_end_markers(tools: spec.ToolFormat, body: spec.CallBody) -> list[str]:
    """What ends a value, wherever in it it stands."""
    after = (*tools.call.close, *tools.section.close)
    found: Iterable[str] = ()
    if isinstance(body, spec.TaggedArguments):
        cdata = CDATA[:1] if body.cdata else ()
        found = (
            *body.value.close,
            *((*body.key.open, *after) if body.implicit_end else ()),
            *cdata,
        )
    elif isinstance(body, spec.NestedElements):
        found = (f"{body.prefix}<", *after)
    return [one for mark in found if (one := mark.split(spec.GAP)[0])]


# places


def _find_pointer(root: Json, key: str | None) -> str:
    """Where a schema speaks of a parameter, or of those that it does not name."""
    queue, seen = [("", root)], set[int]()
    while queue and len(seen) < MAX_VISITED:
        where, node = queue.pop(0)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        if key is None and isinstance(node.get("additionalProperties"), dict):
            return f"{where}/additionalProperties"
        if key is not None and key in node.get("properties", ()):
            return f"{where}/properties/{escape_token(key)}"
        for word in ("allOf", "anyOf", "oneOf"):
            queue += [(f"{where}/{word}/{at}", one) for at, one in enumerate(node.get(word, ()))]
        with suppress(UnresolvedReference):
            queue += [resolve_reference(root, node["$ref"])] if "$ref" in node else []
    return ""


def _find_pattern_pointer(root: Json, pattern: str) -> str:
    queue: list[tuple[str, Json]] = [("", root)]
    while queue:
        where, node = queue.pop()
        if isinstance(node, list):
            queue += [(f"{where}/{at}", one) for at, one in enumerate(node)]
        elif isinstance(node, dict):
            said = node.get("pattern")
            if isinstance(said, str) and escape_class_operators(said) == pattern:
                return f"{where}/pattern"
            queue += [(f"{where}/{escape_token(name)}", one) for name, one in node.items()]
    return ""
