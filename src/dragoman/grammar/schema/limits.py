"""Limits on a client's schema.

A schema is untrusted input: it is measured before it is parsed, and every step of processing it is
counted. One that exceeds a limit is rejected with an error that names the limit.
"""

from __future__ import annotations

import math
from typing import NoReturn

import msgspec

from dragoman.errors import BadRequest, InvalidSchema
from dragoman.grammar.complexity import make_schema_too_complex_error
from dragoman.types import Json

MAX_SIZE = 256 * 1024  # bytes of JSON
MAX_DEPTH = 64  # nested schemas
MAX_NESTING = 2 * MAX_DEPTH + 8  # nested arrays and objects: a nested schema takes two
MAX_NODES = 20_000  # visited schemas, with the target of each reference
MAX_STEPS = 200_000  # of intersecting and copying schemas
MAX_PROPERTIES = 1_000  # of one object
MAX_NAME_LENGTH = 4_096  # characters
MAX_ENUM_VALUES, MAX_ENUM_TEXT = 5_000, 128 * 1024  # values and characters of all `enum`s
MAX_PATTERN_LENGTH = 1_000  # characters
MAX_EXCLUDED_LENGTH = 64  # characters of a string that excludes patterns: counting them is costly
MAX_BITS = 60  # members or values that the parameter of a rule distinguishes
MAX_COUNTED = 24  # names of an open object whose number of properties is limited
MAX_OPTIONS = 64  # of the intersection of two `anyOf`
MAX_CHECKS = 3_000  # by llguidance's schema compiler
# parts of the schema that are left to llguidance: their number, total text, size and depth
MAX_EXPORTS, MAX_EXPORT_TEXT, MAX_EXPORT_WEIGHT, MAX_EXPORT_DEPTH = 64, 256 * 1024, 5_000, 128
MAX_EXPORT_PATTERNS = 3  # that one string must match
MAX_WARNINGS = 32

MAX_STRING_LENGTH, MAX_ITEMS = 100_000, 2_000
MAX_LOWER_BOUNDS = {
    "minLength": MAX_STRING_LENGTH,
    "minItems": MAX_ITEMS,
    "minProperties": MAX_ITEMS,
}
# greater upper bounds are lowered to these: no answer is that long
MAX_UPPER_BOUNDS = {
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
    """Counts the work spent on one schema; errors name `param`, the request field of the schema."""

    def __init__(self, param: str) -> None:
        self.param = param
        self._spent: dict[str, int] = {}

    def _spend(self, what: str, limit: int, amount: int = 1) -> None:
        spent = self._spent[what] = self._spent.get(what, 0) + amount
        if spent > limit:
            self.reject(f"more than {limit:,} {what}")

    def reject(self, excess: str) -> NoReturn:
        """Reject the schema; `excess` says what it has too much of."""
        raise make_schema_too_complex_error(self.param, excess)

    def count_node(self) -> None:
        self._spend("subschemas", MAX_NODES)

    def count_steps(self, amount: int = 1) -> None:
        self._spend("combinations of subschemas", MAX_STEPS, amount)

    def count_check(self) -> None:
        self._spend("patterns and bounds", MAX_CHECKS)

    def count_values(self, texts: tuple[str, ...]) -> None:
        self._spend("values in `enum`", MAX_ENUM_VALUES, len(texts))
        self._spend("characters in `enum`", MAX_ENUM_TEXT, sum(map(len, texts)))


def check_size(schema: Json, budget: SchemaBudget) -> None:
    """Reject a schema that is not JSON, too large or nested too deep, before anything walks it."""
    too_deep = f"more than {MAX_NESTING} levels of nesting"
    try:
        size = len(msgspec.json.encode(schema))
    except RecursionError:
        budget.reject(too_deep)
    except (TypeError, ValueError, OverflowError):
        raise _make_invalid_json_error(budget.param) from None
    if size > MAX_SIZE:
        budget.reject(f"more than {MAX_SIZE:,} bytes")
    level: list[Json] = [schema]
    for _ in range(MAX_NESTING):
        level = [child for value in level for child in _list_child_values(value, budget.param)]
        if not level:
            return
    budget.reject(too_deep)


def _list_child_values(value: Json, param: str) -> list[Json]:
    match value:
        case dict() if all(isinstance(name, str) for name in value):
            return list(value.values())
        case list():
            return value
        case int() if abs(value).bit_length() < 1024:  # includes booleans
            return []
        case float() if math.isfinite(value):
            return []
        case str() | None:
            return []
    raise _make_invalid_json_error(param)


def _make_invalid_json_error(param: str) -> BadRequest:
    return InvalidSchema(
        f"`{param}` contains a value that is not JSON, or a number that is out of range.",
        param=param,
    )


def clamp_upper_bounds(schema: dict[str, Json]) -> dict[str, Json]:
    """Lower the upper bounds that exceed ours."""
    clamped = {
        keyword: limit
        for keyword, limit in MAX_UPPER_BOUNDS.items()
        if schema.get(keyword, 0) > limit
    }
    return schema | clamped if clamped else schema
