"""How scalars are spelled in JSON: numbers, single values, and the characters of strings.

JSON Schema judges values, not spellings: to it `1.0` is an integer. Many clients read integers as
such and fail on a fraction, so integers are written as `1`, and that is a spelling of each value.
Other numbers may have an exponent if they are large or small. llguidance's schema compiler, which
writes numbers with bounds, knows no exponents, so those are added here for each exponent with which
the bounds allow all numbers.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor, inf, nextafter

from dragoman.grammar.client.text_syntax import CONTROL_CHARS, QuotedSyntax
from dragoman.grammar.regex.char_sets import (
    CharSet,
    complement,
    get_chars,
    intersect,
    to_regex_class,
    union_ranges,
)
from dragoman.grammar.regex.integer_ranges import integer_range_to_regex
from dragoman.grammar.schema.keywords import MAX_BOUND
from dragoman.grammar.schema.llguidance_check import node_to_schema
from dragoman.grammar.schema.nodes import Number
from dragoman.types import Json

ESCAPE = (
    r"\\(?:[\"\\\/bfnrt]|u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
CHARACTER = rf"(?:[^\"\\\x00-\x1f]|{ESCAPE})"
# a character with just one spelling: escaped only if necessary, with the shortest escape
SHORT_CHARACTER = r"(?:[^\"\\\x00-\x1f]|\\(?:[\"\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f])))"
NEVER_LITERAL: CharSet = union_ranges((*CONTROL_CHARS, *get_chars('"\\')))  # escaped in strings

_MANTISSA = r"[1-9](?:\.[0-9]{1,16})?"
_MIN_LARGE, _MAX_LARGE = 16, 307  # exponents of large numbers
_MIN_SMALL, _MAX_SMALL = 5, 99  # exponents of small numbers, without their sign
_POWERS = [Fraction(10) ** exponent for exponent in range(-_MAX_SMALL, _MAX_LARGE + 2)]
WHOLE = r"-?(?:0|[1-9][0-9]{0,29})"
INTEGER = rf"/{WHOLE}/"
NUMBER = rf"/{WHOLE}(?:\.[0-9]{{1,30}})?(?:[eE][-+]?[0-9]{{1,3}})?/"


def list_json_spellings(text: str) -> list[str]:
    """Return the spellings of a scalar: with and without escapes, a whole float also as integer."""
    value = json.loads(text)
    spellings = [text, json.dumps(value, ensure_ascii=False)]
    if isinstance(value, float) and abs(value) < 1e300 and value == int(value):
        spellings.append(json.dumps(int(value)))
    return list(dict.fromkeys(spellings))


def spell_chars(chars: CharSet) -> str:
    """Return the regular expression of a character of a set, with the shortest escapes."""
    literal = intersect(chars, complement(NEVER_LITERAL))
    options = [to_regex_class(literal)] if literal else []
    options += QuotedSyntax().escape_regexes(intersect(chars, NEVER_LITERAL))
    return f"(?:{'|'.join(options)})"


def build_number_schema(node: Number) -> dict[str, Json]:
    """Return the schema of a number with bounds, as llguidance enforces them."""
    schema = node_to_schema(node)
    if not node.integer:
        _move_exclusive_integer(schema, "exclusiveMinimum", "minimum", "aximum", inf)
        _move_exclusive_integer(schema, "exclusiveMaximum", "maximum", "inimum", -inf)
    return schema


def _move_exclusive_integer(
    schema: dict[str, Json], exclusive: str, inclusive: str, opposite: str, direction: float
) -> None:
    """Replace an exclusive bound that is an integer by the next number, as an inclusive one.

    llguidance would allow it if the opposite bound lies less than one away, farther from zero.
    """
    bound = schema.get(exclusive)
    if bound is None or bound != floor(bound) or bound * direction < 0:
        return
    if any(abs(value - bound) < 1 for key, value in schema.items() if key.endswith(opposite)):
        del schema[exclusive]
        schema[inclusive] = nextafter(bound, direction)


def build_integer_regex(node: Number) -> str:
    """Build the regular expression of an integer with bounds and without `multiple_of`."""
    return integer_range_to_regex(*_find_integer_range(node))


def _find_integer_range(node: Number) -> tuple[int | None, int | None]:
    lower = [ceil(bound) for bound in _list_bounds(node.minimum)]
    lower += [floor(bound) + 1 for bound in _list_bounds(node.exclusive_minimum)]
    upper = [floor(bound) for bound in _list_bounds(node.maximum)]
    upper += [ceil(bound) - 1 for bound in _list_bounds(node.exclusive_maximum)]
    return max(lower, default=None), min(upper, default=None)


def list_other_number_regexes(node: Number) -> list[str]:
    """Return regular expressions for numbers within the bounds that llguidance does not write.

    These are numbers with an exponent, and integers beyond the bounds that it can enforce.
    """
    if node.multiple_of is not None and (1 / Fraction(node.multiple_of)).denominator != 1:
        return []
    low = _choose_bound(max, node.minimum, node.exclusive_minimum)
    high = _choose_bound(min, node.maximum, node.exclusive_maximum)
    regexes = _list_exponents(low, high, node.exclusive_minimum is not None, node)
    negative = _list_exponents(
        _negate(high), _negate(low), node.exclusive_maximum is not None, node
    )
    regexes += ["-" + regex for regex in negative]
    first, last = _find_integer_range(node)
    if last is not None and last > MAX_BOUND:
        regexes.append(integer_range_to_regex(max(MAX_BOUND, first or 0), last))
    if first is not None and first < -MAX_BOUND:
        regexes.append(integer_range_to_regex(first, min(-MAX_BOUND, last or 0)))
    return regexes


def _choose_bound(choose: Callable[..., Fraction], *bounds: str | None) -> Fraction | None:
    fractions = [Fraction(bound) for bound in bounds if bound is not None]
    return choose(fractions) if fractions else None


def _negate(bound: Fraction | None) -> Fraction | None:
    return None if bound is None else -bound


def _list_exponents(
    low: Fraction | None, high: Fraction | None, exclusive: bool, node: Number
) -> list[str]:
    """Return regular expressions for positive numbers with exponents that the bounds allow.

    The bounds must allow all numbers with an exponent.
    """

    find_first = bisect_right if exclusive else bisect_left
    first = 0 if low is None else find_first(_POWERS, low)
    last = len(_POWERS) if high is None else bisect_right(_POWERS, high) - 2
    allowed = range(first - _MAX_SMALL, last - _MAX_SMALL + 1)
    large = range(max(allowed.start, _MIN_LARGE), min(allowed.stop, _MAX_LARGE + 1))
    small = range(max(1 - allowed.stop, _MIN_SMALL), min(1 - allowed.start, _MAX_SMALL + 1))
    regexes = []
    if large:
        # where `.0` is a terminal of its own, none that has read a fraction must expect an exponent
        mantissa = _MANTISSA if node.multiple_of is None else "[1-9]"
        exponents = integer_range_to_regex(large[0], large[-1])
        regexes.append(rf"{mantissa}[eE]\+?(?:{exponents})")
    if small and node.multiple_of is None:
        exponents = integer_range_to_regex(small[0], small[-1])
        regexes.append(rf"{_MANTISSA}[eE]-0?(?:{exponents})")
    return regexes


def is_whole(node: Number) -> bool:
    """Whether all values of a node that may have a fraction are whole all the same."""
    return node.multiple_of is not None and Fraction(node.multiple_of).denominator == 1


def _list_bounds(*bounds: str | None) -> list[float]:
    return [json.loads(bound) for bound in bounds if bound is not None]
