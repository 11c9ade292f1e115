"""Objects whose members are told by patterns of their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from dragoman.grammar.regex.full_match import searchable
from dragoman.grammar.schema import keywords
from dragoman.grammar.schema.llguidance_schema import Judge
from dragoman.grammar.schema.nodes import Foreign, Keys, Node, Nothing, Object
from dragoman.grammar.schema.simplify import ANYTHING

OBJECT = json.dumps({"type": ["object"]})
MOST = 4  # patterns: a name may match any of them at once
Meet = Callable[[Node, Node], Node | None]


def patterned(
    node: Object, patterns: Sequence[tuple[str, Node]], judge: Judge, meet: Meet
) -> Foreign | None:
    """An object with members by patterns; None where we cannot write that."""
    said = [(keywords.spelled(pattern), inner) for pattern, inner in patterns]
    known = [(pattern, inner) for pattern, inner in said if pattern and _readable(pattern, judge)]
    if len(known) < len(said) or len(known) > MOST:
        return None
    wanted = dict(node.members)
    members = []
    for name in (*wanted, *sorted(node.required - wanted.keys())):
        told = [judge.matches(name, pattern) for pattern, _ in known]
        inner = [one for (_, one), hit in zip(known, told, strict=True) if hit]
        first = wanted.get(name, ANYTHING if inner else node.others)
        met = None if None in told else _met([first, *inner], meet)
        if met is None:
            return None
        members.append((name, met))
    keyed = []
    for some in _together([pattern for pattern, _ in known], judge):
        met = _met([inner for pattern, inner in known if pattern in some], meet)
        if met is None:
            return None
        lacks = tuple(pattern for pattern, _ in known if pattern not in some)
        keyed += [] if isinstance(met, Nothing) else [(Keys(some, lacks), met)]
    every = tuple(pattern for pattern, _ in known)
    own = replace(node, members=tuple(members), patterns=every, keyed=tuple(keyed))
    return Foreign(OBJECT, own)


def _readable(pattern: str, judge: Judge) -> bool:
    fine = judge.verdict({"type": "string", "pattern": pattern}) == "fine"
    return fine and searchable(pattern)


def _together(patterns: Sequence[str], judge: Judge) -> list[tuple[str, ...]]:
    """Patterns that may be found in one name."""
    found = []
    for count in range(1, len(patterns) + 1):
        for some in combinations(patterns, count):
            parts = [{"pattern": pattern} for pattern in some]
            if count == 1 or judge.verdict({"type": "string", "allOf": parts}) != "empty":
                found.append(some)
    return found


def _met(nodes: Sequence[Node], meet: Meet) -> Node | None:
    found: Node | None = ANYTHING
    for node in nodes:
        found = None if found is None else meet(found, node)
    return found
