"""How much a client's schema may ask for.

A schema is data from outside: it is measured before it is read, and everything that is done with
it is counted. What goes over a limit is refused by the name of the limit.
"""

from __future__ import annotations

import math
from typing import NoReturn

import msgspec

from dragoman.errors import BadRequest
from dragoman.types import Json

SIZE = 256 * 1024  # bytes, as JSON
DEEPEST = 64  # schemas in schemas
NESTING = 2 * DEEPEST + 8  # lists and objects in each other, as a schema in a schema takes two
NODES = 20_000  # schemas that are visited, those that are referred to each time
STEPS = 200_000  # of putting schemas together
PROPERTIES, NAME = 1_000, 4_096  # of one object, and characters of a name
VALUES, VALUES_TEXT = 5_000, 128 * 1024  # of all `enum` and `const`
PATTERN = 1_000  # characters
OPTIONS = 64  # that come of putting two choices together
CHECKS = 3_000  # questions to the grammar engine
WHOLES, WHOLE_TEXT, WHOLE_WEIGHT, WHOLE_DEPTH = 64, 256 * 1024, 5_000, 128
WHOLE_PATTERNS = 3  # that one text must match
LOOSE = 32  # sentences about what is not enforced

LENGTH, ITEMS = 100_000, 2_000
MOST = {"minLength": LENGTH, "minItems": ITEMS, "minProperties": ITEMS}
# what allows more than this is taken to allow this much: nobody's answer is that long
DRAWN_IN = {"maxLength": LENGTH, "maxItems": ITEMS, "maxProperties": ITEMS}
LONGEST = {"pattern": PATTERN, "properties": PROPERTIES, "required": PROPERTIES}


class Budget:
    """What is left for one schema. `at` is what the client calls its place."""

    def __init__(self, at: str) -> None:
        self.at = at
        self._spent: dict[str, int] = {}

    def spend(self, what: str, limit: int, amount: int = 1) -> None:
        spent = self._spent[what] = self._spent.get(what, 0) + amount
        if spent > limit:
            self.over(f"{what} than {limit:,}")

    def over(self, what: str) -> NoReturn:
        raise BadRequest(
            f"`{self.at}` is too complex: it has {what}.", param=self.at, code="schema_too_complex"
        )

    def node(self) -> None:
        self.spend("more schemas in it", NODES)

    def step(self, amount: int = 1) -> None:
        self.spend("more to put together", STEPS, amount)

    def check(self) -> None:
        self.spend("more patterns and bounds", CHECKS)

    def values(self, texts: tuple[str, ...]) -> None:
        self.spend("more values in `enum`", VALUES, len(texts))
        self.spend("more text in `enum`", VALUES_TEXT, sum(map(len, texts)))


def survey(schema: Json, budget: Budget) -> None:
    """Refuses what is no JSON, or too much of it, before anything walks it."""
    try:
        size = len(msgspec.json.encode(schema))
    except RecursionError:
        budget.over(f"more than {NESTING} levels")
    except (TypeError, ValueError, OverflowError):
        raise _no_json(budget.at) from None
    if size > SIZE:
        budget.over(f"more than {SIZE:,} bytes")
    level: list[Json] = [schema]
    for _ in range(NESTING):
        level = [inner for value in level for inner in _inside(value, budget.at)]
        if not level:
            return
    budget.over(f"more than {NESTING} levels")


def _inside(value: Json, at: str) -> list[Json]:
    match value:
        case dict() if all(isinstance(name, str) for name in value):
            return list(value.values())
        case list():
            return value
        case int() if abs(value).bit_length() < 1024:  # booleans too
            return []
        case float() if math.isfinite(value):
            return []
        case str() | None:
            return []
    raise _no_json(at)


def _no_json(at: str) -> BadRequest:
    return BadRequest(
        f"`{at}` holds something that is no JSON value, or a number that is out of range.",
        param=at,
        code="invalid_schema",
    )


def drawn_in(schema: dict[str, Json]) -> dict[str, Json]:
    """A schema whose upper bounds are within ours."""
    far = {word: most for word, most in DRAWN_IN.items() if schema.get(word, 0) > most}
    return schema | far if far else schema
