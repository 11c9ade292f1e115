"""Which tokens a grammar allows next, for engines that only give logits.

A model has one `Masker`, which knows the bytes of its tokens. `follow` compiles a grammar and gives
a `Following` for one choice: where that choice is in the grammar. Then, token by token:

    following.ahead()          # a worker begins on the mask of the next token
    logits = forward(...)      # meanwhile; the worker needs neither the model nor the GIL
    following.apply(logits)    # waits for the mask, if it is not there yet
    following.take(token)      # the place of the token after this one is known now

A mask depends on the tokens before it and not on the logits, so it costs nothing as long as it
takes less time than the forward pass. All choices of all models share a few workers. A matcher
cannot be asked two things at once; so whatever else is asked of a `Following` waits for the worker.

What ends an answer is allowed exactly where the grammar accepts, whatever the grammar makes of it
as text, or where the grammar names it as its own last token. Control tokens match no text: a
grammar has to name them. Nothing is forced: how a text is cut into tokens is left to the model, so
no tokenizer is ever asked.

A grammar can lead to a place where nothing is allowed and nothing is complete, or grow too costly.
`llguidance` then allows the end; here it is an error, so that no one takes half an answer for one.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from dragoman.errors import BadRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_GRAMMAR_CHARACTERS = 2 * 1024 * 1024  # characters
MAX_NESTING = 256  # brackets inside each other
CACHED_GRAMMARS, CACHED_CHARACTERS = (
    16,
    1 << 20,
)  # compiled grammars that are remembered, and their characters
MAX_WORKERS = 8
# options can be said several times, and the last word counts
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
# what is not closed goes on to the end of its line, or it would be looked for again and again
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|\[(?:[^\]\\\n]|\\.)*+\]?|#[^\n]*')


def find_size_error(grammar: str) -> str | None:
    """Why a grammar is not even read: native readers can run out of stack."""
    if not grammar.strip() or len(grammar) > MAX_GRAMMAR_CHARACTERS:
        return "The grammar is empty or too long."
    return "The grammar is nested too deeply." if _measure_nesting(grammar) > MAX_NESTING else None


def format_parse_error(said: str) -> str:
    """What is wrong with a grammar, from what its reader said of it."""
    lines = said.strip().splitlines()
    return f"The grammar cannot be read: {lines[0][:200] if lines else 'it is not valid.'}"


def invalid_grammar_error(message: str) -> BadRequest:
    return BadRequest(message, param="grammar", code="invalid_grammar")


def dead_end_error() -> BadRequest:
    return invalid_grammar_error(
        "The grammar leads nowhere, or is too complex for the engine to keep to."
    )


def _measure_nesting(grammar: str) -> int:
    """How deep brackets stand inside each other, quoted ones apart."""
    depth = deepest = 0
    for letter in _QUOTED.sub("", grammar):
        if letter in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in ")]}":
            depth -= 1
    return deepest


class TokenMasker:
    """Follows grammars over one model's vocabulary. Any thread may use it."""

    def __init__(
        self, pieces: Sequence[bytes], ends: Collection[int], controls: Collection[int]
    ) -> None:
        self._pieces = pieces
        # where nothing ends an answer, a token that no model can say stands for the end
        self._ends = frozenset(end for end in ends if end < len(pieces)) or frozenset({len(pieces)})
        self._textless = self._ends | frozenset(controls)  # tokens that match no text
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._matchers: OrderedDict[str, Any] = OrderedDict()

    def prepare(self) -> None:
        """Do now what the first grammar would wait for, and all other threads with it."""
        self._get_tokenizer()

    def start_grammar(self, grammar: str, stops: Collection[int] = ()) -> GrammarState:
        """The start of the grammar, or `BadRequest`; `stops` end this answer like the model's ends.

        Compiling can take a while: call it in a thread.
        """
        with self._lock:
            start = self._matchers.pop(grammar, None)
            if start is not None:
                self._matchers[grammar] = start
        if start is None:
            start = self._compile(grammar)
            with self._lock:
                self._matchers[grammar] = start
                while (
                    len(self._matchers) > CACHED_GRAMMARS
                    or sum(map(len, self._matchers)) > CACHED_CHARACTERS
                ):
                    self._matchers.popitem(last=False)
        ends = self._ends | frozenset(stops)
        following = GrammarState(start.deep_copy(), len(self._pieces), ends, self._textless & ends)
        following.on_broken = partial(self._evict, grammar)
        return following

    def _evict(self, grammar: str) -> None:
        """A place too costly for one choice has spoilt what all copies of the matcher share."""
        with self._lock:
            self._matchers.pop(grammar, None)

    def _compile(self, grammar: str) -> Any:
        """A matcher at the start of the grammar, which every choice gets a copy of."""
        from llguidance import LLMatcher

        wrong = find_size_error(grammar)
        if wrong:
            raise invalid_grammar_error(wrong)
        matcher = LLMatcher(self._get_tokenizer(), grammar + NO_FORCING, log_level=0)
        if matcher.is_error():
            raise invalid_grammar_error(format_parse_error(matcher.get_error()))
        matcher.compute_bitmask()  # what is costly about the first mask goes into every copy
        if matcher.is_error():
            raise dead_end_error()
        return matcher

    def _get_tokenizer(self) -> Any:
        """The vocabulary, in the shape that `llguidance` wants; made when it is first needed."""
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._tokenizer is None:
                tokens = _TokenizerAdapter(self._pieces, min(self._ends), self._textless)
                self._tokenizer = LLTokenizer(TokenizerWrapper(tokens))
            return self._tokenizer


