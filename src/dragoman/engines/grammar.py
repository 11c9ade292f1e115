"""Checks grammars before they are sent to an engine that enforces them by itself.

Such an engine (llama.cpp's server, vLLM) has `llguidance`, too. llama.cpp's parser of GBNF can
hang, run out of stack or end the process on a grammar of a few characters, so no engine is given
one: jobs bring grammars for `llguidance`, and others are rejected. Each is compiled here first, so
that a grammar that is invalid or too costly fails the request that brought it and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import lru_cache

from dragoman.engines.token_mask import (
    GrammarState,
    TokenMasker,
    find_size_error,
    format_parse_error,
    make_dead_end_error,
    make_invalid_grammar_error,
)

HEADER = "%llguidance"
WHOLE_ANSWER = "whole_answer"  # the new name of `start`, where stop tokens may follow it
# strings, comments, patterns and tokens come before names; one that is not closed takes its line
_WORD = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'
    r"|//[^\n]*"
    r"|/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/"
    r"|[\"/][^\n]*"
    r"|<[^<>\s]*>"
    r"|[\w\-]+"
)


async def check_grammar(grammar: str, masker: TokenMasker | None, scope: str = "") -> None:
    """Raise `BadRequest` unless an engine may be given this grammar.

    The masker's compile is the check. The masker caches the result for the choices of the job, so
    this process parses a grammar once. Without a masker, only the syntax is checked. Here and
    below, caches are separated by cache scope, so that timing reveals nothing about other owners.
    """
    if not grammar.startswith(HEADER):
        message = f"The grammar of a job must begin with `{HEADER}`."
        raise make_invalid_grammar_error(find_size_error(grammar) or message)
    if masker is not None:
        await asyncio.to_thread(masker.start_grammar, grammar, (), scope)
        return
    error = await asyncio.to_thread(_find_syntax_error, grammar, scope)
    if error is not None:
        raise make_invalid_grammar_error(error)


@lru_cache(maxsize=32)
def _find_syntax_error(grammar: str, scope: str) -> str | None:
    from llguidance import LLMatcher

    if (error := find_size_error(grammar)) is not None:
        return error
    try:
        message = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar))
    except Exception as error:
        return format_parse_error(str(error))
    return format_parse_error(message) if message else None


@lru_cache(maxsize=32)
def allow_ends(grammar: str, stop_ids: frozenset[int], scope: str = "") -> str:
    """Return the same grammar, after which each of these tokens may follow.

    llama.cpp and vLLM let a grammar end with one token only, and the model may end its turns with
    another one.
    """
    if not stop_ids:
        return grammar
    renamed = _WORD.sub(lambda word: WHOLE_ANSWER if word[0] == "start" else word[0], grammar)
    tokens = " | ".join(f"<[{token}]>" for token in sorted(stop_ids))
    return f"{renamed.rstrip()}\nstart: {WHOLE_ANSWER} ({tokens})?\n"


def check_tokens_allowed(state: GrammarState, ids: Sequence[int], stop_ids: frozenset[int]) -> None:
    """Advance by the tokens up to a stop token; raise `BadRequest` if one is not allowed.

    When a grammar allows nothing or becomes too costly in the middle of an answer, llama.cpp
    silently drops it, and vLLM ends the answer. So every token is checked here as well.
    """
    end = next((index for index, token in enumerate(ids) if token in stop_ids), len(ids))
    state.advance(*ids[:end])
    if end < len(ids) and not state.can_end_with(ids[end]):
        raise make_dead_end_error()
