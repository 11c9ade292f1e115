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
from typing import Any

from dragoman.engines.llamacpp.track import Vocabulary
from dragoman.errors import BadRequest

LONGEST = 256 * 1024  # characters
DEEPEST = 256  # brackets inside each other
HEADER = "%llguidance"
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]|#[^\n]*')


async def readable(grammar: str) -> str:
    """The grammar as the engine is to be given it, or `BadRequest`."""
    found = await asyncio.to_thread(_read, grammar)
    if not found.startswith(HEADER):
        raise BadRequest(found, param="grammar", code="invalid_grammar")
    return found


@lru_cache(maxsize=256)
def _read(grammar: str) -> str:
    """The grammar for `llguidance`, or what is wrong with it."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if not grammar.strip() or len(grammar) > LONGEST:
        return "The grammar is empty or too long."
    if _depth(grammar) > DEEPEST:
        return "The grammar is nested too deeply."
    try:
        lark = grammar if grammar.startswith(HEADER) else gbnf_to_lark(grammar)
        wrong = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark))
    except Exception as error:
        return f"The grammar cannot be read: {_first_line(str(error))}"
    if wrong:
        return f"The grammar cannot be read: {_first_line(wrong)}"
    return lark if lark.startswith(HEADER) else f"{HEADER} {{}}\n{lark}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "it is not valid."


def _depth(grammar: str) -> int:
    """How deep brackets stand inside each other, quoted ones apart."""
    depth = deepest = 0
    for letter in _QUOTED.sub("", grammar):
        if letter in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in ")]}":
            depth -= 1
    return deepest


class Keeper:
    """Follows what is generated under a grammar.

    The native server drops a grammar in the middle of an answer when it leads nowhere or grows too
    costly, and says nothing. So every token is checked here too, before it is told of.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: Any = None

    def follow(self, grammar: str) -> Any:
        """A matcher at the start of the grammar."""
        from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(self._vocabulary)))
        return LLMatcher(self._tokenizer, grammar)


class _Tokens:
    """A vocabulary in the shape that `llguidance` wants."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.ends, default=0)
        self.bos_token_id = None
        self.tokens = vocabulary.pieces or []
        self.special_token_ids = list(vocabulary.controls)

    def __call__(self, text: bytes) -> list[int]:
        return []


def keep_to(matcher: Any, ids: Sequence[int], stops: frozenset[int]) -> None:
    """Take the tokens up to a stop, or say that the answer has left its grammar."""
    until = next((at for at, token in enumerate(ids) if token in stops), len(ids))
    kept = matcher.consume_tokens(list(ids[:until]))
    if not kept or (until < len(ids) and not matcher.is_accepting()):
        raise BadRequest(
            "The grammar leads nowhere, or is too complex for the engine to keep to.",
            param="grammar",
            code="invalid_grammar",
        )
