"""Places in a schema: JSON pointers, what they lead to, and a first look at what is there."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

from dragoman.constraint.schemas.nodes import Exactly, Node, Object
from dragoman.constraint.schemas.simple import ANYTHING, EVERY, NOTHING, either
from dragoman.types import Json

_INDEX = re.compile("0|[1-9][0-9]{0,5}")


class Lost(Exception):
    """A reference that leads nowhere; what it says is why."""


def token(name: str) -> str:
    """A name as a step of a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def find(root: Json, reference: str) -> tuple[str, Json]:
    """The pointer and the schema that a reference leads to."""
    if reference != "#" and not reference.startswith("#/"):
        raise Lost("must lead to a place in this schema, like `#/$defs/name`")
    target, pointer = root, ""
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        pointer += f"/{token(name)}"
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and _INDEX.fullmatch(name) and int(name) < len(target):
            target = target[int(name)]
        else:
            raise Lost("leads to nothing")
    return pointer, target


def glimpse(schema: Json, *, deep: bool = True) -> Node:
    """No less than a schema allows, by the words that options are told apart with.

    It is for a schema that is still being read, and was not checked.
    """
    if not isinstance(schema, dict):
        return NOTHING if schema is False else ANYTHING
    if isinstance(schema.get("enum"), list):
        return Exactly(tuple(map(json.dumps, schema["enum"])))
    if "const" in schema:
        return Exactly((json.dumps(schema["const"]),))
    kind = schema.get("type")
    if kind == "object" and deep:
        members, required = schema.get("properties"), schema.get("required")
        table = members if isinstance(members, dict) else {}
        names = required if isinstance(required, list) else []
        return Object(
            tuple((name, glimpse(inner, deep=False)) for name, inner in table.items()),
            frozenset(name for name in names if isinstance(name, str)),
        )
    kinds = kind if isinstance(kind, list) else [kind]
    known = [EVERY.get(one, ANYTHING) if isinstance(one, str) else ANYTHING for one in kinds]
    return either(known)
