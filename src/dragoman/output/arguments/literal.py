"""Rewrites values as JSON while they arrive.

One scanner reads JSON, Python literals, and mixtures: single quotes, `True` and `None`, bare keys,
extra or missing commas, tuples, and strings between the format's own markers. Valid JSON stays
unchanged. Whatever arrives, the emitted text is a prefix of valid JSON: a key is held back until
its value starts, so appending `ValueReader.missing_end` always completes it.

Text that cannot be a value raises `Mismatch`, but only before any of it is emitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from dragoman.output.arguments.json_strings import (
    STRING_BREAKS,
    escape,
    quote,
    read_escape,
    word_to_json,
)
from dragoman.output.arguments.parameter_types import STRING, Types
from dragoman.output.text_buffer import (
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    is_at_marker,
)

Output = Callable[[str], object]

_SPACES = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,:=\[\]{}()\"']+")
_UNQUOTED = re.compile(r"[^,\]}]+")
MAX_DEPTH = 128
MAX_LEAD = 4096  # characters of white space and key held back before a value


class ValueReader:
    """Reads one value and emits it as JSON."""

    __slots__ = (
        "_bare_key",
        "_buffer",
        "_current_key",
        "_out",
        "_pending",
        "_pending_braces",
        "_pending_depth",
        "_string_markers",
        "_types",
        "_unquoted",
        "cast",
        "casts_strings",
        "colon_optional",
        "end_markers",
        "glued_key",
        "keys",
        "must_be_object",
        "stack",
    )

    def __init__(
        self,
        buffer: TextBuffer,
        out: Output,
        string_markers: MarkerSet | None = None,
        unquoted: bool = False,
        types: Mapping[str, Types] | None = None,
    ) -> None:
        self._buffer = buffer
        self._out = out
        self._string_markers = string_markers
        self._unquoted = unquoted
        self._types = types
        self._pending = ""  # the text before the next value, held back until the value starts
        # braces that may open an object or a set, with the text between them
        self._pending_braces = ""
        self._pending_depth = 0  # how many such braces there are
        self._bare_key = ""  # a key without quotes
        self._current_key: str | None = None  # the key of the value being read
        self.stack: list[str] = []  # the characters that close what is open
        self.keys: Sequence[str] = ()  # names that may follow a bare word without a separator
        self.glued_key = ""  # the name that did
        self.end_markers: MarkerSet | None = None  # markers that end the value, whatever is open
        # converts a word to one of the types
        self.cast: Callable[[str, Types], str] = _cast_by_spelling
        self.casts_strings = False  # whether the schema also converts strings
        self.must_be_object = False  # whether the value must be an object
        self.colon_optional = False  # whether the colon after a key may be missing

    def missing_end(self) -> str:
        """Return the text that completes the value emitted so far."""
        return "".join(reversed(self.stack[: len(self.stack) - self._pending_depth]))

    def held_text(self) -> str:
        """Return the text that was read but not emitted yet."""
        return self._pending_braces + self._pending

    def read(self) -> ReadSteps[None]:
        """Read the value to its end."""
        yield from self._read_value()
        while self.stack:
            char = yield from self._next_char()
            if char in "}])":
                self._close_container()
            elif char in ",;":
                self._buffer.pos += 1
                self._pending = ","
            elif self.stack[-1] == "}":
                yield from self._read_member()
            else:
                if "," not in self._pending:  # the comma is missing
                    self._pending = "," + (self._pending or " ")
                yield from self._read_value()

    # between values

    def _next_char(self) -> ReadSteps[str]:
        """Return the next character that is not white space; hold the white space back."""
        buffer = self._buffer
        while True:
            if buffer.pos < len(buffer.text):
                char = buffer.text[buffer.pos]
                if char not in " \t\r\n":
                    ends = self.end_markers
                    if (
                        ends is not None
                        and char in ends.first_chars
                        and (yield from is_at_marker(buffer, ends))
                    ):
                        raise Mismatch
                    return char
                match = _SPACES.match(buffer.text, buffer.pos)
                assert match is not None  # noqa: S101
                buffer.pos = match.end()
                self._pending += match.group()[: max(0, MAX_LEAD - len(self._pending))]
                continue
            if buffer.ended:
                raise UnexpectedEnd
            yield

    def _emit(self, text: str) -> None:
        """Emit the start of a value, preceded by everything held back for it."""
        lead, self._pending = self._pending_braces + self._pending, ""
        self._pending_braces, self._pending_depth = "", 0
        self._out(lead + text)

    def _close_container(self) -> None:
        self._buffer.pos += 1
        closer = self.stack.pop()
        if "," in self._pending:
            self._pending = ""
        self._emit(closer)

    # values

    def _read_value(self) -> ReadSteps[None]:
        buffer = self._buffer
        char = yield from self._next_char()
        if char in "\"'":
            buffer.pos += 1
            yield from self._read_string(char)
        elif char in "{[(":
            if len(self.stack) >= MAX_DEPTH:
                raise Mismatch
            buffer.pos += 1
            yield from self._read_container(char)
        elif self._string_markers is not None and (yield from self._read_marked_string()):
            return
        else:
            yield from self._read_bare_word()

    def _read_container(self, char: str) -> ReadSteps[None]:
        self._current_key = None  # the key's types do not apply to the container's members
        if char != "{":
            self._emit("[")
            self.stack.append("]")
            following = yield from self._next_char()
            if following not in "}])":
                yield from self._read_value()
            return
        self._pending, self._pending_braces = "", self._pending_braces + self._pending + "{"
        self._pending_depth += 1
        self.stack.append("}")
        following = yield from self._next_char()
        if following not in "}])":
            yield from self._read_member()

    def _read_member(self) -> ReadSteps[None]:
        """Read a key and its value, or one element of a Python set."""
        if self.stack[-1] != "}":
            yield from self._read_value()
            return
        is_first = bool(self._pending_braces)
        lead = self._pending
        if not is_first and "," not in lead:
            lead = "," + (lead or " ")
        self._pending = self._bare_key = ""
        key = yield from self._read_key()
        char = yield from self._next_char()
        if char in ":=" or (self.colon_optional and char not in ",}"):
            self._buffer.pos += char in ":="
            self._pending = f"{lead}{key}:"
            self._current_key = key if len(self.stack) == 1 else None
            yield from self._read_value()
            self._current_key = None
        elif char in ",}" and is_first and not (self.must_be_object and len(self.stack) == 1):
            self.stack[-1] = "]"
            self._pending_braces = self._pending_braces[:-1] + "["
            self._pending = lead
            self._emit(word_to_json(self._bare_key) if self._bare_key else key)
        else:
            raise Mismatch

    def _read_key(self) -> ReadSteps[str]:
        buffer = self._buffer
        char = buffer.text[buffer.pos]
        if char in "\"'":
            buffer.pos += 1
            parts: list[str] = ['"']
            yield from self._read_string_body(char, parts.append)
            return "".join([*parts, '"'])
        if self._string_markers is not None:
            start, end, index = self._string_markers.match(buffer)
            while index < 0 <= start and not buffer.ended:
                yield
                start, end, index = self._string_markers.match(buffer)
            if index >= 0:
                buffer.pos = end
                parts = ['"']
                yield from self._read_until_marker(parts.append)
                return "".join([*parts, '"'])
        self._bare_key = yield from self._read_word(_WORD)
        if not self._bare_key:
            raise Mismatch
        return quote(self._bare_key)

    def _read_string(self, quote: str) -> ReadSteps[None]:
        self._emit('"')
        self.stack.append('"')
        yield from self._read_string_body(quote, self._out)
        self.stack.pop()
        self._out('"')

    def _read_string_body(self, quote: str, out: Output) -> ReadSteps[None]:
        """Read a string up to its closing quote and emit it as JSON."""
        buffer = self._buffer
        search = STRING_BREAKS[quote].search
        while True:
            text, pos = buffer.text, buffer.pos
            match = search(text, pos)
            if match is None:
                if pos < len(text):
                    buffer.pos = len(text)
                    out(text[pos:] if pos else text)
                if buffer.ended:
                    raise UnexpectedEnd
                yield
                continue
            end = match.start()
            char = text[end]
            if char == quote:
                buffer.pos = end + 1
                if end > pos:
                    out(text[pos:end])
                return
            if char != "\\":
                buffer.pos = end + 1
                out(text[pos:end] + escape(char))
                continue
            buffer.pos = end
            if end > pos:
                out(text[pos:end])
            out((yield from read_escape(buffer)))

    def _read_marked_string(self) -> ReadSteps[bool]:
        """Read a string between the format's own markers; it contains no escapes."""
        buffer, markers = self._buffer, self._string_markers
        assert markers is not None  # noqa: S101
        while True:
            start, end, index = markers.match(buffer)
            if index >= 0:
                break
            if start < 0 or buffer.ended:
                return False
            yield
        buffer.pos = end
        types = self._expected_types() if self.casts_strings else None
        if types and types != STRING:
            parts: list[str] = []
            try:
                yield from self._read_until_marker(parts.append, plain=True)
            except UnexpectedEnd:
                self._emit('"' + escape("".join(parts)))
                self.stack.append('"')
                raise
            self._emit(self.cast("".join(parts), types))
            return True
        self._emit('"')
        self.stack.append('"')
        yield from self._read_until_marker(self._out)
        self.stack.pop()
        self._out('"')
        return True

    def _expected_types(self) -> Types | None:
        """Return the types that the schema allows for the current value."""
        if self._types is None or self._current_key is None:
            return None
        return self._types.get(json.loads(self._current_key))

    def _read_until_marker(self, out: Output, plain: bool = False) -> ReadSteps[None]:
        """Read a string up to its closing marker and emit it, escaped for JSON unless `plain`."""
        convert = str if plain else escape
        buffer, markers = self._buffer, self._string_markers
        assert markers is not None  # noqa: S101
        while True:
            start, end, index = markers.search(buffer)
            piece, buffer.pos = buffer.text[buffer.pos : start], start
            if piece:
                out(convert(piece))
            if index >= 0:
                buffer.pos = end
                return
            if buffer.ended:
                piece, buffer.pos = buffer.text[buffer.pos :], len(buffer.text)
                if piece:
                    out(convert(piece))
                raise UnexpectedEnd
            yield

    def _read_word(self, pattern: re.Pattern[str]) -> ReadSteps[str]:
        buffer = self._buffer
        parts: list[str] = []
        while True:
            match = pattern.match(buffer.text, buffer.pos)
            if match is not None:
                parts.append(match.group())
                buffer.pos = match.end()
            if buffer.has_more:
                return "".join(parts)
            if buffer.ended:
                if not parts:
                    raise UnexpectedEnd
                return "".join(parts)
            yield

    def _read_bare_word(self) -> ReadSteps[None]:
        word = yield from self._read_word(_UNQUOTED if self._unquoted else _WORD)
        if not word.strip():
            if not self.stack and not self._pending_braces:
                raise Mismatch
            if not self._buffer.has_more:
                raise UnexpectedEnd
            if self._buffer.text[self._buffer.pos] not in "}]),":
                self._buffer.pos += 1  # a character without meaning here
            self._emit("null")
            return
        word = word.strip()
        if (
            self.keys
            and not self.stack
            and self._buffer.text[self._buffer.pos : self._buffer.pos + 1] == "="
        ):
            self.glued_key = next(
                (key for key in self.keys if word.endswith(key) and word != key), ""
            )
            word = word.removesuffix(self.glued_key)
        self._emit(self._cast_word(word))

    def _cast_word(self, word: str) -> str:
        types = self._expected_types()
        if types:
            return self.cast(word, types)
        return word_to_json(word)


def _cast_by_spelling(word: str, _types: Types) -> str:
    return word_to_json(word)
