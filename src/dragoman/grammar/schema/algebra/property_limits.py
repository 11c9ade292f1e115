"""Objects with restricted property names or a restricted number of properties."""

from __future__ import annotations

import json
from dataclasses import replace

from dragoman.grammar.schema.algebra.pattern_properties import Intersect, add_pattern_properties
from dragoman.grammar.schema.limits import MAX_BITS, MAX_COUNTED, MAX_EXCLUDED_LENGTH
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.nodes import Literals, Node, Nothing, Object, String
from dragoman.grammar.schema.simplify import (
    ANYTHING,
    NOTHING,
    simplify_object,
    union_nodes,
)

MAX_OPTIONAL = 16  # properties of which one is needed: each gets an option of its own


def list_name_restrictions(
    names: Node | None, checker: LlguidanceChecker, intersect: Intersect
) -> list[Object] | None:
    """Return objects that together allow just these names; None if nodes cannot express them."""
    text = None if names is None else intersect(names, String())
    if isinstance(text, Literals):
        known = tuple((json.loads(name), ANYTHING) for name in text.values)
        return [Object(known, frozenset(), NOTHING)]
    if not isinstance(text, String):
        return [Object((), frozenset(), NOTHING)] if isinstance(text, Nothing) else None
    patterns = [text.pattern] if text.pattern is not None else []
    if text.min_length or text.max_length is not None:
        most = "" if text.max_length is None else text.max_length
        patterns.append(f"^(?s:.{{{text.min_length},{most}}})$")
    is_long = max(text.min_length, text.max_length or 0) > MAX_EXCLUDED_LENGTH
    if is_long or text.format is not None or text.excluded_patterns:
        return None
    nothing = Object((), frozenset(), NOTHING)
    frames = [
        add_pattern_properties(nothing, [(pattern, ANYTHING)], checker, intersect)
        for pattern in patterns
    ]
    return None if None in frames else [frame for frame in frames if frame is not None]


def limit_property_count(node: Object, minimum: int, maximum: int | None) -> Node:
    """Apply `minProperties` and `maxProperties`, without counting if possible."""
    limited = simplify_object(replace(node, min_properties=minimum, max_properties=maximum))
    if not isinstance(limited, Object) or limited.patterns or limited.max_properties is not None:
        return limited
    optional = [name for name in limited.names if name not in limited.required]
    missing = limited.min_properties - len(limited.required)
    is_closed = isinstance(limited.additional, Nothing)
    if not is_closed or missing != 1 or len(optional) > MAX_OPTIONAL:
        return limited
    uncounted = replace(limited, min_properties=0)
    return union_nodes(replace(uncounted, required=limited.required | {name}) for name in optional)


def may_repeat_names(node: Node) -> bool:
    """Whether an object has enough properties only if a name that is written twice counts twice.

    The listed names are written at most once, and all others can be the same name.
    """
    if not isinstance(node, Object):
        return False
    is_open = bool(node.pattern_properties) or not isinstance(node.additional, Nothing)
    return is_open and node.min_properties > len(node.required) + 1


def has_too_many_to_count(node: Node) -> bool:
    """Whether the properties of an object must be counted, and are too many for that."""
    if not isinstance(node, Object) or not (node.min_properties or node.max_properties):
        return False
    is_open = bool(node.pattern_properties) or not isinstance(node.additional, Nothing)
    return len(node.names) > (MAX_COUNTED if is_open else MAX_BITS)
