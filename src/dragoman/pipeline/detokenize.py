"""Turns tokens into text, in the same way for every engine, output format and wire API.

One `Detokenizer` reads one choice. It turns ids into text without ever splitting a character, cuts
the text at the first stop string, and keeps each token's logprob with the text of that token.

Text is released as soon as it can no longer change: a tail is held back only while it may still
become a stop string, or while the bytes of a character are incomplete. Which stop string wins must
not depend on how the text is split into steps: it is the one that is complete first, and the
longest of those that end together. A step costs time in proportion to its own length, never to that
of the answer.
"""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

from msgspec import Struct

from dragoman.errors import EngineFailed
from dragoman.events import Token
from dragoman.types import Logprob, Step
from dragoman.types.sampling import MIN_LOGPROB


class ReleasedText(Struct, frozen=True, gc=False):
    """Text that is final, and its tokens."""

    text: str
    tokens: tuple[Token, ...] = ()
    stop: str | None = None  # the stop string right after this text


NO_TEXT = ReleasedText("")
make_decoder = codecs.getincrementaldecoder("utf-8")
NO_DECODER = make_decoder("replace")  # it is only given empty bytes


def _clamp_logprob(logprob: float | None) -> float | None:
    if logprob is None or math.isfinite(logprob):
        return logprob
    if logprob == -math.inf:
        return MIN_LOGPROB
    raise EngineFailed("The engine reported a probability that is not a number.")


class StopMatcher:
    """Finds the first complete stop string in a text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._first_characters = {stop[0] for stop in self._stops}
        self._longest = len(self._stops[0]) if self._stops else 0
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return the text before any stop string, and the stop string if there is one."""
        buffer = self._held + text
        match = self._find_earliest(buffer)
        if match is not None:
            start, stop = match
            self._held = ""
            return buffer[:start], stop
        cut = len(buffer) - self._count_held(buffer)
        self._held = buffer[cut:]
        return buffer[:cut], None

    def close(self) -> str:
        held, self._held = self._held, ""
        return held

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def _find_earliest(self, buffer: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _count_held(self, buffer: str) -> int:
        """Return how many characters at the end may still grow into a stop string."""
        first = max(0, len(buffer) - self._longest + 1)
        for start in range(first, len(buffer)):
            if buffer[start] in self._first_characters:
                tail = buffer[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return len(tail)
        return 0


class Detokenizer:
    """Reads the steps of one choice."""

    def __init__(
        self,
        pieces: Sequence[bytes] | None,
        hidden: frozenset[int] = frozenset(),
        stops: Sequence[str] = (),
        logprobs: bool = False,
    ) -> None:
        self._pieces = pieces
        self._hidden = hidden
        # without a tokenizer there is nothing to decode
        self._decoder = NO_DECODER if pieces is None else make_decoder("replace")
        self._stops = StopMatcher(stops) if any(stops) else None
        self._logprobs = logprobs
        self._decoded = 0  # characters
        self._released = 0  # characters
        self._pending: deque[tuple[Token, int, int]] = deque()  # token, first and last character

    @property
    def is_plain(self) -> bool:
        """Whether there are neither stop strings nor logprobs."""
        return self._stops is None and not self._logprobs

    def feed(self, step: Step) -> ReleasedText:
        return self._release(self._read_tokens(step) if self._logprobs else self.read(step))

    def read(self, step: Step) -> str:
        """Return the text of a step; ignores stop strings and logprobs."""
        return self._decode_ids(step.ids) if step.text is None else step.text

    # For a reader that keeps the logprobs itself

    @property
    def is_holding(self) -> bool:
        """Whether a tail is held back that may become a stop string, or a character."""
        has_partial_character = bool(self._decoder.getstate()[0])
        return has_partial_character or (self._stops is not None and self._stops.is_holding)

    def read_with_offsets(self, step: Step) -> tuple[int, str, int]:
        """Return the first character of a step's tokens, its text and the end of its tokens.

        A token that begins a character extends to its end, though the text does not yet.
        """
        text, start = self.read(step), self._decoded
        self._decoded = end = start + len(text)
        if step.text is None and self._decoder.getstate()[0]:
            end += 1
        return start, text, end

    def split_at_stop(self, text: str) -> tuple[str, str | None]:
        """Return the text before any stop string, and the stop string if there is one."""
        return (text, None) if self._stops is None else self._stops.feed(text)

    def release_held(self, text: str) -> str:
        """Return the held text and this text, where stop strings do not apply."""
        return text if self._stops is None else self._stops.close() + text

    def insert_text(self, text: str) -> str:
        """Insert text that has no tokens; the held text comes before it."""
        self._decoder.reset()
        self._decoded += len(text)
        return (self._stops.close() if self._stops else "") + text

    def close(self) -> ReleasedText:
        """Return what is still held back. Bytes of an incomplete character are dropped."""
        text = self._stops.close() if self._stops else ""
        tokens = tuple(token for token, _, _ in self._pending)
        self._pending.clear()
        return ReleasedText(text, tokens) if text or tokens else NO_TEXT

    def _decode_ids(self, ids: Sequence[int]) -> str:
        if len(ids) == 1:
            return self._decoder.decode(self.get_bytes(ids[0]))
        return self._decoder.decode(b"".join(map(self.get_bytes, ids)))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of whole tokens, without the hidden special tokens."""
        return b"".join(map(self.get_bytes, ids)).decode(errors="replace")

    def get_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; a hidden special token has none."""
        if token in self._hidden:
            return b""
        if self._pieces is None or not 0 <= token < len(self._pieces):
            raise EngineFailed("The engine returned a token that is not in the vocabulary.")
        return self._pieces[token]

    def _read_tokens(self, step: Step) -> str:
        """Read a step token by token, with the characters of each token."""
        if step.text is not None:
            for entry in step.logprobs:
                end = self._decoded + len(step.text)
                self._pending.append((self.make_token(entry), self._decoded, end))
            self._decoded += len(step.text)
            return step.text
        parts = []
        for token, entry in zip_longest(step.ids, step.logprobs[: len(step.ids)]):
            part = self._decoder.decode(self.get_bytes(token))
            start, self._decoded = self._decoded, self._decoded + len(part)
            is_partial = bool(self._decoder.getstate()[0])
            if entry is not None:
                self._pending.append((self.make_token(entry), start, self._decoded + is_partial))
            parts.append(part)
        return "".join(parts)

    def make_token(self, entry: Logprob) -> Token:
        """Make a token as clients get it; bytes that are not valid text are escaped."""
        data = entry.text.encode() if entry.text is not None else self.get_bytes(entry.id)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "".join(f"\\x{byte:02x}" for byte in data)
        top = tuple(self.make_token(other) for other in entry.top)
        return Token(text, data, _clamp_logprob(entry.logprob), top, entry.id)

    def _release(self, text: str) -> ReleasedText:
        if self._stops is None:
            if not self._logprobs:
                return ReleasedText(text) if text else NO_TEXT
            stop = None
        else:
            text, stop = self._stops.feed(text)
        self._released += len(text)
        if stop is None:
            return ReleasedText(text, self._take_tokens(self._released)) if text else NO_TEXT
        tokens = tuple(token for token, start, _ in self._pending if start < self._released)
        self._pending.clear()
        return ReleasedText(text, tokens, stop)

    def _take_tokens(self, end: int) -> tuple[Token, ...]:
        tokens = []
        while self._pending and self._pending[0][2] <= end:
            tokens.append(self._pending.popleft()[0])
        return tuple(tokens)
