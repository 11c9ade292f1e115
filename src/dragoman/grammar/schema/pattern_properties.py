"""Objects with `patternProperties`: the value of a property depends on patterns in its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeAlias

from dragoman.grammar.regex.escape import escape_class_operators
from dragoman.grammar.regex.full_match import is_supported_pattern
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.nodes import KeyPattern, LlguidanceSchema, Node, Nothing, Object
from dragoman.grammar.schema.simplify import ANYTHING

ANY_OBJECT = json.dumps({"type": ["object"]})
MAX_PATTERNS = 4  # a name may match any combination of them
Intersect: TypeAlias = Callable[[Node, Node], Node | None]


def build_pattern_object(
    node: Object,
    patterns: Sequence[tuple[str, Node]],
    checker: LlguidanceChecker,
    intersect: Intersect,
) -> LlguidanceSchema | None:
    """Add pattern properties to an object; return None if it cannot be expressed."""
    supported = [
        (escaped, value)
        for pattern, value in patterns
        if (escaped := escape_class_operators(pattern)) and _is_supported(escaped, checker)
    ]
    if len(supported) < len(patterns) or len(supported) > MAX_PATTERNS:
        return None
    known = dict(node.properties)
    properties = []
    for name in (*known, *sorted(node.required - known.keys())):
        matches = [checker.pattern_matches(name, pattern) for pattern, _ in supported]
        if None in matches:
            return None
        values = [
            value for (_, value), is_match in zip(supported, matches, strict=True) if is_match
        ]
        own_value = known.get(name, ANYTHING if values else node.additional)
        value = _intersect_all([own_value, *values], intersect)
        if value is None:
            return None
        properties.append((name, value))
    by_pattern = []
    for matching in _compatible_patterns([pattern for pattern, _ in supported], checker):
        values = [value for pattern, value in supported if pattern in matching]
        value = _intersect_all(values, intersect)
        if value is None:
            return None
        if not isinstance(value, Nothing):
            excluded = tuple(pattern for pattern, _ in supported if pattern not in matching)
            by_pattern.append((KeyPattern(matching, excluded), value))
    object_node = replace(
        node,
        properties=tuple(properties),
        patterns=tuple(pattern for pattern, _ in supported),
        pattern_properties=tuple(by_pattern),
    )
    return LlguidanceSchema(ANY_OBJECT, object_node)


def _is_supported(pattern: str, checker: LlguidanceChecker) -> bool:
    verdict = checker.check({"type": "string", "pattern": pattern})
    return verdict == "satisfiable" and is_supported_pattern(pattern)


def _compatible_patterns(
    patterns: Sequence[str], checker: LlguidanceChecker
) -> list[tuple[str, ...]]:
    """Return the combinations of patterns that one name may match."""
    compatible = []
    for count in range(1, len(patterns) + 1):
        for combination in combinations(patterns, count):
            parts = [{"pattern": pattern} for pattern in combination]
            if count == 1 or checker.check({"type": "string", "allOf": parts}) != "empty":
                compatible.append(combination)
    return compatible


def _intersect_all(nodes: Sequence[Node], intersect: Intersect) -> Node | None:
    result: Node | None = ANYTHING
    for node in nodes:
        result = None if result is None else intersect(result, node)
    return result
