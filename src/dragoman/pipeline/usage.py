"""Which tokens are thoughts and which are the answer: a ledger of one choice.

Tokens are noted with the characters they stand for. Later, when the parser has made up its mind
about those characters, they are claimed span by span, in order. A token counts as a thought if any
of its characters is one, and its logprob goes with the text if any of its characters is text, so
marks and calls have none. A control token that was only shown to the parser is cut out of a span
that has it in it.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from dragoman.events import Token


class TokenSpan(Struct):
    """Tokens that came together, and the characters they stand for."""

    start: int
    end: int
    tokens: int = 1
    logprobs: tuple[Token, ...] = ()  # their logprobs, when asked for
    is_special: bool = False
    reasoning_characters: int = 0  # characters that are thoughts
    reasoning_tokens: int = 0  # tokens that were counted for them
    logprobs_taken: bool = False  # the logprobs went out

    def count_reasoning(self, characters: int) -> int:
        """How many more tokens are thoughts now; several of unknown lengths count by share."""
        self.reasoning_characters += characters
        if self.tokens < 2:
            now = self.tokens
        else:
            now = max(1, round(self.tokens * self.reasoning_characters / (self.end - self.start)))
        more, self.reasoning_tokens = now - self.reasoning_tokens, now
        return more


class TokenLedger:
    """The ledger. `thoughts` is how many tokens of reasoning there were."""

    def __init__(self) -> None:
        self.reasoning_tokens = 0
        self._spans: deque[TokenSpan] = deque()

    def add(self, place: TokenSpan) -> None:
        self._spans.append(place)

    def take_reasoning(self, start: int, text: str) -> str:
        """A span of reasoning: count its tokens. Gives the text without control tokens."""
        end = start + len(text)
        control = []
        for place in self._take_overlapping(start, end):
            if place.is_special:
                control.append(place)
            else:
                self.reasoning_tokens += place.count_reasoning(
                    min(end, place.end) - max(start, place.start)
                )
        return _cut_out(text, start, control) if control else text

    def take_text(self, start: int, text: str) -> tuple[str, tuple[Token, ...]]:
        """A span of text: the same without control tokens, and the logprobs that go with it."""
        marks: list[Token] = []
        control = []
        for place in self._take_overlapping(start, start + len(text)):
            if place.is_special:
                control.append(place)
            elif not place.logprobs_taken:
                place.logprobs_taken = True
                marks += place.logprobs
        return (_cut_out(text, start, control) if control else text), tuple(marks)

    def discard_before(self, before: int) -> None:
        """No token that ends before a character is text or a thought."""
        while self._spans and self._spans[0].end <= before:
            self._spans.popleft()

    def _take_overlapping(self, start: int, end: int) -> list[TokenSpan]:
        """Every place that has characters in the span; what lies before it is forgotten."""
        places, claimed = self._spans, []
        while places and places[0].start < end:
            place = places[0]
            if place.end > start:
                claimed.append(place)
            if place.end > end:
                break
            places.popleft()
        return claimed


def _cut_out(text: str, start: int, places: list[TokenSpan]) -> str:
    parts, at = [], 0
    for place in places:
        parts.append(text[at : max(0, place.start - start)])
        at = place.end - start
    return "".join([*parts, text[at:]])
