"""How scalars are spelled in JSON: numbers, single values, and the characters of strings.

JSON Schema judges values, not spellings: to it `1.0` is an integer. Many clients read integers as
such and fail on a fraction, so integers are written as `1`, and that is a spelling of each value.
Other numbers may have an exponent if they are large or small. llguidance's schema compiler, which
writes numbers with bounds, knows no exponents, so those are added here as far as the bounds allow
all of them.
"""

from __future__ import annotations

import json
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
_LARGE = r"[eE]\+?(?:1[6-9]|[2-9][0-9]|[12][0-9]{2}|30[0-7])"
LARGE_POSITIVE = rf"{_MANTISSA}{_LARGE}"  # from 1e16
SMALL_POSITIVE = rf"{_MANTISSA}[eE]-(?:0?[5-9]|[1-9][0-9])"  # below 1e-4
MIN_LARGE, MAX_SMALL = 1e16, 1e-4
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
    lower = [ceil(bound) for bound in _list_bounds(node.minimum)]
    lower += [floor(bound) + 1 for bound in _list_bounds(node.exclusive_minimum)]
    upper = [floor(bound) for bound in _list_bounds(node.maximum)]
    upper += [ceil(bound) - 1 for bound in _list_bounds(node.exclusive_maximum)]
    return integer_range_to_regex(max(lower, default=None), min(upper, default=None))


def list_exponent_regexes(node: Number) -> list[str]:
    """Return regular expressions for numbers with an exponent, within the bounds of a node."""
    if node.multiple_of is not None and (1 / Fraction(node.multiple_of)).denominator != 1:
        return []
    lower = _list_bounds(node.minimum, node.exclusive_minimum)
    upper = _list_bounds(node.maximum, node.exclusive_maximum)
    # where `.0` is a terminal of its own, none that has read a fraction must expect an exponent
    large = f"[1-9]{_LARGE}" if node.multiple_of is not None else LARGE_POSITIVE
    regexes = []
    if not upper and all(low < MIN_LARGE for low in lower):
        regexes.append(large)
    if not lower and all(high > -MIN_LARGE for high in upper):
        regexes.append(f"-{large}")
    if node.multiple_of is None:
        if all(low <= 0 for low in lower) and all(high >= MAX_SMALL for high in upper):
            regexes.append(SMALL_POSITIVE)
        if all(high >= 0 for high in upper) and all(low <= -MAX_SMALL for low in lower):
            regexes.append(f"-{SMALL_POSITIVE}")
    return regexes


def is_whole(node: Number) -> bool:
    """Whether all values of a node that may have a fraction are whole all the same."""
    return node.multiple_of is not None and Fraction(node.multiple_of).denominator == 1


def _list_bounds(*bounds: str | None) -> list[float]:
    return [json.loads(bound) for bound in bounds if bound is not None]
