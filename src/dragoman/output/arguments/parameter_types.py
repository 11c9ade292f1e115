"""What a tool's schema says of its parameters, as far as reading them needs it.

A schema comes with a request, so it is walked with bounds: every node once, whatever refers to it.
All that a node says is put together: its `type` and its values, what it refers to, what it is all
of and one of. Words that are about one kind of value tell the kind only where nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from dragoman.output.arguments.json_pointer import Lost, find

Types: TypeAlias = frozenset[str]

STRING: Types = frozenset({"string"})
ANY: Types = frozenset()
SYNONYMS = {"str": "string", "text": "string", "int": "integer", "float": "number"}
SYNONYMS |= {"double": "number", "bool": "boolean", "dict": "object", "list": "array"}
SYNONYMS |= {"varchar": "string", "char": "string", "enum": "string", "uint": "integer"}
# the words that tell the kind of value where no `type` does
WORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
    | {"multipleOf"},
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})
    | {"contains"},
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties"})
    | {"minProperties", "maxProperties", "propertyNames"},
}
DEEPEST = 64
WIDEST = 256  # choices within choices


class Said(NamedTuple):
    """The kinds that a node allows, None for any; and those that its words are about."""

    types: Types | None = None
    meant: Types = ANY

    @property
    def all(self) -> Types | None:
        return (self.meant or None) if self.types is None else self.types


NOTHING_SAID = Said()
# by the identity of a node, which is kept: another could have the same later
Memo: TypeAlias = dict[int, tuple[object, Said]]
Picker: TypeAlias = Callable[[Mapping[str, Any]], Any]


class Schema:
    """A place in a tool's schema. Its `types` are none where any kind of value will do."""

    def __init__(self, node: object, root: Mapping[str, Any], memo: Memo) -> None:
        self._root = root
        self._memo = memo
        self._node = node if isinstance(node, Mapping) else {}
        self.types = self._kinds(node).all or ANY

    def member(self, key: str) -> Schema:
        return self._below(lambda node: _member(node, key))

    def item(self, at: int) -> Schema:
        return self._below(lambda node: _item(node, at))

    def names(self) -> list[str]:
        found, queue, seen = dict[str, None](), [self._node], set[int]()
        while queue and len(seen) < WIDEST:
            node = queue.pop(0)
            if id(node) in seen:
                continue
            seen.add(id(node))
            inner = node.get("properties")
            if isinstance(inner, Mapping):
                found |= dict.fromkeys(key for key in inner if isinstance(key, str))
            every = [self._target(node), *(one for word in _LISTS for one in _listed(node, word))]
            queue += [one for one in every if isinstance(one, Mapping)]
        return list(found)

    def _below(self, pick: Picker) -> Schema:
        """The part that is picked from the node and from all that it is made of."""
        return Schema(self._part(self._node, pick, {}, 0), self._root, self._memo)

    def _part(self, node: object, pick: Picker, seen: dict[int, Any], depth: int) -> Any:
        """What a node says of a part; None where it says nothing."""
        if not isinstance(node, Mapping) or depth > DEEPEST:
            return None
        if id(node) not in seen and len(seen) < WIDEST:
            seen[id(node)] = None  # for whatever refers back to it
            plain = _PARTS.isdisjoint(node)
            seen[id(node)] = pick(node) if plain else self._joined(node, pick, seen, depth)
        return seen.get(id(node))

    def _joined(
        self, node: Mapping[str, Any], pick: Picker, seen: dict[int, Any], depth: int
    ) -> Any:
        """The same for a node that is made of others."""

        def parts(every: Iterable[object]) -> list[Any]:
            found = [self._part(one, pick, seen, depth + 1) for one in every]
            return [part for part in found if part is not None]

        said = parts([self._target(node), *_listed(node, "allOf")[:WIDEST]])
        own = pick(node)
        said += [] if own is None else [own]
        for word in ("anyOf", "oneOf"):
            options = parts(_listed(node, word)[:WIDEST])
            # one that says nothing, or that it may not be, is no reason to doubt the others
            known = [one for one in options if self._kinds(one).all]
            said += [_of("anyOf", known)] if known else []
        return _of("allOf", said) if said else None

    def _target(self, node: Mapping[str, Any]) -> Any:
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return None
        try:
            return find(self._root, reference)[1]
        except Lost:
            return None

    def _kinds(self, node: object, depth: int = 0) -> Said:
        if node is False:
            return Said(frozenset())
        if not isinstance(node, Mapping) or depth > DEEPEST:
            return NOTHING_SAID
        memo = self._memo
        if id(node) not in memo:
            memo[id(node)] = node, NOTHING_SAID  # for whatever refers back to it
            memo[id(node)] = node, self._found(node, depth)
        return memo[id(node)][1]

    def _found(self, node: Mapping[str, Any], depth: int) -> Said:
        found = Said(_named(node), _meant(node))
        if found.types is not None and _MORE.isdisjoint(node):
            return found
        if isinstance(node.get("enum"), list):
            found = _met(found, Said(frozenset(map(kind_of, node["enum"]))))
        if "const" in node:
            found = _met(found, Said(frozenset({kind_of(node["const"])})))
        for one in (self._target(node), *_listed(node, "allOf")):
            found = _met(found, self._kinds(one, depth + 1))
        for word in ("anyOf", "oneOf"):
            options = [self._kinds(one, depth + 1) for one in _listed(node, word)]
            found = _met(found, _any_of(options))
        return found


