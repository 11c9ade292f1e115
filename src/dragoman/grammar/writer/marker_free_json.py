r"""JSON that holds none of certain marks, though its values may: a mark's letter can be an escape.

What a reader of an answer takes for a mark is told by its letters, so `"\u003cthink>"` is none and
still means the same. Literals are written so; a pattern is rewritten letter by letter, where it
allows a mark at all; and a schema that is left to the engine's own reader is told to allow none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dragoman.grammar.client.text_syntax import CONTROL_CHARS, QuotedSyntax
from dragoman.grammar.lark_builder import format_repeat
from dragoman.grammar.regex.automaton import TooComplex
from dragoman.grammar.regex.char_sets import (
    CharSet,
    chars_of,
    complement,
    intersect,
    to_regex_class,
    union_ranges,
)
from dragoman.grammar.regex.escape import marker_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers
from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.regex.regex_builder import RegexBuilder
from dragoman.grammar.regex.regex_parser import RegexParser, UnsupportedSyntax
from dragoman.grammar.schema.llguidance_check import check_schema
from dragoman.grammar.schema.nodes import String
from dragoman.output.arguments.cast import load_value

MAX_REGEX_LENGTH = 20_000  # characters of a pattern once it is rewritten
NEVER_LITERAL: CharSet = union_ranges((*CONTROL_CHARS, *chars_of('"\\')))  # never stand for themselves in a string
BRACKET = re.compile(r"[<>\[\]]")  # of these no format has more than an address in brackets


def find_marker(text: str, marks: Sequence[str]) -> re.Match[str] | None:
    """The first mark in a text."""
    return re.search("|".join(map(marker_to_regex, marks)), text) if marks else None


def escape_markers(way: str, marks: Sequence[str]) -> str | None:
    """A value as it was written, with escapes for letters that begin a mark.

    None where the reader would not take that for the same value.
    """
    found = way
    while (mark := find_marker(found, marks)) is not None:
        at = mark.start()
        found = f"{found[:at]}\\u{ord(found[at]):04x}{found[at + 1 :]}"
    return found if found == way or load_value(found) == load_value(way) else None


# Texts


def may_contain_marker(schema: dict[str, Any], marks: Sequence[str]) -> bool:
    """Whether some text that has a pattern or a format, as a schema, holds a mark."""
    if "pattern" not in schema and all(BRACKET.search(mark) for mark in marks):
        return False
    mark = "|".join(map(marker_to_regex, marks))
    return bool(marks) and check_schema(schema | {"allOf": [{"pattern": mark}]}) != "empty"


def build_pattern_terminal(node: String, marks: Sequence[str], character: str) -> str | None:
    """A terminal for texts in quotes that hold no mark; None where that is too much for us.

    `character` is the regular expression of one in quotes.
    """
    from dragoman.grammar.writer.unquoted_text import FORMATS

    first = chars_of(mark[0] for mark in marks)

    def one(letters: CharSet) -> str:
        ways = [to_regex_class(plain)] if (plain := intersect(letters, complement(NEVER_LITERAL))) else []
        ways += QuotedSyntax().escape_regexes(intersect(letters, NEVER_LITERAL))
        begins = [code for low, high in intersect(letters, first) for code in range(low, high + 1)]
        ways += [rf"\\u{code:04x}" for code in begins]
        return f"(?:{'|'.join(dict.fromkeys(ways))})"

    said = [to_full_match(node.pattern)] if node.pattern is not None else []
    said += [FORMATS[node.format]] if node.format is not None else []
    bodies = [body for body in (_rewrite_regex(whole, one) for whole in said) if body is not None]
    if len(bodies) < len(said):
        return None
    bodies += [f"{character}{format_repeat(node.min_length, node.max_length)}"]
    return " & ".join(rf"/\"(?:{body})\"/" for body in bodies) + exclude_markers(marks, length_bounded=True)


def _rewrite_regex(whole: str, one: Callable[[CharSet], str]) -> str | None:
    """An expression with each letter written by `one`; None where it is too much."""
    patterns = RegexBuilder()
    try:
        found = patterns.to_regex(RegexParser(patterns, whole).parse(), one)
    except (UnsupportedSyntax, TooComplex, RecursionError):
        return None
    return found if len(found) <= MAX_REGEX_LENGTH else None
