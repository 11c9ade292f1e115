"""Verifies a grammar before an engine gets it.

llguidance inside an engine has the limits that the engine's authors chose, and some of its work has
no limit at all. So a worker process, which may die, first compiles the grammar with half of those
limits and a fraction of the stack, and follows it for a few steps over single bytes, choosing at
random but always the same way. A grammar that passes leaves an engine room to spare.

This is the only time the server parses a whole grammar. An engine compiles it once more because it
needs the matcher for its own vocabulary; it relies on the verification done here.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from dragoman.grammar.complexity import is_limit_message

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

T = TypeVar("T")
# `empty`: the grammar allows no answer at all
Verdict: TypeAlias = Literal["ok", "invalid", "empty", "too_complex"]

STACK_BYTES = 2 << 20  # a quarter of what threads usually have
STEPS = 48
SPECIAL_TOKEN, END_TOKEN = 256, 257  # after the tokens that are bytes
# half of an engine's limits; but the items of one row are ten times the tools that may be called
ROW_ITEMS, STEP_ITEMS, STEP_FUEL, INITIAL_FUEL = 2_000, 25_000, 100_000, 500_000
GRAMMAR_SIZE, LEXER_STATES = 250_000, 125_000
_TOKEN_ID = re.compile(r"<\[[0-9]{1,9}\]>")  # longer numbers are left, to be rejected


def verify(grammar: str) -> Verdict:
    """Compile a grammar and follow it for a few steps."""
    return _run_with_small_stack(lambda: _verify(grammar))


def _verify(grammar: str) -> Verdict:
    from llguidance import LLMatcher

    # the byte tokenizer has one special token; any of the model's costs as much to follow
    grammar = _TOKEN_ID.sub(f"<[{SPECIAL_TOKEN}]>", grammar)
    matcher = LLMatcher(_make_byte_tokenizer(), grammar, log_level=0, limits=_build_limits())
    if not matcher.is_error():
        return _walk(matcher)
    message = matcher.get_error().partition("\n")[0]
    if "token" in message.lower():
        # it may name a special token that only the model has: check all the rest without tokens
        lark = LLMatcher.grammar_from_lark(grammar)
        message = LLMatcher.validate_grammar(lark, limits=_build_limits())
    if not message:
        return "ok"
    return "too_complex" if is_limit_message(message) else "invalid"


def _walk(matcher: LLMatcher) -> Verdict:
    chance = random.Random(0)
    for step in range(STEPS):
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(END_TOKEN) if mask[token >> 3] >> (token & 7) & 1]
        if allowed and not matcher.is_error():
            matcher.consume_token(chance.choice(allowed))
        if matcher.is_error():
            if is_limit_message(matcher.get_error()):
                return "too_complex"
            return "ok" if step else "empty"  # a random path may end where no model would go
        if not allowed:
            break
    return "ok"


def _build_limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=ROW_ITEMS,
        initial_lexer_fuel=INITIAL_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=GRAMMAR_SIZE,
    )


class _ByteTokens:
    """The tokenizer that `TokenizerWrapper` reads: a token for each byte, a special one, an end."""

    eos_token_id = END_TOKEN
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<|control|>", b"<|end|>")
    special_token_ids = (SPECIAL_TOKEN, END_TOKEN)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def _make_byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_ByteTokens()))


def _run_with_small_stack(work: Callable[[], T]) -> T:
    """Run in a thread with a small stack; work that needs more ends the process."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # a panic of a native library is not an Exception
            done.set_exception(error)

    before = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=run).start()
    finally:
        threading.stack_size(before)
    return done.result()
