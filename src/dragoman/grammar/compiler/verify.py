"""Whether engines can be trusted with a grammar: it is read and followed a little, here first.

An engine's own reader has the limits of its makers, and some of what it does has none. What is
given to it has been through the same in this process, which may fail, with half of those limits and
a fraction of the stack: so what comes through leaves an engine room to spare. The grammar is
followed over single bytes, from its beginning and at random, always the same way.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

T = TypeVar("T")
Verdict: TypeAlias = Literal["fine", "wrong", "nowhere", "costly"]

STACK = 2 << 20  # bytes; threads mostly have four times that
STEPS = 48
CONTROL, END = 256, 257  # tokens after those that are bytes
# half of what engines have, but for rows: as many items as tools that may be called, ten times over
ROW, ITEMS, FUEL, FIRST_FUEL = 2_000, 25_000, 100_000, 500_000
SIZE, STATES = 250_000, 125_000
_TOKEN = re.compile(r"<\[[0-9]+\]>")
_COSTLY = re.compile("(?i)too (?:big|many|complex)|fuel|limit|max is")


def verify(grammar: str) -> Verdict:
    """What is to be said of a grammar; `nowhere` is one that allows nothing at all."""
    return _run_with_small_stack(lambda: _verify(grammar))


def _verify(grammar: str) -> Verdict:
    from llguidance import LLMatcher

    said = str(
        LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar), limits=_build_limits())
    )
    if said:
        return "costly" if is_too_complex_error(said) else "wrong"
    # control tokens have other numbers here; which of them it is costs the same
    plain = _TOKEN.sub(f"<[{CONTROL}]>", grammar)
    matcher = LLMatcher(_byte_tokenizer(), plain, log_level=0, limits=_build_limits())
    if matcher.is_error():
        said = matcher.get_error().partition("\n")[0]
        if is_too_complex_error(said):
            return "costly"
        return "fine" if "token" in said.lower() else "wrong"  # it may name those of a model
    return _walk(matcher)


def _walk(matcher: Any) -> Verdict:
    chance = random.Random(0)
    for step in range(STEPS):
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(END) if mask[token >> 3] >> (token & 7) & 1]
        if allowed and not matcher.is_error():
            matcher.consume_token(chance.choice(allowed))
        if matcher.is_error():
            if is_too_complex_error(matcher.get_error()):
                return "costly"
            return "fine" if step else "nowhere"  # chance may lead to where no model would go
        if not allowed:
            break
    return "fine"


def is_too_complex_error(said: str) -> bool:
    """Whether a reader of grammars says that one is too much for it."""
    return _COSTLY.search(said.partition("\n")[0]) is not None


def _build_limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=ROW,
        initial_lexer_fuel=FIRST_FUEL,
        step_lexer_fuel=FUEL,
        step_max_items=ITEMS,
        max_lexer_states=STATES,
        max_grammar_size=SIZE,
    )


class _ByteTokens:
    """What `TokenizerWrapper` reads from a tokenizer: a token for each byte, control and end."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<|control|>", b"<|end|>")
    special_token_ids = (CONTROL, END)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def _byte_tokenizer() -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_ByteTokens()))


def _run_with_small_stack(work: Callable[[], T]) -> T:
    """Do something with little stack: what needs more ends the process."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # a panic of a native library is no Exception
            done.set_exception(error)

    before = threading.stack_size(STACK)
    try:
        threading.Thread(target=run).start()
    finally:
        threading.stack_size(before)
    return done.result()
