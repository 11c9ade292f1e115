"""Counts which tokens of a choice are reasoning and which are the answer.

Tokens are added together with the characters they represent. Once the parser has decided what those
characters are, their spans are taken in order. A token counts as reasoning if any of its characters
is reasoning, and its logprob goes with the text if any of its characters is text, so markers and
calls have none. A special token that only the parser may see is cut out of the span around it.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from dragoman.events import Token


class TokenSpan(Struct):
    """Tokens that came together, and the characters they represent."""

    start: int
    end: int
    tokens: int = 1
    logprobs: tuple[Token, ...] = ()  # if the client wants them
    is_special: bool = False
    reasoning_characters: int = 0
    reasoning_tokens: int = 0  # counted so far
    logprobs_taken: bool = False

    def count_reasoning(self, characters: int) -> int:
        """Return how many more tokens are reasoning; tokens of unknown length count pro rata."""
        self.reasoning_characters += characters
        if self.tokens < 2:
            total = self.tokens
        else:
            share = self.reasoning_characters / (self.end - self.start)
            total = max(1, round(self.tokens * share))
        more, self.reasoning_tokens = total - self.reasoning_tokens, total
        return more


class TokenLedger:
    """The tokens of one choice whose characters the parser has not decided on yet."""

    def __init__(self) -> None:
        self.reasoning_tokens = 0
        self._spans: deque[TokenSpan] = deque()

    def add(self, span: TokenSpan) -> None:
        self._spans.append(span)

    def take_reasoning(self, start: int, text: str) -> str:
        """Count the tokens of a piece of reasoning; return it without special tokens."""
        end = start + len(text)
        special = []
        for span in self._take_overlapping(start, end):
            if span.is_special:
                special.append(span)
            else:
                overlap = min(end, span.end) - max(start, span.start)
                self.reasoning_tokens += span.count_reasoning(overlap)
        return _cut_out(text, start, special) if special else text

    def take_text(self, start: int, text: str) -> tuple[str, tuple[Token, ...]]:
        """Return a piece of text without special tokens, and the logprobs that go with it."""
        logprobs: list[Token] = []
        special = []
        for span in self._take_overlapping(start, start + len(text)):
            if span.is_special:
                special.append(span)
            elif not span.logprobs_taken:
                span.logprobs_taken = True
                logprobs += span.logprobs
        return (_cut_out(text, start, special) if special else text), tuple(logprobs)

    def discard_before(self, position: int) -> None:
        """Drop the spans that end before a character: they are neither text nor reasoning."""
        while self._spans and self._spans[0].end <= position:
            self._spans.popleft()

    def _take_overlapping(self, start: int, end: int) -> list[TokenSpan]:
        """Return the spans with characters in this range, and drop those before its end."""
        spans, overlapping = self._spans, []
        while spans and spans[0].start < end:
            span = spans[0]
            if span.end > start:
                overlapping.append(span)
            if span.end > end:
                break
            spans.popleft()
        return overlapping


def _cut_out(text: str, start: int, spans: list[TokenSpan]) -> str:
    parts, position = [], 0
    for span in spans:
        parts.append(text[position : max(0, span.start - start)])
        position = span.end - start
    return "".join([*parts, text[position:]])
