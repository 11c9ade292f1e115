"""Whatever a grammar lets through is a valid answer: walks through every format, by chance.

A text that a grammar allows is read back by the format's own parser. Its calls must fit their
schemas, and where a call was forced there is nothing beside calls and thoughts. The texts are full
of marks in wrong places, since a model may write those too. `make exam` walks further.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dragoman.formats import tool_formats
from tests.support.grammars import FormatPair

pytestmark = pytest.mark.slow

NAMES = list(tool_formats())
NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def members(required: str = "", others: Any = False, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": others,
    }


SCHEMAS: list[dict[str, Any]] = [
    members("a", a=NUMBER, b=TEXT),
    members(
        "city unit",
        city={"type": "string", "minLength": 1, "maxLength": 5},
        unit={"enum": ["c", "f"]},
        n={"type": "integer", "minimum": 3, "maximum": 40},
    ),
    members(
        "o",
        x={"type": ["string", "null"]},
        l={"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        o=members("k", k={"type": "boolean"}, z={"type": "number"}),
    ),
    members(),
    members(
        "p q",
        p={"type": "string", "pattern": "^[a-z]{2,4}$"},
        q={"anyOf": [TEXT, {"type": "integer", "minimum": 5}]},
        r={"anyOf": [{"const": "s"}, {"type": "array", "items": NUMBER}]},
    ),
    members("a", others=True, a=TEXT),
    {"type": "object"},
    members("t", t={"$ref": "#/$defs/t"})
    | {"$defs": {"t": members("v", v=NUMBER, n={"$ref": "#/$defs/t"})}},
    members("v", d={"type": "string", "format": "date"}, v={"enum": [1, "1", None, True]}),
    {"anyOf": [members("b", b=TEXT), members("a", a=NUMBER), members("b c", b=NUMBER, c=NUMBER)]},
    members("a", others=NUMBER, a=NUMBER),
    members(
        "m",
        m={"type": "object", "additionalProperties": NUMBER},
        t={"type": "array", "prefixItems": [NUMBER, TEXT], "items": False, "minItems": 2},
    ),
    members(
        "l",
        l={"type": "array", "items": NUMBER},
        b={"type": "string", "maxLength": 5000},
        e={"type": "array", "items": {"type": "string", "maxLength": 5000}},
    ),
    {"type": "object", "additionalProperties": TEXT},
    members(
        "t",
        t={"type": "array", "prefixItems": [NUMBER], "items": TEXT, "minItems": 2, "maxItems": 3},
        p={"type": "array", "items": {"type": "string", "pattern": "^.{1,9}$"}},
        z={"type": "array", "maxItems": 0},
    ),
]


# the first letter of a name decides, so that chance takes them all alike
TOOLS = {f"{letter}_x": schema for letter, schema in zip("abcdefghijklmno", SCHEMAS, strict=True)}


def wrong(name: str, chance: random.Random, count: int) -> list[str]:
    """What is wrong with texts of a format: forced calls, then answers that go on from a call."""
    pair = FormatPair(name, TOOLS)
    found, starts = [], []
    for text in pair.iter_walks(pair.compile(tool_choice="required"), chance, [""] * count):
        found += [f"{why} <= {text!r}"] if (why := pair.find_error(text, forced=True)) else []
        starts.append(chance.choice((text, text[: chance.randrange(len(text) + 1)])))
    for text in pair.iter_walks(pair.compile(), chance, starts):
        found += [f"{why} <= {text!r}"] if (why := pair.find_error(text, forced=False)) else []
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_allowed_is_valid(name: str) -> None:
    assert wrong(name, random.Random(name), 10) == []
