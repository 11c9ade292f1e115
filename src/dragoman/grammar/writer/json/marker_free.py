r"""Writes JSON without certain markers, although its values may contain them.

The parser finds a marker by its characters. So `"\u003cthink>"` contains no marker, but is the same
string. Literals are written with such escapes. A pattern that allows a marker is rewritten
character by character. A schema that is delegated to llguidance is restricted instead (see
`marker_free_schema`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.grammar.lark_builder import format_repeat
from dragoman.grammar.regex.char_sets import CharSet, get_chars, intersect
from dragoman.grammar.regex.escape import marker_to_regex
from dragoman.grammar.regex.exclude_markers import exclude_markers
from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.regex.rewrite import rewrite_regex
from dragoman.grammar.regex.string_formats import FORMATS
from dragoman.grammar.schema.llguidance_check import check_schema
from dragoman.grammar.schema.nodes import String
from dragoman.grammar.writer.json.scalars import spell_chars
from dragoman.output.arguments.cast import load_value
from dragoman.types import Json

BRACKET = re.compile(r"[<>\[\]]")  # no format allows them, but for an IP address in brackets


def find_marker(text: str, markers: Sequence[str]) -> re.Match[str] | None:
    """Find the first marker in a text."""
    return re.search("|".join(map(marker_to_regex, markers)), text) if markers else None


def escape_markers(literal: str, markers: Sequence[str]) -> str | None:
    """Escape the first character of every marker in a literal.

    Return None if the parser would not read the same value.
    """
    escaped = literal
    while (match := find_marker(escaped, markers)) is not None:
        start = match.start()
        escaped = f"{escaped[:start]}\\u{ord(escaped[start]):04x}{escaped[start + 1 :]}"
    is_same = escaped == literal or load_value(escaped) == load_value(literal)
    return escaped if is_same else None


def may_contain_marker(schema: dict[str, Json], markers: Sequence[str]) -> bool:
    """Whether a string of this schema, which has a pattern or a format, can contain a marker."""
    if "pattern" not in schema and all(BRACKET.search(marker) for marker in markers):
        return False
    any_marker = "|".join(map(marker_to_regex, markers))
    return bool(markers) and check_schema(schema | {"allOf": [{"pattern": any_marker}]}) != "empty"


def build_pattern_terminal(node: String, markers: Sequence[str], character: str) -> str | None:
    """Build the terminal of quoted strings without markers; None if that is too complex.

    `character` is the regular expression of one character between the quotes.
    """
    first_of_marker = get_chars(marker[0] for marker in markers)

    def spell(chars: CharSet) -> str:
        """Return the regular expression of a set of characters, escaped or not."""
        options = [spell_chars(chars)]
        for low, high in intersect(chars, first_of_marker):
            options += [rf"\\u{code:04x}" for code in range(low, high + 1)]
        return f"(?:{'|'.join(dict.fromkeys(options))})"

    regexes = [to_full_match(node.pattern)] if node.pattern is not None else []
    regexes += [FORMATS[node.format]] if node.format is not None else []
    bodies = [f"{character}{format_repeat(node.min_length, node.max_length)}"]
    for regex in reversed(regexes):
        body = rewrite_regex(regex, spell)
        if body is None:
            return None
        bodies.insert(0, body)
    terminal = " & ".join(rf"/\"(?:{body})\"/" for body in bodies)
    for pattern in node.excluded_patterns:
        body = rewrite_regex(to_full_match(pattern), spell)
        if body is None:
            return None
        terminal += rf" & ~/\"(?:{body})\"/"
    return terminal + exclude_markers(markers, length_bounded=True)
