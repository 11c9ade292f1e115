"""Tools that take free text: what the client says of the text, as a node.

A pattern is one as schemas have it. A grammar is rewritten for every way in which the model may
write the text; what cannot be rewritten is refused, since a grammar is given to be kept to.
"""

from __future__ import annotations

import json

from dragoman.errors import BadRequest
from dragoman.grammar.client.constraint import matched, readable
from dragoman.grammar.client.first_follow import Follow
from dragoman.grammar.client.grammar_text import Worded, too_complex
from dragoman.grammar.client.lark_parser import Grammar
from dragoman.grammar.regex.automaton import TooComplex
from dragoman.grammar.regex.full_match import UNICODE, respelt, searchable
from dragoman.grammar.regex.regex_parser import NotRewritten
from dragoman.grammar.schema.nodes import Exactly, Node, Nothing, Object, Text
from dragoman.types import Constraint

ARGUMENT_NAME = "input"


def build_arguments(shape: Constraint | None) -> Object:
    """What a call of a tool has that takes free text."""
    text = Text() if shape is None else _build_text(shape)
    return Object(
        members=((ARGUMENT_NAME, text),), required=frozenset({ARGUMENT_NAME}), others=Nothing()
    )


def _build_text(shape: Constraint) -> Node:
    match shape.kind:
        case "regex":
            return _build_pattern_text(shape)
        case "choice":
            return Exactly(tuple(json.dumps(one) for one in shape.value))
        case "grammar":
            try:
                return _build_grammar_text(readable(shape), shape)
            except NotRewritten as error:
                raise BadRequest(
                    f"`{shape.param}` cannot be enforced: {error.what} cannot be used in the "
                    f"grammar of a tool's text.",
                    param=shape.param,
                    code="invalid_grammar",
                ) from None
            except (TooComplex, RecursionError):
                raise too_complex(shape.param) from None
    raise BadRequest(f"`{shape.param}` must be a grammar or a pattern.", param=shape.param)


def _build_pattern_text(shape: Constraint) -> Node:
    """A pattern; what is too much for us may still be none for the reader of schemas."""
    found = matched(shape)
    pattern = f"^(?:{respelt(found, UNICODE)})$"
    if not searchable(pattern):
        raise too_complex(shape.param)
    try:
        return _build_grammar_text(f"start: /{found}/", shape, pattern)
    except (NotRewritten, TooComplex, RecursionError):
        return Text(pattern=pattern)


def _build_grammar_text(said: str, shape: Constraint, pattern: str | None = None) -> Worded:
    grammar = Grammar(said)
    return Worded(grammar, Follow(grammar), shape.param, pattern)
