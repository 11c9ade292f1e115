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
    marks: tuple[Token, ...] = ()  # their logprobs, when asked for
    control: bool = False
    thought: int = 0  # characters that are thoughts
    counted: int = 0  # tokens that were counted for them
    told: bool = False  # the logprobs went out

    def count(self, characters: int) -> int:
        """How many more tokens are thoughts now; several of unknown lengths count by share."""
        self.thought += characters
        if self.tokens < 2:
            now = self.tokens
        else:
            now = max(1, round(self.tokens * self.thought / (self.end - self.start)))
        more, self.counted = now - self.counted, now
        return more


class TokenLedger:
    """The ledger. `thoughts` is how many tokens of reasoning there were."""

    def __init__(self) -> None:
        self.thoughts = 0
        self._open: deque[TokenSpan] = deque()

    def note(self, place: TokenSpan) -> None:
        self._open.append(place)

    def thought(self, start: int, text: str) -> str:
        """A span of reasoning: count its tokens. Gives the text without control tokens."""
        end = start + len(text)
        control = []
        for place in self._claimed(start, end):
            if place.control:
                control.append(place)
            else:
                self.thoughts += place.count(min(end, place.end) - max(start, place.start))
        return _without(text, start, control) if control else text

    def said(self, start: int, text: str) -> tuple[str, tuple[Token, ...]]:
        """A span of text: the same without control tokens, and the logprobs that go with it."""
        marks: list[Token] = []
        control = []
        for place in self._claimed(start, start + len(text)):
            if place.control:
                control.append(place)
            elif not place.told:
                place.told = True
                marks += place.marks
        return (_without(text, start, control) if control else text), tuple(marks)

    def forget(self, before: int) -> None:
        """No token that ends before a character is text or a thought."""
        while self._open and self._open[0].end <= before:
            self._open.popleft()

    def _claimed(self, start: int, end: int) -> list[TokenSpan]:
        """Every place that has characters in the span; what lies before it is forgotten."""
        places, claimed = self._open, []
        while places and places[0].start < end:
            place = places[0]
            if place.end > start:
                claimed.append(place)
            if place.end > end:
                break
            places.popleft()
        return claimed


def _without(text: str, start: int, places: list[TokenSpan]) -> str:
    parts, at = [], 0
    for place in places:
        parts.append(text[at : max(0, place.start - start)])
        at = place.end - start
    return "".join([*parts, text[at:]])
