"""Dialects: one file each, pure functions over Structs.

A dialect decodes a body into the nouns of `types` and writes the nouns of `events` back. It knows
nothing of engines, tokenizers, HTTP or the other dialects; `openai` and `wire` hold what several
share. The generating dialects have one shape, `Dialect`: `decode`, and a writer per answer that
gives `start`, `write`, `end` for a stream and `whole` for a whole answer.
"""

from __future__ import annotations

from typing import Protocol

from dragoman.errors import DragomanError
from dragoman.events import Completion, Delta, Usage
from dragoman.types import Request


class Encoder(Protocol):
    """Writes one answer down, as events of a stream or as a whole."""

    def start(self) -> list[bytes]:
        """Events before anything was generated."""
        ...

    def encode_delta(self, delta: Delta) -> list[bytes]:
        """Events for one delta."""
        ...

    def end(self, usage: Usage) -> list[bytes]:
        """Events after the last delta."""
        ...

    def fail(self, error: DragomanError) -> list[bytes]:
        """Events that end a stream that broke."""
        ...

    def encode_whole(self, completion: Completion) -> bytes:
        """The whole answer as one body."""
        ...


class Dialect(Protocol):
    """What a generating dialect's module offers."""

    def decode(self, body: bytes, strict: bool) -> Request:
        """A request, or an error that says what is wrong with the body and where."""
        ...

    def encoder(self, request: Request, model: str, choices: int, prompt: int) -> Encoder:
        """For an answer of this model; `prompt` is how many tokens it read, if that is known."""
        ...

    def encode_error(self, error: DragomanError) -> bytes:
        """The dialect's error object."""
        ...
