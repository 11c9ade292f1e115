"""A text that keeps to a client's grammar, as a node beside those of schemas."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.errors import Unsupported
from dragoman.grammar.client.first_follow import Follow
from dragoman.grammar.client.lark_parser import Grammar
from dragoman.grammar.client.rule_writer import Rewriting
from dragoman.grammar.client.text_syntax import Between, Quotes
from dragoman.grammar.client.unpadded_text import Ending
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.automaton import TooComplex


@dataclass(frozen=True, eq=False)
class Worded:
    """The grammar, and what the client calls it."""

    grammar: Grammar
    follow: Follow
    at: str
    pattern: str | None = None  # where it is only that
    done: dict[tuple[int, Quotes | Between], str] = field(default_factory=dict)


def written(lark: LarkBuilder, node: Worded, spelling: Quotes | Between) -> str:
    """An expression for the text in one spelling, with what breaks it around."""
    key = id(lark), spelling
    if key not in node.done:
        try:
            node.done[key] = _written(lark, node, spelling)
        except (TooComplex, RecursionError):
            raise make_too_complex_error(node.at) from None
    return node.done[key]


def _written(lark: LarkBuilder, node: Worded, spelling: Quotes | Between) -> str:
    rewriting = Rewriting(lark, node.grammar, node.follow, spelling)
    found = rewriting.text()
    if found is None:
        raise Unsupported(
            f"No text that `{node.at}` allows can be written in this model's format.", param=node.at
        )
    if isinstance(spelling, Quotes) or not spelling.breaks:
        return found
    # what breaks it must stand around it where it could be taken for a part of it, else it may
    mark = quote_literal(spelling.breaks)
    before = mark if node.follow.begins_with(spelling.breaks) else f"{mark}?"
    whole = Ending(rewriting).text()
    return f"{before} {join_alternatives([f'{found} {mark}', *([] if whole is None else [whole])])}"