_LISTS = ("allOf", "anyOf", "oneOf")
_PARTS = frozenset({"$ref", *_LISTS})
_MORE = _PARTS | {"enum", "const"}  # what is said besides a `type`


def _listed(node: Mapping[str, Any], word: str) -> list[Any]:
    said = node.get(word)
    return said if isinstance(said, list) else []


def _of(word: str, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else {word: parts}


def _member(node: Mapping[str, Any], key: str) -> Any:
    inner, patterns = node.get("properties"), node.get("patternProperties")
    if isinstance(inner, Mapping) and key in inner:
        return inner[key]
    rest = node.get("additionalProperties")
    if isinstance(patterns, Mapping) and patterns:
        # which of them it fits is not asked: a client's pattern may take its time
        some = [one for one in (*patterns.values(), rest) if isinstance(one, Mapping)]
        return {"anyOf": some[:WIDEST]} if some else None
    return rest if isinstance(rest, Mapping) or rest is False else None


def _item(node: Mapping[str, Any], at: int) -> Any:
    older = isinstance(node.get("items"), list) and "prefixItems" not in node
    first, rest = ("items", "additionalItems") if older else ("prefixItems", "items")
    listed = _listed(node, first)
    return listed[at] if at < len(listed) else node.get(rest)


def _named(node: Mapping[str, Any]) -> Types | None:
    """The kinds that a node's `type` names."""
    said = node.get("type")
    every = said if isinstance(said, list) else [said]
    named = [one for one in every if isinstance(one, str)]
    return frozenset(SYNONYMS.get(one, one) for one in named) if named else None


def _meant(node: Mapping[str, Any]) -> Types:
    """The kinds that a node's words are about."""
    words = node.keys() - ({"required"} if isinstance(node.get("required"), bool) else set())
    return frozenset(kind for kind, own in WORDS.items() if not own.isdisjoint(words))


def _met(one: Said, other: Said) -> Said:
    """What two nodes say of the same value."""
    meant = one.meant | other.meant
    if one.types is None or other.types is None:
        return Said(other.types if one.types is None else one.types, meant)
    both = one.types & other.types
    for left, right in ((one.types, other.types), (other.types, one.types)):
        if "integer" in left and "number" in right:
            both |= {"integer"}
    return Said(both, meant)


def _any_of(options: list[Said]) -> Said:
    """What they say where one of them is enough."""
    every = [found for one in options if (found := one.all) is not None]
    if not options or len(every) < len(options):
        return NOTHING_SAID
    found = frozenset[str]().union(*every)
    sure = all(one.types is not None for one in options)
    return Said(found) if sure else Said(None, found)


def kind_of(value: object) -> str:
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


def schema_of(parameters: object) -> Schema:
    """The schema of a tool's parameters, whatever it was declared with."""
    root = parameters if isinstance(parameters, Mapping) else {}
    return Schema(root, root, {})