class _TokenizerAdapter:
    """What `TokenizerWrapper` reads from a tokenizer."""

    def __init__(self, pieces: Sequence[bytes], end: int, textless: Collection[int]) -> None:
        self.eos_token_id = end if end < len(pieces) else None  # None appends one
        self.bos_token_id = None
        self.tokens = pieces
        self.special_token_ids = sorted(token for token in textless if token < len(pieces))

    def __call__(self, text: bytes) -> list[int]:
        return []  # nothing is forced, so nothing is ever cut into tokens


class GrammarState:
    """Where one choice is in its grammar. One thread at a time may use it."""

    def __init__(
        self, matcher: Any, size: int, ends: frozenset[int], nameable: frozenset[int]
    ) -> None:
        self._matcher = matcher
        self._size = size
        self._ends = ends
        self._token_only_ends = nameable  # those that a grammar can only mean as tokens
        self._pending_mask: Future[bytes] | None = None
        self._is_exhausted = False  # the mask has shown that nothing but an end may follow
        self.on_broken: Callable[[], object] = bool  # called when the matcher is past use

    def start_mask(self) -> Future[bytes]:
        """Begin on the mask of the next token, unless that has begun; returns at once.

        The mask has a bit for each token, the lowest bit of a byte first. An event loop can await
        it with `asyncio.wrap_future`.
        """
        if self._pending_mask is None or self._pending_mask.cancelled():
            self._pending_mask = _get_workers().submit(self._compute_mask)
        return self._pending_mask

    def get_mask(self) -> bytes:
        """The mask of the next token, as soon as it is there; `BadRequest` where none can come."""
        return self.start_mask().result()

    def apply_mask(self, logits: NDArray[Any]) -> None:
        """Forbid, in place, every token that the grammar does not allow next."""
        import numpy as np

        bits = np.unpackbits(np.frombuffer(self.get_mask(), np.uint8), bitorder="little")
        known = min(len(logits), self._size)
        logits[known:] = -np.inf
        logits[:known][bits[:known] == 0] = -np.inf

    def advance(self, *tokens: int) -> None:
        """Go on by these tokens, none of which is an end; `BadRequest` if one is not allowed."""
        matcher = self._wait_for_matcher()
        self._pending_mask, self._is_exhausted = None, False
        if not matcher.consume_tokens(list(tokens)):
            raise dead_end_error()

    @property
    def is_accepting(self) -> bool:
        """Whether the answer is complete, if it ends here."""
        return bool(self._wait_for_matcher().is_accepting())

    @property
    def must_end(self) -> bool:
        """Whether nothing but an end may follow. Some grammars show it only by their mask."""
        matcher = self._wait_for_matcher()
        return bool(self._is_exhausted or (matcher.is_stopped() and matcher.is_accepting()))

    def can_end_with(self, token: int) -> bool:
        """Whether the answer is complete with this end."""
        return self.is_accepting or self._names_end(token)

    def _wait_for_matcher(self) -> Any:
        """The matcher, once no worker has it."""
        if self._pending_mask is not None:
            wait([self._pending_mask])
        return self._matcher

    def _compute_mask(self) -> bytes:
        matcher = self._matcher
        mask = bytearray(matcher.compute_bitmask())
        if matcher.is_error():
            self.on_broken()
            raise dead_end_error()
        accepting = matcher.is_accepting()
        ends = []
        for end in self._ends:
            at, bit = end >> 3, 1 << (end & 7)
            if accepting or (mask[at] & bit and self._names_end(end)):
                ends.append((at, bit))
            mask[at] &= ~bit
        self._is_exhausted = accepting and mask.count(0) == len(mask)
        for at, bit in ends:
            mask[at] |= bit
        if mask.count(0) == len(mask):
            raise dead_end_error()
        return bytes(mask)

    def _names_end(self, end: int) -> bool:
        """Whether the grammar names this end as its last token here."""
        if end not in self._token_only_ends:
            return False
        copy = self._matcher.deep_copy()
        return bool(copy.consume_token(end) and copy.is_accepting())


@lru_cache(maxsize=1)
def _get_workers() -> ThreadPoolExecutor:
    most = min(MAX_WORKERS, os.cpu_count() or 1)
    return ThreadPoolExecutor(most, thread_name_prefix="dragoman-mask")
