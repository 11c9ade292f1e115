"""Resolves references inside a JSON schema by JSON pointer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from dragoman.types import Json

_INDEX = re.compile("0|[1-9][0-9]{0,5}")


class UnresolvedReference(Exception):
    """A reference that cannot be resolved; the message says why."""


def escape_token(name: str) -> str:
    """Escape a name for use in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def resolve_reference(root: Json, reference: str) -> tuple[str, Json]:
    """Return the pointer and the schema that a reference names."""
    if reference != "#" and not reference.startswith("#/"):
        raise UnresolvedReference("must point into this schema, like `#/$defs/name`")
    target, pointer = root, ""
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        pointer += f"/{escape_token(name)}"
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list) and _INDEX.fullmatch(name) and int(name) < len(target):
            target = target[int(name)]
        else:
            raise UnresolvedReference("does not exist in this schema")
    return pointer, target
