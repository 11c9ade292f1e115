"""Compiles JSON schemas for the scorer of schema cases, in `make exam`.

`grammar(schema, strict)` returns what the server makes of a `response_format`: the grammar of the
content, and the warnings that the client gets. A schema that the server rejects is a `ValueError`.
"""

from __future__ import annotations

from dragoman.errors import BadRequest
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.types import Constraint, Json


def grammar(schema: Json, strict: bool) -> tuple[str | None, list[str]]:
    constraint = Constraint(kind="json", value=schema, strict=strict, param="schema")
    try:
        compiled = compile_grammar(GrammarSpec(constraint=constraint))
    except BadRequest as error:
        raise ValueError(str(error)) from error
    return compiled.grammar, list(compiled.warnings)
