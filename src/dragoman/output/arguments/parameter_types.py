"""What a tool's schema says of its parameters, as far as reading them needs it.

A schema comes with a request, so it is walked with bounds: every node once, whatever refers to it.
All that a node says is put together: its `type` and its values, what it refers to, what it is all
of and one of. Words that are about one kind of value tell the kind only where nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from dragoman.output.arguments.json_pointer import UnresolvedReference, resolve_reference

Types: TypeAlias = frozenset[str]

STRING: Types = frozenset({"string"})
ANY_TYPE: Types = frozenset()
SYNONYMS = {"str": "string", "text": "string", "int": "integer", "float": "number"}
SYNONYMS |= {"double": "number", "bool": "boolean", "dict": "object", "list": "array"}
SYNONYMS |= {"varchar": "string", "char": "string", "enum": "string", "uint": "integer"}
# the words that tell the kind of value where no `type` does
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
MAX_NODES = 256  # choices within choices


class NodeTypes(NamedTuple):
    """The kinds that a node allows, None for any; and those that its words are about."""

    types: Types | None = None
    implied: Types = ANY_TYPE

    @property
    def effective(self) -> Types | None:
        return (self.implied or None) if self.types is None else self.types


UNKNOWN = NodeTypes()
# by the identity of a node, which is kept: another could have the same later
Memo: TypeAlias = dict[int, tuple[object, NodeTypes]]
Picker: TypeAlias = Callable[[Mapping[str, Any]], Any]


class ParameterSchema:
    """A place in a tool's schema. Its `types` are none where any kind of value will do."""

    def __init__(self, node: object, root: Mapping[str, Any], memo: Memo) -> None:
        self._root = root
        self._memo = memo
        self._node = node if isinstance(node, Mapping) else {}
        self.types = self._types_of(node).effective or ANY_TYPE

    def member(self, key: str) -> ParameterSchema:
        return self._select(lambda node: _select_member(node, key))

    def item(self, at: int) -> ParameterSchema:
        return self._select(lambda node: _select_item(node, at))

    def names(self) -> list[str]:
        found, queue, seen = dict[str, None](), [self._node], set[int]()
        while queue and len(seen) < MAX_NODES:
            node = queue.pop(0)
            if id(node) in seen:
                continue
            seen.add(id(node))
            inner = node.get("properties")
            if isinstance(inner, Mapping):
                found |= dict.fromkeys(key for key in inner if isinstance(key, str))
            every = [
                self._resolve_reference(node),
                *(one for word in _COMBINATORS for one in _list_of(node, word)),
            ]
            queue += [one for one in every if isinstance(one, Mapping)]
        return list(found)

    def _select(self, pick: Picker) -> ParameterSchema:
        """The part that is picked from the node and from all that it is made of."""
        return ParameterSchema(self._select_from(self._node, pick, {}, 0), self._root, self._memo)

    def _select_from(self, node: object, pick: Picker, seen: dict[int, Any], depth: int) -> Any:
        """What a node says of a part; None where it says nothing."""
        if not isinstance(node, Mapping) or depth > MAX_DEPTH:
            return None
        if id(node) not in seen and len(seen) < MAX_NODES:
            seen[id(node)] = None  # for whatever refers back to it
            plain = _COMPOSITE.isdisjoint(node)
            seen[id(node)] = pick(node) if plain else self._select_combined(node, pick, seen, depth)
        return seen.get(id(node))

    def _select_combined(
        self, node: Mapping[str, Any], pick: Picker, seen: dict[int, Any], depth: int
    ) -> Any:
        """The same for a node that is made of others."""

        def parts(every: Iterable[object]) -> list[Any]:
            found = [self._select_from(one, pick, seen, depth + 1) for one in every]
            return [part for part in found if part is not None]

        said = parts([self._resolve_reference(node), *_list_of(node, "allOf")[:MAX_NODES]])
        own = pick(node)
        said += [] if own is None else [own]
        for word in ("anyOf", "oneOf"):
            options = parts(_list_of(node, word)[:MAX_NODES])
            # one that says nothing, or that it may not be, is no reason to doubt the others
            known = [one for one in options if self._types_of(one).effective]
            said += [_combine("anyOf", known)] if known else []
        return _combine("allOf", said) if said else None

    def _resolve_reference(self, node: Mapping[str, Any]) -> Any:
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return None
        try:
            return resolve_reference(self._root, reference)[1]
        except UnresolvedReference:
            return None

    def _types_of(self, node: object, depth: int = 0) -> NodeTypes:
        if node is False:
            return NodeTypes(frozenset())
        if not isinstance(node, Mapping) or depth > MAX_DEPTH:
            return UNKNOWN
        memo = self._memo
        if id(node) not in memo:
            memo[id(node)] = node, UNKNOWN  # for whatever refers back to it
            memo[id(node)] = node, self._compute_types(node, depth)
        return memo[id(node)][1]

    def _compute_types(self, node: Mapping[str, Any], depth: int) -> NodeTypes:
        found = NodeTypes(_declared_types(node), _implied_types(node))
        if found.types is not None and _TYPE_SOURCES.isdisjoint(node):
            return found
        if isinstance(node.get("enum"), list):
            found = _intersect(found, NodeTypes(frozenset(map(json_type, node["enum"]))))
        if "const" in node:
            found = _intersect(found, NodeTypes(frozenset({json_type(node["const"])})))
        for one in (self._resolve_reference(node), *_list_of(node, "allOf")):
            found = _intersect(found, self._types_of(one, depth + 1))
        for word in ("anyOf", "oneOf"):
            options = [self._types_of(one, depth + 1) for one in _list_of(node, word)]
            found = _intersect(found, _unite(options))
        return found


