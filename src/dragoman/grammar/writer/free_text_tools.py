"""Builds the arguments of tools that take free text: an object with one constrained string.

A regular expression becomes a pattern, as in a schema. A grammar is rewritten for every syntax in
which the model may write the text. A grammar that cannot be rewritten is rejected, since the client
relies on it.
"""

from __future__ import annotations

import json

from dragoman.errors import BadRequest, InvalidGrammar
from dragoman.grammar.client.constraint import read_grammar, read_regex
from dragoman.grammar.client.first_follow import FollowSets
from dragoman.grammar.client.grammar_text import GrammarText
from dragoman.grammar.client.lark_parser import LarkGrammar
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.regex.automaton import TooComplex
from dragoman.grammar.regex.full_match import UNICODE_CLASSES, expand_classes, is_supported_pattern
from dragoman.grammar.regex.regex_parser import UnsupportedSyntax
from dragoman.grammar.schema.nodes import Literals, Node, Nothing, Object, String
from dragoman.types import Constraint

ARGUMENT_NAME = "input"


def build_arguments(constraint: Constraint | None) -> Object:
    """Build the node for the arguments of a tool whose text satisfies the constraint."""
    text = String() if constraint is None else _build_text(constraint)
    return Object(
        properties=((ARGUMENT_NAME, text),),
        required=frozenset({ARGUMENT_NAME}),
        additional=Nothing(),
    )


def _build_text(constraint: Constraint) -> Node:
    match constraint.kind:
        case "regex":
            return _build_pattern_text(constraint)
        case "choice":
            return Literals(tuple(json.dumps(text) for text in constraint.value))
        case "grammar":
            try:
                return _build_grammar_text(read_grammar(constraint), constraint)
            except UnsupportedSyntax as error:
                raise InvalidGrammar(
                    f"`{constraint.param}` cannot be enforced: {error.construct} is not supported "
                    f"in the grammar of a tool's text.",
                    param=constraint.param,
                ) from None
            except (TooComplex, RecursionError):
                raise make_too_complex_error(constraint.param) from None
    raise BadRequest(
        f"`{constraint.param}` must be a grammar or a regular expression.", param=constraint.param
    )


def _build_pattern_text(constraint: Constraint) -> Node:
    """Build a text with a pattern; llguidance may support one that is too complex to rewrite."""
    regex = read_regex(constraint)
    pattern = f"^(?:{expand_classes(regex, UNICODE_CLASSES)})$"
    if not is_supported_pattern(pattern):
        raise make_too_complex_error(constraint.param)
    try:
        return _build_grammar_text(f"start: /{regex}/", constraint, pattern)
    except (UnsupportedSyntax, TooComplex, RecursionError):
        return String(pattern=pattern)


def _build_grammar_text(
    source: str, constraint: Constraint, pattern: str | None = None
) -> GrammarText:
    grammar = LarkGrammar(source)
    return GrammarText(grammar, FollowSets(grammar), constraint.param, pattern)
