"""Tokens to text: the part of an answer that is alike for every engine, format and dialect.

One `Detokenizer` reads one choice. It turns ids into text without ever cutting a character, cuts
the text at the first stop string, and keeps each token's logprob beside the text it stands for.

Text is released as soon as it can no longer change: a tail is held back only while it may still
become a stop string, or while a character's bytes are not complete. Which stop string wins must not
depend on how the text was cut into steps, so it is the one that is complete first, and of those
that end together the longest. Every step costs its own length, never that of the answer so far.
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


class ReleasedText(Struct, frozen=True, gc=False):
    """Text that is final, and the tokens it is made of."""

    text: str
    tokens: tuple[Token, ...] = ()
    stop: str | None = None  # the stop string that was met right after this text


NO_TEXT = ReleasedText("")


MIN_LOGPROB = -9999.0  # the wire's number for a token that could not have been picked


def _clamp_logprob(logprob: float | None) -> float | None:
    if logprob is None or math.isfinite(logprob):
        return logprob
    if logprob == -math.inf:
        return MIN_LOGPROB
    raise EngineFailed("The engine gave a probability that is not a number.")


class StopMatcher:
    """Finds the first complete stop string in a text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._first_characters = {stop[0] for stop in self._stops}
        self._longest = len(self._stops[0]) if self._stops else 0
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that is free of stops, and the stop that ended it if one did."""
        buffer = self._held + text
        found = self._find_earliest(buffer)
        if found is not None:
            start, stop = found
            self._held = ""
            return buffer[:start], stop
        keep = self._count_held(buffer)
        cut = len(buffer) - keep
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
        """How many characters at the end may still grow into a stop."""
        start = max(0, len(buffer) - self._longest + 1)
        for at in range(start, len(buffer)):
            if buffer[at] in self._first_characters:
                tail = buffer[at:]
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
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopMatcher(stops) if any(stops) else None
        self._logprobs = logprobs
        self._decoded = 0  # characters decoded
        self._released = 0  # characters released
        self._pending: deque[tuple[Token, int, int]] = deque()  # token, first and last character

    @property
    def is_plain(self) -> bool:
        """Whether text is all there is to it: no stops, no logprobs."""
        return self._stops is None and not self._logprobs

    def feed(self, step: Step) -> ReleasedText:
        return self._release(self._read_tokens(step) if self._logprobs else self.read(step))

    def read(self, step: Step) -> str:
        """The text of a step alone, for a reader that is `plain`."""
        return self._decode_ids(step.ids) if step.text is None else step.text

    # For a reader that keeps the logprobs itself

    @property
    def has_stops(self) -> bool:
        """Whether there are stop strings."""
        return self._stops is not None

    @property
    def is_holding(self) -> bool:
        """Whether a tail is held back that may become a stop string, or a character."""
        return bool(self._decoder.getstate()[0]) or (
            self._stops is not None and self._stops.is_holding
        )

    def read_with_offsets(self, step: Step) -> tuple[int, str, int]:
        """The text of a step, and from where to where its tokens reach.

        A token that begins a character reaches to the end of it, though the text does not yet.
        """
        text, start = self.read(step), self._decoded
        self._decoded = end = start + len(text)
        if step.text is None and self._decoder.getstate()[0]:
            end += 1
        return start, text, end

    def split_at_stop(self, text: str) -> tuple[str, str | None]:
        """The text that is free of stops, and the stop that ended it if one did."""
        return (text, None) if self._stops is None else self._stops.feed(text)

    def release_held(self, text: str) -> str:
        """The text where stops mean nothing, after what was held back."""
        return text if self._stops is None else self._stops.close() + text

    def insert_text(self, text: str) -> str:
        """Go on after a text that no token stands for; what was held back comes before it."""
        self._decoder.reset()
        self._decoded += len(text)
        return (self._stops.close() if self._stops else "") + text

    def close(self) -> ReleasedText:
        """What was still held back. Bytes of a character that never became whole are dropped."""
        text = self._stops.close() if self._stops else ""
        tokens = tuple(token for token, _, _ in self._pending)
        self._pending.clear()
        return ReleasedText(text, tokens) if text or tokens else NO_TEXT

    def _decode_ids(self, ids: Sequence[int]) -> str:
        if len(ids) == 1:
            return self._decoder.decode(self.get_bytes(ids[0]))
        return self._decoder.decode(b"".join(map(self.get_bytes, ids)))

    def decode(self, ids: Sequence[int]) -> str:
        """A run of tokens as text, control tokens left out."""
        return b"".join(map(self.get_bytes, ids)).decode(errors="replace")

    def get_bytes(self, token: int) -> bytes:
        """The bytes of a token; a control token has none."""
        if token in self._hidden:
            return b""
        if self._pieces is None or not 0 <= token < len(self._pieces):
            raise EngineFailed("The engine gave a token that is not in the model's vocabulary.")
        return self._pieces[token]

    def _read_tokens(self, step: Step) -> str:
        """As `_read`, one token at a time, noting which characters each stands for."""
        if step.text is not None:
            for entry in step.logprobs:
                self._add_token(
                    self.make_token(entry), self._decoded, self._decoded + len(step.text)
                )
            self._decoded += len(step.text)
            return step.text
        parts = []
        for token, entry in zip_longest(step.ids, step.logprobs[: len(step.ids)]):
            part = self._decoder.decode(self.get_bytes(token))
            start, self._decoded = self._decoded, self._decoded + len(part)
            unfinished = bool(self._decoder.getstate()[0])
            if entry is not None:
                self._add_token(self.make_token(entry), start, self._decoded + unfinished)
            parts.append(part)
        return "".join(parts)

    def _add_token(self, token: Token, start: int, end: int) -> None:
        self._pending.append((token, start, end))

    def make_token(self, entry: Logprob) -> Token:
        """A token as a client sees it; bytes that are no text by themselves are shown escaped."""
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

    def _take_tokens(self, upto: int) -> tuple[Token, ...]:
        taken = []
        while self._pending and self._pending[0][2] <= upto:
            taken.append(self._pending.popleft()[0])
        return tuple(taken)
