"""How much a client's schema may ask for.

A schema is data from outside: it is measured before it is read, and everything that is done with
it is counted. What goes over a limit is refused by the name of the limit.
"""

from __future__ import annotations

import math
from typing import NoReturn

import msgspec

from dragoman.errors import BadRequest
from dragoman.grammar.complexity import make_schema_too_complex_error
from dragoman.types import Json

MAX_SIZE = 256 * 1024  # bytes, as JSON
MAX_DEPTH = 64  # schemas in schemas
MAX_NESTING = (
    2 * MAX_DEPTH + 8
)  # lists and objects in each other, as a schema in a schema takes two
MAX_NODES = 20_000  # schemas that are visited, those that are referred to each time
MAX_STEPS = 200_000  # of putting schemas together
MAX_PROPERTIES, MAX_NAME_LENGTH = 1_000, 4_096  # of one object, and characters of a name
MAX_ENUM_VALUES, MAX_ENUM_TEXT = 5_000, 128 * 1024  # of all `enum` and `const`
MAX_PATTERN_LENGTH = 1_000  # characters
MAX_OPTIONS = 64  # that come of putting two choices together
MAX_CHECKS = 3_000  # questions to the grammar engine
MAX_EXPORTS, MAX_EXPORT_TEXT, MAX_EXPORT_WEIGHT, MAX_EXPORT_DEPTH = 64, 256 * 1024, 5_000, 128
MAX_EXPORT_PATTERNS = 3  # that one text must match
MAX_WARNINGS = 32  # sentences about what is not enforced

MAX_STRING_LENGTH, MAX_ITEMS = 100_000, 2_000
MAX_LOWER_BOUNDS = {
    "minLength": MAX_STRING_LENGTH,
    "minItems": MAX_ITEMS,
    "minProperties": MAX_ITEMS,
}
# what allows more than this is taken to allow this much: nobody's answer is that long
UPPER_BOUND_CLAMPS = {
    "maxLength": MAX_STRING_LENGTH,
    "maxItems": MAX_ITEMS,
    "maxProperties": MAX_ITEMS,
}
MAX_LENGTHS = {
    "pattern": MAX_PATTERN_LENGTH,
    "properties": MAX_PROPERTIES,
    "required": MAX_PROPERTIES,
}


class SchemaBudget:
    """What is left for one schema. `at` is what the client calls its place."""

    def __init__(self, param: str) -> None:
        self.param = param
        self._spent: dict[str, int] = {}

    def spend(self, what: str, limit: int, amount: int = 1) -> None:
        spent = self._spent[what] = self._spent.get(what, 0) + amount
        if spent > limit:
            self.reject(f"{what} than {limit:,}")

    def reject(self, what: str) -> NoReturn:
        raise make_schema_too_complex_error(self.param, what)

    def count_node(self) -> None:
        self.spend("more schemas in it", MAX_NODES)

    def count_steps(self, amount: int = 1) -> None:
        self.spend("more to put together", MAX_STEPS, amount)

    def count_check(self) -> None:
        self.spend("more patterns and bounds", MAX_CHECKS)

    def count_values(self, texts: tuple[str, ...]) -> None:
        self.spend("more values in `enum`", MAX_ENUM_VALUES, len(texts))
        self.spend("more text in `enum`", MAX_ENUM_TEXT, sum(map(len, texts)))


def check_size(schema: Json, budget: SchemaBudget) -> None:
    """Refuses what is no JSON, or too much of it, before anything walks it."""
    try:
        size = len(msgspec.json.encode(schema))
    except RecursionError:
        budget.reject(f"more than {MAX_NESTING} levels")
    except (TypeError, ValueError, OverflowError):
        raise _invalid_json(budget.param) from None
    if size > MAX_SIZE:
        budget.reject(f"more than {MAX_SIZE:,} bytes")
    level: list[Json] = [schema]
    for _ in range(MAX_NESTING):
        level = [inner for value in level for inner in _child_values(value, budget.param)]
        if not level:
            return
    budget.reject(f"more than {MAX_NESTING} levels")


def _child_values(value: Json, at: str) -> list[Json]:
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
    raise _invalid_json(at)


def _invalid_json(at: str) -> BadRequest:
    return BadRequest(
        f"`{at}` holds something that is no JSON value, or a number that is out of range.",
        param=at,
        code="invalid_schema",
    )


def clamp_upper_bounds(schema: dict[str, Json]) -> dict[str, Json]:
    """A schema whose upper bounds are within ours."""
    far = {word: most for word, most in UPPER_BOUND_CLAMPS.items() if schema.get(word, 0) > most}
    return schema | far if far else schema
