"""The types that a tool's schema allows for its parameters, as far as parsing needs them.

A schema arrives with a request, so it is walked within bounds: each node once, however often it is
referenced. A node combines its `type`, its `enum` and `const`, its `$ref` target, and its `allOf`,
`anyOf` and `oneOf`. Keywords that apply to one type only (`minLength`, `items`) imply that type
if nothing else determines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from dragoman.output.arguments.schemas.json_pointer import UnresolvedReference, resolve_reference
from dragoman.output.arguments.schemas.schema_references import localize_references
from dragoman.types import Json

Types: TypeAlias = frozenset[str]

STRING: Types = frozenset({"string"})
OBJECT_TYPES: Types = frozenset({"object", "json"})
ANY_TYPE: Types = frozenset()
SYNONYMS = {"str": "string", "text": "string", "int": "integer", "float": "number"}
SYNONYMS |= {"double": "number", "bool": "boolean", "dict": "object", "list": "array"}
SYNONYMS |= {"varchar": "string", "char": "string", "enum": "string", "uint": "integer"}
# keywords that imply a type where there is no `type`
KEYWORDS_BY_TYPE: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
    | {"multipleOf"},
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})
    | {"contains"},
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties"})
    | {"minProperties", "maxProperties", "propertyNames"},
}
MAX_DEPTH = 64
MAX_NODES = 256  # nodes visited per lookup
MAX_VALUES = 4096  # of a schema whose references by name are resolved


class NodeTypes(NamedTuple):
    """The types that a node allows (None: any), and those that its keywords imply."""

    types: Types | None = None
    implied: Types = ANY_TYPE

    @property
    def effective(self) -> Types | None:
        return (self.implied or None) if self.types is None else self.types


UNKNOWN = NodeTypes()
# keyed by the id of a node, which is stored so that the id cannot be reused
Memo: TypeAlias = dict[int, tuple[object, NodeTypes]]
Picker: TypeAlias = Callable[[Mapping[str, Json]], Json]


class ParameterSchema:
    """A node of a tool's schema. Its `types` are empty where any type is allowed."""

    def __init__(self, node: object, root: Mapping[str, Json], memo: Memo) -> None:
        self._root = root
        self._memo = memo
        self._node = node if isinstance(node, Mapping) else {}
        self.types = self._find_types(node).effective or ANY_TYPE

    def get_member(self, key: str) -> ParameterSchema:
        return self._select(lambda node: _select_member(node, key))

    def get_item(self, index: int) -> ParameterSchema:
        return self._select(lambda node: _select_item(node, index))

    def list_names(self) -> list[str]:
        names, queue, seen = dict[str, None](), [self._node], set[int]()
        while queue and len(seen) < MAX_NODES:
            node = queue.pop(0)
            if id(node) in seen:
                continue
            seen.add(id(node))
            inner = node.get("properties")
            if isinstance(inner, Mapping):
                names |= dict.fromkeys(key for key in inner if isinstance(key, str))
            parts = [
                self._resolve_reference(node),
                *(part for keyword in _COMBINATORS for part in _get_list(node, keyword)),
            ]
            queue += [part for part in parts if isinstance(part, Mapping)]
        return list(names)

    def _select(self, pick: Picker) -> ParameterSchema:
        """Return the sub-schema that `pick` finds in the node and in everything it combines."""
        return ParameterSchema(self._select_from(self._node, pick, {}, 0), self._root, self._memo)

    def _select_from(self, node: object, pick: Picker, seen: dict[int, Json], depth: int) -> Json:
        """Return the sub-schema that a node and everything it combines gives, or None."""
        if not isinstance(node, Mapping) or depth > MAX_DEPTH:
            return None
        if id(node) not in seen and len(seen) < MAX_NODES:
            seen[id(node)] = None  # for references back to this node
            plain = _COMPOSITE.isdisjoint(node)
            seen[id(node)] = pick(node) if plain else self._select_combined(node, pick, seen, depth)
        return seen.get(id(node))

    def _select_combined(
        self, node: Mapping[str, Json], pick: Picker, seen: dict[int, Json], depth: int
    ) -> Json:
        """Like `_select_from`, for a node that combines others."""

        def select_parts(nodes: Iterable[object]) -> list[Json]:
            selected = [self._select_from(node, pick, seen, depth + 1) for node in nodes]
            return [part for part in selected if part is not None]

        selected = select_parts(
            [self._resolve_reference(node), *_get_list(node, "allOf")[:MAX_NODES]]
        )
        own = pick(node)
        selected += [] if own is None else [own]
        for keyword in ("anyOf", "oneOf"):
            options = select_parts(_get_list(node, keyword)[:MAX_NODES])
            # an option without types, or one that forbids the value, does not weaken the others
            known = [option for option in options if self._find_types(option).effective]
            selected += [_combine("anyOf", known)] if known else []
        return _combine("allOf", selected) if selected else None

    def _resolve_reference(self, node: Mapping[str, Json]) -> Json:
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return None
        try:
            return resolve_reference(self._root, reference)[1]
        except UnresolvedReference:
            return None

    def _find_types(self, node: object, depth: int = 0) -> NodeTypes:
        if node is False:
            return NodeTypes(frozenset())
        if not isinstance(node, Mapping) or depth > MAX_DEPTH:
            return UNKNOWN
        memo = self._memo
        if id(node) not in memo:
            memo[id(node)] = node, UNKNOWN  # for references back to this node
            memo[id(node)] = node, self._compute_types(node, depth)
        return memo[id(node)][1]

    def _compute_types(self, node: Mapping[str, Json], depth: int) -> NodeTypes:
        types = NodeTypes(_read_declared_types(node), _find_implied_types(node))
        if types.types is not None and _TYPE_SOURCES.isdisjoint(node):
            return types
        if isinstance(node.get("enum"), list):
            types = _intersect(types, NodeTypes(frozenset(map(get_json_type, node["enum"]))))
        if "const" in node:
            types = _intersect(types, NodeTypes(frozenset({get_json_type(node["const"])})))
        for part in (self._resolve_reference(node), *_get_list(node, "allOf")):
            types = _intersect(types, self._find_types(part, depth + 1))
        for keyword in ("anyOf", "oneOf"):
            options = [self._find_types(part, depth + 1) for part in _get_list(node, keyword)]
            types = _intersect(types, _unite(options))
        return types


