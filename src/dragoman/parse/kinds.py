"""What a tool's schema says of its parameters, as far as reading them needs it.

A schema comes with a request, so it is walked with bounds: every node once, whatever refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Types: TypeAlias = frozenset[str]

STRING: Types = frozenset({"string"})
ANY: Types = frozenset()
SYNONYMS = {"str": "string", "text": "string", "int": "integer", "float": "number"}
SYNONYMS |= {"double": "number", "bool": "boolean", "dict": "object", "list": "array"}
SYNONYMS |= {"varchar": "string", "char": "string", "enum": "string", "uint": "integer"}
DEEPEST = 32
WIDEST = 256  # choices within choices


class Schema:
    """A place in a tool's schema."""

    def __init__(self, node: object, root: Mapping[str, Any], memo: dict[int, Types]) -> None:
        self._root = root
        self._memo = memo
        self._node = node if isinstance(node, Mapping) else {}
        self.types = self._kinds(node, 0)

    def member(self, key: str) -> Schema:
        nodes = [inner[key] for inner in self._members() if key in inner]
        if not nodes:
            nodes = [self._holder("additionalProperties").get("additionalProperties")]
        known = [node for node in nodes if self._kinds(node, 0)]
        if len(known) < 2:
            return Schema((known or nodes)[0], self._root, self._memo)
        return Schema({"anyOf": known}, self._root, {})

    def item(self, at: int) -> Schema:
        for word in ("prefixItems", "items"):
            found = self._holder(word).get(word)
            if isinstance(found, list):
                found = found[at] if at < len(found) else None
            if found is not None:
                return Schema(found, self._root, self._memo)
        return Schema(None, self._root, self._memo)

    def names(self) -> list[str]:
        every = [key for inner in self._members() for key in inner if isinstance(key, str)]
        return list(dict.fromkeys(every))

    def _members(self) -> list[Mapping[str, Any]]:
        """The properties of the node, of what it refers to, and of all its choices."""
        found, queue, seen = [], [self._node], set[int]()
        while queue and len(seen) < WIDEST:
            node = queue.pop(0)
            if id(node) in seen:
                continue
            seen.add(id(node))
            inner = node.get("properties")
            found += [inner] if isinstance(inner, Mapping) else []
            queue += _choices(node, self._root)
        return found

    def _holder(self, word: str) -> Mapping[str, Any]:
        """The node itself, or what it refers to, or its first choice, that has this word."""
        node: Mapping[str, Any] = self._node
        for _ in range(DEEPEST):
            if word in node:
                return node
            following = _followed(node, self._root, word)
            if following is None:
                return {}
            node = following
        return {}

    def _kinds(self, node: object, depth: int) -> Types:
        """The kinds of value that a node allows; none of them means any."""
        if not isinstance(node, Mapping) or depth > DEEPEST:
            return ANY
        known = self._memo.get(id(node))
        if known is None:
            self._memo[id(node)] = ANY  # for whatever refers back to it
            known = self._memo[id(node)] = self._found(node, depth)
        return known

    def _found(self, node: Mapping[str, Any], depth: int) -> Types:
        said = node.get("type")
        if isinstance(said, str):
            return frozenset({SYNONYMS.get(said, said)})
        if isinstance(said, list):
            return frozenset(SYNONYMS.get(one, one) for one in said if isinstance(one, str))
        if isinstance(node.get("$ref"), str):
            return self._kinds(_resolved(node["$ref"], self._root), depth + 1)
        for word in ("anyOf", "oneOf"):
            if isinstance(node.get(word), list) and node[word]:
                kinds = [self._kinds(one, depth + 1) for one in node[word]]
                return frozenset().union(*kinds) if all(kinds) else ANY
        if isinstance(node.get("allOf"), list):
            kinds = [found for one in node["allOf"] if (found := self._kinds(one, depth + 1))]
            return frozenset.intersection(*kinds) if kinds else ANY
        return _implied(node)


def _implied(node: Mapping[str, Any]) -> Types:
    if isinstance(node.get("enum"), list):
        return frozenset(map(_kind, node["enum"]))
    if "const" in node:
        return frozenset({_kind(node["const"])})
    if "properties" in node:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in node else ANY


def _followed(node: Mapping[str, Any], root: Mapping[str, Any], word: str) -> Any:
    if isinstance(node.get("$ref"), str):
        return _resolved(node["$ref"], root)
    for choice in ("anyOf", "oneOf", "allOf"):
        for one in node.get(choice) or ():
            if isinstance(one, Mapping) and (word in one or "$ref" in one):
                return one
    return None


def _choices(node: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = [
        node[word] for word in ("allOf", "anyOf", "oneOf") if isinstance(node.get(word), list)
    ]
    found = [one for choices in listed for one in choices if isinstance(one, Mapping)]
    reference = node.get("$ref")
    referred = _resolved(reference, root) if isinstance(reference, str) else None
    return found if referred is None else [referred, *found]


def _resolved(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    node: object = root
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/")[:DEEPEST]:
        node = node.get(step) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None


def _kind(value: object) -> str:
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
