"""Which tokens a grammar allows next, for engines that only produce logits.

A model has one `TokenMasker`, which knows the bytes of its tokens. `start_grammar` compiles a
grammar and returns a `GrammarState` for one choice. Then, token by token:

    state.start_mask()         # a worker begins to compute the mask of the next token
    logits = forward(...)      # meanwhile; the worker needs neither the model nor the GIL
    state.apply_mask(logits)   # waits for the mask, if it is not computed yet
    state.advance(token)

A mask depends on the tokens before it and not on the logits, so it costs no time as long as it is
computed faster than the forward pass. All choices of all models share a few workers. Only one
thread can use a matcher, so every other method of a `GrammarState` waits for the worker.

A stop token is allowed exactly where the grammar accepts, even if the grammar also matches its
text, or where the grammar names it as its last token. Control tokens match no text: a grammar has
to name them. Tokens are never forced, since the model decides how a text is split into tokens; so
no tokenizer is ever needed.

A grammar can reach a state in which nothing is allowed and nothing is complete, or become too
costly. `llguidance` then allows the end; here it is an error, so that half an answer is never taken
for a whole one.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from dragoman.errors import BadRequest, InvalidGrammar
from dragoman.types.bounded_cache import BoundedCache

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

MAX_GRAMMAR_CHARACTERS = 2 * 1024 * 1024
MAX_NESTING = 256  # brackets inside each other
CACHED_GRAMMARS = 16
CACHED_CHARACTERS = 1 << 20  # of all cached grammars together
MAX_WORKERS = 8
# options may be given several times, and the last one counts
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
# an unclosed string or class extends to the end of its line, or matching would take quadratic time
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|\[(?:[^\]\\\n]|\\.)*+\]?|#[^\n]*')


def find_size_error(grammar: str) -> str | None:
    """Return why a grammar is not parsed at all: native parsers can run out of stack."""
    if not grammar.strip() or len(grammar) > MAX_GRAMMAR_CHARACTERS:
        return "The grammar is empty or too long."
    return "The grammar is nested too deeply." if _measure_nesting(grammar) > MAX_NESTING else None


def format_parse_error(message: str) -> str:
    """Make an error message from the one of the grammar parser."""
    lines = message.strip().splitlines()
    return f"The grammar is invalid: {lines[0][:200] if lines else 'it cannot be parsed.'}"


def make_invalid_grammar_error(message: str) -> BadRequest:
    return InvalidGrammar(message, param="grammar")


def make_dead_end_error() -> BadRequest:
    return make_invalid_grammar_error(
        "The grammar reaches a state in which no token is allowed, or is too complex to enforce."
    )


def _measure_nesting(grammar: str) -> int:
    """Return how deep brackets are nested, not counting quoted ones."""
    depth = deepest = 0
    for char in _QUOTED.sub("", grammar):
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth -= 1
    return deepest


class TokenMasker:
    """Runs grammars over one model's vocabulary. Any thread may use it."""

    def __init__(
        self, pieces: Sequence[bytes], eos_ids: Collection[int], control_ids: Collection[int]
    ) -> None:
        self._pieces = pieces
        known = frozenset(token for token in eos_ids if token < len(pieces))
        # a model without stop tokens gets an id that it cannot produce
        self._eos_ids = known or frozenset({len(pieces)})
        self._textless_ids = self._eos_ids | frozenset(control_ids)  # tokens that match no text
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._matchers: BoundedCache[tuple[str, str], LLMatcher] = BoundedCache(
            max_entries=CACHED_GRAMMARS,
            max_size=CACHED_CHARACTERS,
            measure=lambda key, _: len(key[1]),
        )

    def prepare(self) -> None:
        """Build the vocabulary now, so that the first grammar does not wait for it."""
        self._get_tokenizer()

    def start_grammar(
        self, grammar: str, stop_ids: Collection[int] = (), scope: str = ""
    ) -> GrammarState:
        """Return the initial state of the grammar, or raise `BadRequest`.

        `stop_ids` end this answer, like the model's own stop tokens. Compiling can take a while:
        call it in a thread. A compiled grammar is reused within a cache scope only, because the
        time tells whether there was one.
        """
        key = scope, grammar
        with self._lock:
            matcher = self._matchers.get(key)
        if matcher is None:
            matcher = self._compile(grammar)
            with self._lock:
                self._matchers.put(key, matcher)
        ends = self._eos_ids | frozenset(stop_ids)
        state = GrammarState(
            matcher.deep_copy(), len(self._pieces), ends, self._textless_ids & ends
        )
        state.on_broken = partial(self._evict, key)
        return state

    def _evict(self, key: tuple[str, str]) -> None:
        """Drop a matcher: a state that is too costly breaks the data that all copies share."""
        with self._lock:
            self._matchers.pop(key)

    def _compile(self, grammar: str) -> LLMatcher:
        """Return a matcher at the start of the grammar; every choice gets a copy of it."""
        from llguidance import LLMatcher

        error = find_size_error(grammar)
        if error is not None:
            raise make_invalid_grammar_error(error)
        tokenizer = self._get_tokenizer()
        try:
            matcher = LLMatcher(tokenizer, grammar + NO_FORCING, log_level=0)
        except Exception as failure:  # such as text that is not valid Unicode
            raise make_invalid_grammar_error(format_parse_error(str(failure))) from None
        if matcher.is_error():
            raise make_invalid_grammar_error(format_parse_error(matcher.get_error()))
        matcher.compute_bitmask()  # the costly part of the first mask is shared by all copies
        if matcher.is_error():
            raise make_dead_end_error()
        return matcher

    def _get_tokenizer(self) -> LLTokenizer:
        """Return the vocabulary in the form that `llguidance` wants, built on first use."""
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._tokenizer is None:
                adapter = _TokenizerAdapter(self._pieces, min(self._eos_ids), self._textless_ids)
                self._tokenizer = LLTokenizer(TokenizerWrapper(adapter))
            return self._tokenizer


