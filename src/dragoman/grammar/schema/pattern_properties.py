"""Objects whose members are told by patterns of their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from dragoman.grammar.regex.escape import escape_class_operators
from dragoman.grammar.regex.full_match import is_supported_pattern
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.nodes import KeyPattern, LlguidanceSchema, Node, Nothing, Object
from dragoman.grammar.schema.simplify import ANYTHING

ANY_OBJECT = json.dumps({"type": ["object"]})
MAX_PATTERNS = 4  # patterns: a name may match any of them at once
Intersect = Callable[[Node, Node], Node | None]


def build_pattern_object(
    node: Object, patterns: Sequence[tuple[str, Node]], judge: LlguidanceChecker, meet: Intersect
) -> LlguidanceSchema | None:
    """An object with members by patterns; None where we cannot write that."""
    said = [(escape_class_operators(pattern), inner) for pattern, inner in patterns]
    known = [
        (pattern, inner) for pattern, inner in said if pattern and _is_supported(pattern, judge)
    ]
    if len(known) < len(said) or len(known) > MAX_PATTERNS:
        return None
    wanted = dict(node.properties)
    members = []
    for name in (*wanted, *sorted(node.required - wanted.keys())):
        told = [judge.pattern_matches(name, pattern) for pattern, _ in known]
        inner = [one for (_, one), hit in zip(known, told, strict=True) if hit]
        first = wanted.get(name, ANYTHING if inner else node.additional)
        met = None if None in told else _intersect_all([first, *inner], meet)
        if met is None:
            return None
        members.append((name, met))
    keyed = []
    for some in _compatible_patterns([pattern for pattern, _ in known], judge):
        met = _intersect_all([inner for pattern, inner in known if pattern in some], meet)
        if met is None:
            return None
        lacks = tuple(pattern for pattern, _ in known if pattern not in some)
        keyed += [] if isinstance(met, Nothing) else [(KeyPattern(some, lacks), met)]
    every = tuple(pattern for pattern, _ in known)
    own = replace(node, properties=tuple(members), patterns=every, pattern_properties=tuple(keyed))
    return LlguidanceSchema(ANY_OBJECT, own)


def _is_supported(pattern: str, judge: LlguidanceChecker) -> bool:
    fine = judge.check({"type": "string", "pattern": pattern}) == "satisfiable"
    return fine and is_supported_pattern(pattern)


def _compatible_patterns(
    patterns: Sequence[str], judge: LlguidanceChecker
) -> list[tuple[str, ...]]:
    """Patterns that may be found in one name."""
    found = []
    for count in range(1, len(patterns) + 1):
        for some in combinations(patterns, count):
            parts = [{"pattern": pattern} for pattern in some]
            if count == 1 or judge.check({"type": "string", "allOf": parts}) != "empty":
                found.append(some)
    return found


def _intersect_all(nodes: Sequence[Node], meet: Intersect) -> Node | None:
    found: Node | None = ANYTHING
    for node in nodes:
        found = None if found is None else meet(found, node)
    return found