_COMBINATORS = ("allOf", "anyOf", "oneOf")
_COMPOSITE = frozenset({"$ref", *_COMBINATORS})
_TYPE_SOURCES = _COMPOSITE | {"enum", "const"}  # what is said besides a `type`


def _list_of(node: Mapping[str, Any], word: str) -> list[Any]:
    said = node.get(word)
    return said if isinstance(said, list) else []


def _combine(word: str, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else {word: parts}


def _select_member(node: Mapping[str, Any], key: str) -> Any:
    inner, patterns = node.get("properties"), node.get("patternProperties")
    if isinstance(inner, Mapping) and key in inner:
        return inner[key]
    rest = node.get("additionalProperties")
    if isinstance(patterns, Mapping) and patterns:
        # which of them it fits is not asked: a client's pattern may take its time
        some = [one for one in (*patterns.values(), rest) if isinstance(one, Mapping)]
        return {"anyOf": some[:MAX_NODES]} if some else None
    return rest if isinstance(rest, Mapping) or rest is False else None


def _select_item(node: Mapping[str, Any], at: int) -> Any:
    older = isinstance(node.get("items"), list) and "prefixItems" not in node
    first, rest = ("items", "additionalItems") if older else ("prefixItems", "items")
    listed = _list_of(node, first)
    return listed[at] if at < len(listed) else node.get(rest)


def _declared_types(node: Mapping[str, Any]) -> Types | None:
    """The kinds that a node's `type` names."""
    said = node.get("type")
    every = said if isinstance(said, list) else [said]
    named = [one for one in every if isinstance(one, str)]
    return frozenset(SYNONYMS.get(one, one) for one in named) if named else None


def _implied_types(node: Mapping[str, Any]) -> Types:
    """The kinds that a node's words are about."""
    words = node.keys() - ({"required"} if isinstance(node.get("required"), bool) else set())
    return frozenset(kind for kind, own in KEYWORDS_BY_TYPE.items() if not own.isdisjoint(words))


def _intersect(one: NodeTypes, other: NodeTypes) -> NodeTypes:
    """What two nodes say of the same value."""
    meant = one.implied | other.implied
    if one.types is None or other.types is None:
        return NodeTypes(other.types if one.types is None else one.types, meant)
    both = one.types & other.types
    for left, right in ((one.types, other.types), (other.types, one.types)):
        if "integer" in left and "number" in right:
            both |= {"integer"}
    return NodeTypes(both, meant)


def _unite(options: list[NodeTypes]) -> NodeTypes:
    """What they say where one of them is enough."""
    every = [found for one in options if (found := one.effective) is not None]
    if not options or len(every) < len(options):
        return UNKNOWN
    found = frozenset[str]().union(*every)
    sure = all(one.types is not None for one in options)
    return NodeTypes(found) if sure else NodeTypes(None, found)


def json_type(value: object) -> str:
    """The kind of a value."""
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
    """The schema of a tool's parameters, whatever it was declared with."""
    root = parameters if isinstance(parameters, Mapping) else {}
    return ParameterSchema(root, root, {})
