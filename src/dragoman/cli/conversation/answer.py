"""One answer as it arrives, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.cli.client.client import AnswerStream
from dragoman.cli.console.table import format_duration
from dragoman.types import Json

AnswerChannel: TypeAlias = Literal["reasoning", "text"]
# Where the pieces of an answer are in an event of a stream.
CHANNEL_FIELDS: dict[str, AnswerChannel] = {"reasoning_content": "reasoning", "content": "text"}


class AnswerStats(Struct, kw_only=True):
    """What one answer cost. Times are seconds as the client sees them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token: float = 0.0  # from the request to the first piece of the answer
    generation: float = 0.0  # from the first piece to the last

    @property
    def tokens_per_second(self) -> float:
        """The speed after the first token; 0 if there was no second one."""
        if self.generation <= 0 or self.completion_tokens < 2:
            return 0.0
        return (self.completion_tokens - 1) / self.generation

    def describe(self) -> list[tuple[str, str]]:
        rate = self.tokens_per_second
        return [
            ("prompt", f"{self.prompt_tokens} tokens, {self.cached_tokens} of them cached"),
            ("answer", f"{self.completion_tokens} tokens"),
            ("time to first token", format_duration(self.first_token)),
            ("speed", f"{rate:.1f} tokens per second" if rate else "too short to measure"),
        ]


class StreamedAnswer:
    """Collects what a stream of chat events adds to the answer."""

    def __init__(self, started: float) -> None:
        """`started`: when the request was sent, by `time.perf_counter`."""
        self.text = ""
        self.reasoning = ""
        self.finish: str | None = None
        self.stats = AnswerStats()
        self._started = started
        self._first: float | None = None

    def read(self, stream: AnswerStream) -> Generator[tuple[AnswerChannel, str], None, None]:
        """Yield the pieces of the answer as they arrive."""
        for event in stream:
            if usage := event.get("usage"):
                self._record_usage(usage)
            for choice in event["choices"]:
                self.finish = choice.get("finish_reason") or self.finish
                yield from self._read_delta(choice.get("delta") or {})

    def _read_delta(self, delta: Json) -> Iterator[tuple[AnswerChannel, str]]:
        for field, channel in CHANNEL_FIELDS.items():
            if piece := delta.get(field):
                self._record_time()
                if channel == "text":
                    self.text += piece
                else:
                    self.reasoning += piece
                yield channel, piece

    def _record_time(self) -> None:
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            self.stats.first_token = now - self._started
        self.stats.generation = now - self._first

    def _record_usage(self, usage: Json) -> None:
        self.stats.prompt_tokens = usage.get("prompt_tokens") or 0
        self.stats.completion_tokens = usage.get("completion_tokens") or 0
        details = usage.get("prompt_tokens_details") or {}
        self.stats.cached_tokens = details.get("cached_tokens") or 0
