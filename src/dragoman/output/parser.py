"""The parser: text in pieces in, spans on channels out."""

from __future__ import annotations

from dragoman.output.span import Span
from dragoman.output.state_machine import Machine

SLICE = 4096  # letters that are read at once, so that looking ahead never costs more


class Parser(Machine):
    """Reads one answer."""

    def feed(self, text: str) -> list[Span]:
        """What is certain now."""
        if self._sieve is not None:
            text = self._sieve.feed(text)
        if len(text) <= SLICE:
            return self._feed(text)
        pieces = (text[at : at + SLICE] for at in range(0, len(text), SLICE))
        return [span for piece in pieces for span in self._feed(piece)]

    def _feed(self, text: str) -> list[Span]:
        if not text or self._closed:
            return []
        self._src.push(text)
        next(self._going)
        if self._calls.muted:
            self._calls.return_muted()
        if not self._spans:
            return []
        spans = self._spans[:]
        self._spans.clear()
        if self._policy.unclosed_reasoning == "repeat":
            self._thoughts_said += spans
        return spans

    def close(self, cut: bool = False) -> list[Span]:
        """All that was held back. `cut` says that the answer was not ended by the model."""
        if self._closed:
            return []
        rest = [] if self._sieve is None else self._feed(self._sieve.close())
        self._closed = True
        self._cut = cut
        self._src.finish()
        for _ in self._going:
            pass
        if self._pure:
            self._spans.extend(self._blank)
        if self._policy.unclosed_reasoning == "repeat" and not cut:
            self._spans.extend(self._again(rest + self._spans))
        return rest + self._spans

    def _again(self, last: list[Span]) -> list[Span]:
        """Thoughts that were never closed, as text, if there was nothing else."""
        self._thoughts_said += last
        if not self.inside or any(span.channel != "reasoning" for span in self._thoughts_said):
            return []
        return [span._replace(channel="text") for span in self._thoughts_said]

    @property
    def inside(self) -> bool:
        """Whether it is among thoughts, by all that is certain."""
        return self._place.channel == "reasoning"

    @property
    def waiting(self) -> bool:
        """Whether a tail is held back that may become a mark, or a call that is not certain."""
        return self._src.has_more or self._src.is_holding

    @property
    def calling(self) -> bool:
        """Whether it is in the middle of a call that was handed out."""
        return self._calls.begun
