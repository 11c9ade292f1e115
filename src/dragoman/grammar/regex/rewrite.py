"""Rewrites a regular expression character by character, for text that is written with escapes."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.grammar.regex.automaton import TooComplex
from dragoman.grammar.regex.char_sets import CharSet, to_regex_class
from dragoman.grammar.regex.regex_builder import RegexBuilder
from dragoman.grammar.regex.regex_parser import RegexParser, UnsupportedSyntax

MAX_REGEX_LENGTH = 20_000  # characters of a rewritten pattern


def rewrite_regex(regex: str, spell: Callable[[CharSet], str] = to_regex_class) -> str | None:
    """Rewrite an expression: `spell` returns how a character of a set is written.

    Return None if the expression is not supported or too complex.
    """
    builder = RegexBuilder()
    try:
        rewritten = builder.to_regex(RegexParser(builder, regex).parse(), spell)
    except (UnsupportedSyntax, TooComplex, RecursionError):
        return None
    return rewritten if len(rewritten) <= MAX_REGEX_LENGTH else None