class _TokenizerAdapter:
    """The attributes that `TokenizerWrapper` reads from a tokenizer."""

    def __init__(self, pieces: Sequence[bytes], eos_id: int, textless: Collection[int]) -> None:
        self.eos_token_id = eos_id if eos_id < len(pieces) else None  # None appends one
        self.bos_token_id = None
        self.tokens = pieces
        self.special_token_ids = sorted(token for token in textless if token < len(pieces))

    def __call__(self, text: bytes) -> list[int]:
        return []  # no token is forced, so no text is ever tokenized


class GrammarState:
    """The state of one choice in its grammar. One thread at a time may use it."""

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary_size: int,
        end_ids: frozenset[int],
        textless_end_ids: frozenset[int],
    ) -> None:
        self._matcher = matcher
        self._size = vocabulary_size
        self._end_ids = end_ids
        self._textless_end_ids = textless_end_ids  # a grammar can only mean these as tokens
        self._pending_mask: Future[bytes] | None = None
        self._is_exhausted = False  # the mask shows that only an end may follow
        self.on_broken: Callable[[], object] = bool  # called when the matcher is unusable

    def start_mask(self) -> Future[bytes]:
        """Start to compute the mask of the next token, if that is not started; return at once.

        The mask has a bit for each token, the lowest bit of a byte first. An event loop can await
        it with `asyncio.wrap_future`.
        """
        mask = self._pending_mask
        if mask is None or mask.cancelled():
            mask = self._pending_mask = _get_workers().submit(self._compute_mask)
        return mask

    def get_mask(self) -> bytes:
        """Wait for the mask of the next token; `BadRequest` if no token is allowed.

        If nothing has started to compute it, this thread does, instead of waiting for a worker.
        """
        mask = self._pending_mask
        if mask is None or mask.cancelled():
            mask = self._pending_mask = Future()
            try:
                mask.set_result(self._compute_mask())
            except Exception as error:
                mask.set_exception(error)
        return mask.result()

    def apply_mask(self, logits: NDArray[np.float64] | NDArray[np.float32]) -> None:
        """Forbid, in place, every token that the grammar does not allow next."""
        import numpy as np

        bits = np.unpackbits(np.frombuffer(self.get_mask(), np.uint8), bitorder="little")
        known = min(len(logits), self._size)
        logits[known:] = -np.inf
        logits[:known][bits[:known] == 0] = -np.inf

    def advance(self, *tokens: int) -> None:
        """Consume tokens, none of which ends the answer; `BadRequest` if one is not allowed."""
        matcher = self._wait_for_matcher()
        self._pending_mask, self._is_exhausted = None, False
        if not matcher.consume_tokens(list(tokens)):
            raise make_dead_end_error()

    @property
    def is_accepting(self) -> bool:
        """Whether the answer is complete, if it ends here."""
        return bool(self._wait_for_matcher().is_accepting())

    @property
    def must_end(self) -> bool:
        """Whether only an end may follow. Some grammars show that only in their mask."""
        matcher = self._wait_for_matcher()
        return bool(self._is_exhausted or (matcher.is_stopped() and matcher.is_accepting()))

    def can_end_with(self, token: int) -> bool:
        """Whether the answer is complete with this stop token."""
        return self.is_accepting or self._names_end(token)

    def _wait_for_matcher(self) -> LLMatcher:
        """Return the matcher once no worker uses it."""
        if self._pending_mask is not None:
            wait([self._pending_mask])
        return self._matcher

    def _compute_mask(self) -> bytes:
        matcher = self._matcher
        mask = bytearray(matcher.compute_bitmask())
        if matcher.is_error():
            self.on_broken()
            raise make_dead_end_error()
        is_accepting = matcher.is_accepting()
        allowed_ends = []
        for end in self._end_ids:
            index, bit = end >> 3, 1 << (end & 7)
            if is_accepting or (mask[index] & bit and self._names_end(end)):
                allowed_ends.append((index, bit))
            mask[index] &= ~bit
        self._is_exhausted = is_accepting and mask.count(0) == len(mask)
        for index, bit in allowed_ends:
            mask[index] |= bit
        if mask.count(0) == len(mask):
            raise make_dead_end_error()
        return bytes(mask)

    def _names_end(self, end: int) -> bool:
        """Whether the grammar names this stop token as its last token here."""
        if end not in self._textless_end_ids:
            return False
        copy = self._matcher.deep_copy()
        return bool(copy.consume_token(end) and copy.is_accepting())


@lru_cache(maxsize=1)
def _get_workers() -> ThreadPoolExecutor:
    count = min(MAX_WORKERS, os.cpu_count() or 1)
    return ThreadPoolExecutor(count, thread_name_prefix="dragoman-mask")
