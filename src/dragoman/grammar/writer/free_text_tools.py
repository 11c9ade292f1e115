"""Tools that take free text: what the client says of the text, as a node.

A pattern is one as schemas have it. A grammar is rewritten for every way in which the model may
write the text; what cannot be rewritten is refused, since a grammar is given to be kept to.
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


def build_arguments(shape: Constraint | None) -> Object:
    """What a call of a tool has that takes free text."""
    text = String() if shape is None else _build_text(shape)
    return Object(
        properties=((ARGUMENT_NAME, text),),
        required=frozenset({ARGUMENT_NAME}),
        additional=Nothing(),
    )


def _build_text(shape: Constraint) -> Node:
    match shape.kind:
        case "regex":
            return _build_pattern_text(shape)
        case "choice":
            return Literals(tuple(json.dumps(one) for one in shape.value))
        case "grammar":
            try:
                return _build_grammar_text(read_grammar(shape), shape)
            except UnsupportedSyntax as error:
                raise InvalidGrammar(
                    f"`{shape.param}` cannot be enforced: {error.construct} cannot be used in the "
                    f"grammar of a tool's text.",
                    param=shape.param,
                ) from None
            except (TooComplex, RecursionError):
                raise make_too_complex_error(shape.param) from None
    raise BadRequest(f"`{shape.param}` must be a grammar or a pattern.", param=shape.param)


def _build_pattern_text(shape: Constraint) -> Node:
    """A pattern; what is too much for us may still be none for the reader of schemas."""
    found = read_regex(shape)
    pattern = f"^(?:{expand_classes(found, UNICODE_CLASSES)})$"
    if not is_supported_pattern(pattern):
        raise make_too_complex_error(shape.param)
    try:
        return _build_grammar_text(f"start: /{found}/", shape, pattern)
    except (UnsupportedSyntax, TooComplex, RecursionError):
        return String(pattern=pattern)


def _build_grammar_text(said: str, shape: Constraint, pattern: str | None = None) -> GrammarText:
    grammar = LarkGrammar(said)
    return GrammarText(grammar, FollowSets(grammar), shape.param, pattern)
