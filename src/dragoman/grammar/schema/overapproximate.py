"""Places in a schema, and a first look at what is there."""

from __future__ import annotations

import json

from dragoman.grammar.schema.nodes import Literals, Node, Object
from dragoman.grammar.schema.simplify import ALL_TYPES, ANYTHING, NOTHING, union_nodes
from dragoman.types import Json


def overapproximate_schema(schema: Json, *, deep: bool = True) -> Node:
    """No less than a schema allows, by the words that options are told apart with.

    It is for a schema that is still being read, and was not checked.
    """
    if not isinstance(schema, dict):
        return NOTHING if schema is False else ANYTHING
    if isinstance(schema.get("enum"), list):
        return Literals(tuple(map(json.dumps, schema["enum"])))
    if "const" in schema:
        return Literals((json.dumps(schema["const"]),))
    kind = schema.get("type")
    if kind == "object" and deep:
        members, required = schema.get("properties"), schema.get("required")
        table = members if isinstance(members, dict) else {}
        names = required if isinstance(required, list) else []
        return Object(
            tuple(
                (name, overapproximate_schema(inner, deep=False)) for name, inner in table.items()
            ),
            frozenset(name for name in names if isinstance(name, str)),
        )
    kinds = kind if isinstance(kind, list) else [kind]
    known = [ALL_TYPES.get(one, ANYTHING) if isinstance(one, str) else ANYTHING for one in kinds]
    return union_nodes(known)
