"""Grammars, read here before the engine sees them.

The native reader of GBNF can hang, run out of stack or end the process on a grammar of a few
characters, so it is never given one: jobs bring grammars for `llguidance`, which the engine also
has, and no others are taken. Each is compiled here first. What cannot be read, or would cost too
much, is the client's error and nobody else's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import lru_cache

from dragoman.engines.token_mask import (
    GrammarState,
    TokenMasker,
    dead_end_error,
    find_size_error,
    format_parse_error,
    invalid_grammar_error,
)

HEADER = "%llguidance"
WHOLE = "whole_answer"  # what `start` is called where ends may follow it
# strings, comments, patterns and tokens, before names
_WORD = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'
    r"|//[^\n]*"
    r"|/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/"
    r"|<[^>\s]*>"
    r"|[\w\-]+"
)


async def check_grammar(grammar: str, masker: TokenMasker | None) -> None:
    """Raise `BadRequest` unless the native server may be given this grammar.

    The masker's compile is the check. The masker caches the result for the choices of the job, so
    this process parses a grammar once. Without a masker, only the syntax is checked.
    """
    if not grammar.startswith(HEADER):
        message = f"The grammar of a job must begin with `{HEADER}`."
        raise invalid_grammar_error(find_size_error(grammar) or message)
    if masker is not None:
        await asyncio.to_thread(masker.start_grammar, grammar)
        return
    error = await asyncio.to_thread(_find_syntax_error, grammar)
    if error is not None:
        raise invalid_grammar_error(error)


@lru_cache(maxsize=32)
def _find_syntax_error(grammar: str) -> str | None:
    from llguidance import LLMatcher

    if (error := find_size_error(grammar)) is not None:
        return error
    try:
        message = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar))
    except Exception as error:
        return format_parse_error(str(error))
    return format_parse_error(message) if message else None


@lru_cache(maxsize=32)
def allow_ends(grammar: str, ends: frozenset[int]) -> str:
    """The same grammar, after which each of these tokens may come.

    The native server lets a grammar end with one token only, which it picks by its looks, and it
    may well be none that the model ends its turns with.
    """
    if not ends:
        return grammar
    renamed = _WORD.sub(lambda word: WHOLE if word[0] == "start" else word[0], grammar)
    tokens = " | ".join(f"<[{token}]>" for token in sorted(ends))
    return f"{renamed.rstrip()}\nstart: {WHOLE} ({tokens})?\n"


def check_tokens_allowed(
    following: GrammarState, ids: Sequence[int], stops: frozenset[int]
) -> None:
    """Take the tokens up to a stop, or say that the answer has left its grammar.

    The native server drops a grammar in the middle of an answer when it leads nowhere or grows too
    costly, and says nothing. So every token is checked here too, before it is told of.
    """
    until = next((at for at, token in enumerate(ids) if token in stops), len(ids))
    following.advance(*ids[:until])
    if until < len(ids) and not following.can_end_with(ids[until]):
        raise dead_end_error()
