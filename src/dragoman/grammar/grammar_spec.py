"""What a grammar is ordered by, and what comes of it.

An `Order` holds all that decides a grammar and nothing else, so its bytes are the key of a cache,
and it crosses to the process that compiles as it is.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dragoman.types import Constraint, Tool


class GrammarSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer's rules: `reasoning? (content | calls)` in the formats of one model."""

    constraint: Constraint | None = None  # of the content; None is free text
    tools: tuple[Tool, ...] = ()  # those that may be called
    tool_choice: Literal["auto", "required"] = "auto"
    parallel_calls: bool = True  # more than one call
    tool_format: str | None = None  # how calls are written; None where none may be made
    reasoning_format: str | None = None
    starts_in_reasoning: bool | None = (
        None  # the answer begins in thoughts; None where no template says
    )
    header_start: str | None = None  # what the template wrote, where the answer begins in a header
    without_reasoning: bool = (
        False  # there are no thoughts in the answer: the time for them is over
    )
    special_tokens: dict[str, int] = {}  # marks that are control tokens, which letters cannot spell


class CompiledGrammar(Struct, frozen=True):
    """A grammar, and what of the order it does not enforce."""

    grammar: str | None  # None: everything is allowed
    warnings: tuple[str, ...] = ()
    decides_end: bool = (
        False  # the grammar says where the answer ends: stop strings would only cut it
    )
    constrains_content: bool = (
        False  # content is the shape and nothing else: white space before it is none
    )
