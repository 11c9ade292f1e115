"""The parser's interface: it takes text in pieces and returns spans on channels."""

from __future__ import annotations

from dragoman.output.span import Span
from dragoman.output.state_machine import ParserMachine

MAX_PIECE = 4096  # characters that are read at once, which bounds the cost of looking ahead


class Parser(ParserMachine):
    """Parses one answer."""

    def feed(self, text: str) -> list[Span]:
        """Take a piece of text and return the spans that are certain now."""
        if len(text) > MAX_PIECE:
            pieces = (text[start : start + MAX_PIECE] for start in range(0, len(text), MAX_PIECE))
            return [span for piece in pieces for span in self.feed(piece)]
        if self._filter is not None:
            text = self._filter.feed(text)
        if not text or self._closed:
            return []
        self._buffer.push(text)
        self._readers.resume()
        if self._calls.is_undeclared:
            self._calls.emit_undeclared()
        spans = self._spans
        if not spans:
            return []
        taken = spans[:]
        spans.clear()
        if self._emitted is not None:
            self._emitted += taken
        return taken

    def close(self, truncated: bool = False) -> list[Span]:
        """Return everything held back. `truncated`: the model did not end the answer itself."""
        if self._closed:
            return []
        rest: list[Span] = []
        if self._filter is not None:
            held, self._filter = self._filter.close(), None
            rest = self.feed(held)
        self._closed = True
        self._truncated = truncated
        self._buffer.finish(truncated=truncated)
        self._readers.finish()
        self.release()
        if self._only_text:
            self._text.extend(self._leading_space)
        if self._policy.only_calls and not truncated:
            self._spans.extend(self._text)
        if self._emitted is not None and not truncated:
            self._spans.extend(self._repeat_as_text(self._emitted + self._spans))
        return rest + self._spans

    def release(self) -> None:
        """Parse no further. Breaks reference cycles, which would keep what the parser holds."""
        self._closed = True
        self._readers.close()
        self._calls.detach()

    def _repeat_as_text(self, spans: list[Span]) -> list[Span]:
        """Return unclosed reasoning as text, if the answer contains nothing else."""
        if not self.in_reasoning or any(span.channel != "reasoning" for span in spans):
            return []
        return [span._replace(channel="text") for span in spans]

    @property
    def in_reasoning(self) -> bool:
        """Whether the position is inside reasoning, as far as that is certain."""
        return self._state.channel == "reasoning"

    @property
    def is_waiting(self) -> bool:
        """Whether a possible marker or an uncertain call is held back."""
        return self._buffer.has_more or self._buffer.is_holding

    @property
    def rejected_calls(self) -> list[str]:
        """Why text that looked like calls was not parsed as calls, one phrase for each."""
        return self._calls.rejections

    @property
    def is_in_call(self) -> bool:
        """Whether a call has been emitted in part."""
        return self._calls.is_emitting