_COMBINATORS = ("allOf", "anyOf", "oneOf")
_COMPOSITE = frozenset({"$ref", *_COMBINATORS})
_TYPE_SOURCES = _COMPOSITE | {"enum", "const"}  # constrain the type besides `type`


def _get_list(node: Mapping[str, Json], keyword: str) -> list[Json]:
    value = node.get(keyword)
    return value if isinstance(value, list) else []


def _combine(keyword: str, parts: list[Json]) -> Json:
    return parts[0] if len(parts) == 1 else {keyword: parts}


def _select_member(node: Mapping[str, Json], key: str) -> Json:
    inner, patterns = node.get("properties"), node.get("patternProperties")
    if isinstance(inner, Mapping) and key in inner:
        return inner[key]
    rest = node.get("additionalProperties")
    if isinstance(patterns, Mapping) and patterns:
        # the patterns are not evaluated: a client's pattern may be slow
        options = [option for option in (*patterns.values(), rest) if isinstance(option, Mapping)]
        return {"anyOf": options[:MAX_NODES]} if options else None
    return rest if isinstance(rest, Mapping) or rest is False else None


def _select_item(node: Mapping[str, Json], index: int) -> Json:
    is_tuple_items = isinstance(node.get("items"), list) and "prefixItems" not in node
    first, rest = ("items", "additionalItems") if is_tuple_items else ("prefixItems", "items")
    first_items = _get_list(node, first)
    return first_items[index] if index < len(first_items) else node.get(rest)


def _read_declared_types(node: Mapping[str, Json]) -> Types | None:
    """Return the types that a node's `type` names."""
    value = node.get("type")
    values = value if isinstance(value, list) else [value]
    names = [name for name in values if isinstance(name, str)]
    return frozenset(SYNONYMS.get(name, name) for name in names) if names else None


def _find_implied_types(node: Mapping[str, Json]) -> Types:
    """Return the types that a node's keywords imply."""
    words = node.keys() - ({"required"} if isinstance(node.get("required"), bool) else set())
    return frozenset(
        name for name, keywords in KEYWORDS_BY_TYPE.items() if not keywords.isdisjoint(words)
    )


def _intersect(first: NodeTypes, second: NodeTypes) -> NodeTypes:
    """Combine the types of two nodes that both apply to a value."""
    implied = first.implied | second.implied
    if first.types is None or second.types is None:
        return NodeTypes(second.types if first.types is None else first.types, implied)
    both = first.types & second.types
    for left, right in ((first.types, second.types), (second.types, first.types)):
        if "integer" in left and "number" in right:
            both |= {"integer"}
    return NodeTypes(both, implied)


def _unite(options: list[NodeTypes]) -> NodeTypes:
    """Combine the types of nodes of which at least one applies to a value."""
    known = [types for option in options if (types := option.effective) is not None]
    if not options or len(known) < len(options):
        return UNKNOWN
    union = frozenset[str]().union(*known)
    is_certain = all(option.types is not None for option in options)
    return NodeTypes(union) if is_certain else NodeTypes(None, union)


def get_json_type(value: object) -> str:
    """Return the JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def read_parameter_schema(parameters: object) -> ParameterSchema:
    """Return the schema of a tool's parameters, whatever the declaration contains."""
    localized = localize_references(parameters, MAX_VALUES)
    root = localized if isinstance(localized, Mapping) else {}
    return ParameterSchema(root, root, {})
