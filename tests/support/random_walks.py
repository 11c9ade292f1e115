"""Random walks through the grammars of formats: what a walk writes must be a valid answer.

The tools have one schema for each kind of value that formats write differently. `find_errors` reads
each text with the parser of its format and reports the texts whose calls violate their schemas.
"""

from __future__ import annotations

import random
from typing import Any

from dragoman.formats import get_tool_formats
from tests.support.grammars import FormatPair, make_object

NAMES = list(get_tool_formats())
NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


SCHEMAS: list[dict[str, Any]] = [
    make_object("a", a=NUMBER, b=TEXT),
    make_object(
        "city unit",
        city={"type": "string", "minLength": 1, "maxLength": 5},
        unit={"enum": ["c", "f"]},
        n={"type": "integer", "minimum": 3, "maximum": 40},
    ),
    make_object(
        "o",
        x={"type": ["string", "null"]},
        l={"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        o=make_object("k", k={"type": "boolean"}, z={"type": "number"}),
    ),
    make_object(),
    make_object(
        "p q",
        p={"type": "string", "pattern": "^[a-z]{2,4}$"},
        q={"anyOf": [TEXT, {"type": "integer", "minimum": 5}]},
        r={"anyOf": [{"const": "s"}, {"type": "array", "items": NUMBER}]},
    ),
    make_object("a", additional=True, a=TEXT),
    {"type": "object"},
    make_object("t", t={"$ref": "#/$defs/t"})
    | {"$defs": {"t": make_object("v", v=NUMBER, n={"$ref": "#/$defs/t"})}},
    make_object("v", d={"type": "string", "format": "date"}, v={"enum": [1, "1", None, True]}),
    {
        "anyOf": [
            make_object("b", b=TEXT),
            make_object("a", a=NUMBER),
            make_object("b c", b=NUMBER, c=NUMBER),
        ]
    },
    make_object("a", additional=NUMBER, a=NUMBER),
    make_object(
        "m",
        m={"type": "object", "additionalProperties": NUMBER},
        t={"type": "array", "prefixItems": [NUMBER, TEXT], "items": False, "minItems": 2},
    ),
    make_object(
        "l",
        l={"type": "array", "items": NUMBER},
        b={"type": "string", "maxLength": 5000},
        e={"type": "array", "items": {"type": "string", "maxLength": 5000}},
    ),
    {"type": "object", "additionalProperties": TEXT},
    make_object(
        "t",
        t={"type": "array", "prefixItems": [NUMBER], "items": TEXT, "minItems": 2, "maxItems": 3},
        p={"type": "array", "items": {"type": "string", "pattern": "^.{1,9}$"}},
        z={"type": "array", "maxItems": 0},
    ),
]


# names with different first letters are all equally likely in a walk
TOOLS = {f"{letter}_x": schema for letter, schema in zip("abcdefghijklmno", SCHEMAS, strict=True)}


def find_errors(name: str, chance: random.Random, count: int) -> list[str]:
    """Find errors in texts of a format: required calls, then answers that continue after a call."""
    pair = FormatPair(name, TOOLS)
    errors, starts = [], []
    for text in pair.iter_walks(pair.compile(tool_choice="required"), chance, [""] * count):
        errors += [f"{error} <= {text!r}"] if (error := pair.find_error(text, forced=True)) else []
        starts.append(chance.choice((text, text[: chance.randrange(len(text) + 1)])))
    for text in pair.iter_walks(pair.compile(), chance, starts):
        errors += [f"{error} <= {text!r}"] if (error := pair.find_error(text, forced=False)) else []
    return errors
