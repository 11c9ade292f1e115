"""A text that a client's grammar constrains, as a node beside those of schemas."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.errors import Unsupported
from dragoman.grammar.client.first_follow import FollowSets
from dragoman.grammar.client.lark_parser import LarkGrammar
from dragoman.grammar.client.rule_writer import RuleWriter
from dragoman.grammar.client.text_syntax import QuotedSyntax, TextSyntax
from dragoman.grammar.client.unpadded_text import UnpaddedTextWriter
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.automaton import TooComplex
from dragoman.grammar.schema.nodes import OpaqueText


@dataclass(frozen=True, eq=False)
class GrammarText(OpaqueText):
    """A text that a grammar allows; errors name `param`, the request field of the grammar."""

    grammar: LarkGrammar
    follow_sets: FollowSets
    param: str
    pattern: str | None = None  # set if the grammar is just this pattern
    # written expressions, by builder and syntax
    expressions: dict[tuple[int, TextSyntax], str] = field(default_factory=dict)


def write_grammar_text(lark: LarkBuilder, node: GrammarText, syntax: TextSyntax) -> str:
    """Return an expression for the text as written in a syntax, with its padding."""
    key = id(lark), syntax
    if key not in node.expressions:
        try:
            node.expressions[key] = _write_grammar_text(lark, node, syntax)
        except (TooComplex, RecursionError):
            raise make_too_complex_error(node.param) from None
    return node.expressions[key]


def _write_grammar_text(lark: LarkBuilder, node: GrammarText, syntax: TextSyntax) -> str:
    rules = RuleWriter(lark, node.grammar, node.follow_sets, syntax)
    text = rules.write_text()
    if text is None:
        raise Unsupported(
            f"No text that `{node.param}` allows can be written in this model's format.",
            param=node.param,
        )
    if isinstance(syntax, QuotedSyntax) or not syntax.padding:
        return text
    # padding is required where the parser would otherwise strip it from the text, else optional
    padding = quote_literal(syntax.padding)
    before = padding if node.follow_sets.can_start_with(syntax.padding) else f"{padding}?"
    alternatives = [f"{text} {padding}"]
    unpadded_text = UnpaddedTextWriter(rules).write_text()
    if unpadded_text is not None:
        alternatives.append(unpadded_text)
    return f"{before} {join_alternatives(alternatives)}"
