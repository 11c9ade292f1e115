"""Grammars, read here before the engine sees them.

The native reader of GBNF can hang, run out of stack or end the process on a grammar of a few
characters, so it is never given one: a grammar in either language is turned into one for
`llguidance`, which the engine also has, and is compiled here first. What cannot be read, or would
cost too much, is the client's error and nobody else's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import lru_cache

from dragoman.engines.masker import Following, nowhere, refused, too_large, unreadable

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


async def readable(grammar: str) -> str:
    """The grammar as the engine is to be given it, or `BadRequest`."""
    found = await asyncio.to_thread(_read, grammar)
    if not found.startswith(HEADER):
        raise refused(found)
    return found


@lru_cache(maxsize=32)
def _read(grammar: str) -> str:
    """The grammar for `llguidance`, or what is wrong with it."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    wrong = too_large(grammar)
    if wrong:
        return wrong
    try:
        lark = grammar if grammar.startswith(HEADER) else gbnf_to_lark(grammar)
        wrong = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark))
    except Exception as error:
        return unreadable(str(error))
    if wrong:
        return unreadable(wrong)
    return lark if lark.startswith(HEADER) else f"{HEADER} {{}}\n{lark}"


@lru_cache(maxsize=32)
def endable(grammar: str, ends: frozenset[int]) -> str:
    """The same grammar, after which each of these tokens may come.

    The native server lets a grammar end with one token only, which it picks by its looks, and it
    may well be none that the model ends its turns with.
    """
    if not ends:
        return grammar
    renamed = _WORD.sub(lambda word: WHOLE if word[0] == "start" else word[0], grammar)
    tokens = " | ".join(f"<[{token}]>" for token in sorted(ends))
    return f"{renamed.rstrip()}\nstart: {WHOLE} ({tokens})?\n"


def keep_to(following: Following, ids: Sequence[int], stops: frozenset[int]) -> None:
    """Take the tokens up to a stop, or say that the answer has left its grammar.

    The native server drops a grammar in the middle of an answer when it leads nowhere or grows too
    costly, and says nothing. So every token is checked here too, before it is told of.
    """
    until = next((at for at, token in enumerate(ids) if token in stops), len(ids))
    following.take(*ids[:until])
    if until < len(ids) and not following.may_end(ids[until]):
        raise nowhere()
