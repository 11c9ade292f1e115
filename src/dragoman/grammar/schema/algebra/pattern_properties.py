"""Objects with `patternProperties`: the value of a property depends on patterns in its name.

The patterns divide the names that are not listed into classes: the names in which just some of the
patterns are found. `Object.pattern_properties` has a node for each class in which a name can be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from dragoman.grammar.regex.full_match import is_supported_pattern
from dragoman.grammar.regex.schema_pattern import translate_pattern
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.nodes import KeyPattern, Node, Nothing, Object
from dragoman.grammar.schema.simplify import ANYTHING, NOTHING

MAX_PATTERNS, MAX_CLASSES = 8, 15  # a name may match any combination of patterns
Intersect: TypeAlias = Callable[[Node, Node], Node | None]


class TooManyPatterns(Exception):
    """The patterns divide names into too many classes."""


def add_pattern_properties(
    node: Object,
    patterns: Sequence[tuple[str, Node]],
    checker: LlguidanceChecker,
    intersect: Intersect,
) -> Object | None:
    """Add pattern properties to an object; return None if it cannot be expressed."""
    if len(patterns) > MAX_PATTERNS:
        return None
    supported = [
        (translated, value)
        for pattern, value in patterns
        if (translated := translate_pattern(pattern)) is not None
        and is_supported_key(translated, checker)
    ]
    if len(supported) < len(patterns):
        return None
    values = dict(supported)
    own_values = dict(node.properties)

    def combine(name: str | None, matching: Collection[str]) -> Node | None:
        """Return what a name with these patterns may be; None is a name that is not listed."""
        own = None if name is None else own_values.get(name)
        if own is None:
            own = ANYTHING if matching else node.additional
        result: Node | None = own
        for pattern in matching:
            result = None if result is None else intersect(result, values[pattern])
        return result

    return _build_object(node, list(values), combine, checker)


def find_property(node: Object, name: str, checker: LlguidanceChecker) -> Node | None:
    """Return what the property of this name may be, or None if that is unknown."""
    known = dict(node.properties)
    if name in known:
        return known[name]
    matching = _find_matching(name, node.patterns, checker)
    return None if matching is None else _find_class(node, matching)


def intersect_patterns(
    left: Object, right: Object, checker: LlguidanceChecker, intersect: Intersect
) -> Object | None:
    """Intersect the properties of two objects of which one has patterns, not their counts."""
    lefts, rights = dict(left.properties), dict(right.properties)
    names = tuple((name, ANYTHING) for name in dict.fromkeys((*lefts, *rights)))
    frame = Object(names, left.required | right.required)

    def combine(name: str | None, matching: Collection[str]) -> Node | None:
        values = []
        for node, known in ((left, lefts), (right, rights)):
            is_known = name is not None and name in known
            found = [pattern for pattern in node.patterns if pattern in matching]
            values.append(known[name] if is_known and name else _find_class(node, found))
        return intersect(values[0], values[1])

    return _build_object(
        frame, list(dict.fromkeys((*left.patterns, *right.patterns))), combine, checker
    )


def _build_object(
    node: Object,
    patterns: Sequence[str],
    combine: Callable[[str | None, Collection[str]], Node | None],
    checker: LlguidanceChecker,
) -> Object | None:
    """Compute the properties and classes of an object with these names and patterns."""
    if len(patterns) > MAX_PATTERNS:
        return None
    properties = []
    for name in (*node.names, *sorted(node.required - set(node.names))):
        found = _find_matching(name, patterns, checker)
        value = None if found is None else combine(name, found)
        if value is None:
            return None
        properties.append((name, value))
    additional = combine(None, ())
    if additional is None:
        return None
    by_pattern = []
    try:
        classes = _list_compatible_patterns(patterns, checker)
    except TooManyPatterns:
        return None
    for matching in classes:
        value = combine(None, matching)
        if value is None:
            return None
        excluded = tuple(pattern for pattern in patterns if pattern not in matching)
        by_pattern.append((KeyPattern(matching, excluded), value))
    if all(value == additional for _, value in by_pattern):
        return replace(node, properties=tuple(properties), additional=additional)
    possible = tuple((keys, node) for keys, node in by_pattern if not isinstance(node, Nothing))
    return replace(
        node,
        properties=tuple(properties),
        additional=additional,
        patterns=tuple(patterns),
        pattern_properties=possible,
    )


def _find_class(node: Object, matching: Sequence[str]) -> Node:
    """Return the node for unlisted names in which exactly these patterns are found."""
    if not matching:
        return node.additional
    for keys, value in node.pattern_properties:
        if set(keys.matches) == set(matching):
            return value
    return NOTHING


def _find_matching(
    name: str, patterns: Sequence[str], checker: LlguidanceChecker
) -> list[str] | None:
    matches = {pattern: checker.pattern_matches(name, pattern) for pattern in patterns}
    if None in matches.values():
        return None
    return [pattern for pattern, is_match in matches.items() if is_match]


def is_supported_key(pattern: str, checker: LlguidanceChecker) -> bool:
    """Whether a grammar can enforce a pattern on property names."""
    verdict = checker.check({"type": "string", "pattern": pattern})
    return verdict == "satisfiable" and is_supported_pattern(pattern)


def _list_compatible_patterns(
    patterns: Sequence[str], checker: LlguidanceChecker
) -> list[tuple[str, ...]]:
    """Return the combinations of patterns that one name may match."""
    compatible: list[tuple[str, ...]] = []
    for pattern in patterns:
        for combination in ((), *compatible):
            parts = [{"pattern": part} for part in (*combination, pattern)]
            if not combination or checker.check({"type": "string", "allOf": parts}) != "empty":
                compatible.append((*combination, pattern))
        if len(compatible) > MAX_CLASSES:
            raise TooManyPatterns
    return compatible
