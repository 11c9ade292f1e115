"""A text that keeps to a client's grammar, as a node beside those of schemas."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.errors import Unsupported
from dragoman.grammar.client.first_follow import FollowSets
from dragoman.grammar.client.lark_parser import LarkGrammar
from dragoman.grammar.client.rule_writer import RuleWriter
from dragoman.grammar.client.text_syntax import DelimitedSyntax, QuotedSyntax
from dragoman.grammar.client.unpadded_text import UnpaddedTextWriter
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.automaton import TooComplex
from dragoman.grammar.schema.nodes import OpaqueText


@dataclass(frozen=True, eq=False)
class GrammarText(OpaqueText):
    """The grammar, and what the client calls it."""

    grammar: LarkGrammar
    follow_sets: FollowSets
    param: str
    pattern: str | None = None  # where it is only that
    expressions: dict[tuple[int, QuotedSyntax | DelimitedSyntax], str] = field(default_factory=dict)


def write_grammar_text(
    lark: LarkBuilder, node: GrammarText, spelling: QuotedSyntax | DelimitedSyntax
) -> str:
    """An expression for the text in one spelling, with what breaks it around."""
    key = id(lark), spelling
    if key not in node.expressions:
        try:
            node.expressions[key] = _write_grammar_text(lark, node, spelling)
        except (TooComplex, RecursionError):
            raise make_too_complex_error(node.param) from None
    return node.expressions[key]


def _write_grammar_text(
    lark: LarkBuilder, node: GrammarText, spelling: QuotedSyntax | DelimitedSyntax
) -> str:
    rewriting = RuleWriter(lark, node.grammar, node.follow_sets, spelling)
    found = rewriting.write_text()
    if found is None:
        raise Unsupported(
            f"No text that `{node.param}` allows can be written in this model's format.",
            param=node.param,
        )
    if isinstance(spelling, QuotedSyntax) or not spelling.padding:
        return found
    # what breaks it must stand around it where it could be taken for a part of it, else it may
    mark = quote_literal(spelling.padding)
    before = mark if node.follow_sets.can_start_with(spelling.padding) else f"{mark}?"
    whole = UnpaddedTextWriter(rewriting).write_text()
    return f"{before} {join_alternatives([f'{found} {mark}', *([] if whole is None else [whole])])}"
