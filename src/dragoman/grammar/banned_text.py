"""Writes the rules of an answer that contains none of some strings, in reasoning and content.

The markers of the model's formats are part of the text. Those that are special tokens are written
by their ids, since text never matches a special token.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives
from dragoman.grammar.regex.escape import escape_regex, marker_to_regex
from dragoman.types import BannedString


def write_without_strings(
    lark: LarkBuilder, strings: Sequence[BannedString], markers: Sequence[str] = ()
) -> str:
    """Write text without these strings and without `markers`; return the expression for `start`."""
    excluded = [
        f"(?i:{escape_regex(string.text)})" if string.ignore_case else escape_regex(string.text)
        for string in strings
    ]
    excluded += [marker_to_regex(marker) for marker in markers if lark.is_plain_text(marker)]
    text = lark.add_text_without(excluded, "TEXT")
    tokens = [token for name, token in lark.special_tokens.items() if name not in markers]
    if not tokens:
        return f"{text}?"
    special = join_alternatives(f"<[{token}]>" for token in tokens)
    return f"({text}? {special})* {text}?"
