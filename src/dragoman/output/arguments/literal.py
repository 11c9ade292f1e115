"""Values as models write them, rewritten as JSON while they arrive.

One scanner reads JSON, Python's literals, and what lies between them: single quotes, `True` and
`None`, bare keys, commas too many or too few, tuples, and strings between markers of the model's own.
Valid JSON goes through as it is, char by char. Whatever comes, what was handed out is the
beginning of valid JSON: a key is held back until its value begins, so that closing what is open
(`Value.closing`) always completes it.

A value that cannot be one at all is `Refused`, but only before anything of it was handed out.
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
MAX_LEAD = 4096  # of white space and a key before a value, no more is repeated


class ValueReader:
    """Reads one value and hands it out as JSON."""

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
        quotes: MarkerSet | None = None,
        bare: bool = False,
        types: Mapping[str, Types] | None = None,
    ) -> None:
        self._buffer = buffer
        self._out = out
        self._string_markers = quotes
        self._unquoted = bare
        self._types = types
        self._pending = ""  # what comes before the next value, held back until there is one
        self._pending_braces = (
            ""  # braces whose kind is not known yet, with what stands between them
        )
        self._pending_depth = 0  # how many they are
        self._bare_key = ""  # a key without quotes
        self._current_key: str | None = None  # the key that a value is read for
        self.stack: list[str] = []
        self.keys: Sequence[str] = ()  # names that may be glued to the end of a bare word
        self.glued_key = ""  # the one that was
        self.end_markers: MarkerSet | None = None  # what ends the value, however much of it is open
        self.cast: Callable[[str, Types], str] = (
            _cast_by_spelling  # makes of a word what the types say
        )
        self.casts_strings = False  # whether the schema types strings too
        self.must_be_object = False  # whether it must be an object
        self.colon_optional = False  # whether a key needs no colon

    def missing_end(self) -> str:
        """What completes the value as it stands."""
        return "".join(reversed(self.stack[: len(self.stack) - self._pending_depth]))

    def held_text(self) -> str:
        """What was read and not handed out yet."""
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
                if "," not in self._pending:  # one that was left out
                    self._pending = "," + (self._pending or " ")
                yield from self._read_value()

    # what stands between values

    def _next_char(self) -> ReadSteps[str]:
        """The next char that is no white space; the space goes with what comes before it."""
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
                found = _SPACES.match(buffer.text, buffer.pos)
                assert found is not None  # noqa: S101
                buffer.pos = found.end()
                self._pending += found.group()[: max(0, MAX_LEAD - len(self._pending))]
                continue
            if buffer.ended:
                raise UnexpectedEnd
            yield

    def _emit(self, text: str) -> None:
        """Hand out the beginning of a value, and all that was held back for it."""
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
        self._current_key = None  # the key's type is not the type of what is in it
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
        """A key and its value; or, of what Python calls a set, one element."""
        if self.stack[-1] != "}":
            yield from self._read_value()
            return
        fresh = bool(self._pending_braces)
        lead = self._pending
        if not fresh and "," not in lead:
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
        elif char in ",}" and fresh and not (self.must_be_object and len(self.stack) == 1):
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
            start, end, number = self._string_markers.match(buffer)
            while number < 0 <= start and not buffer.ended:
                yield
                start, end, number = self._string_markers.match(buffer)
            if number >= 0:
                buffer.pos = end
                parts = ['"']
                yield from self._read_until_marker(number, parts.append)
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
        """The inside of a string up to its quote, as JSON writes it."""
        buffer = self._buffer
        search = STRING_BREAKS[quote].search
        while True:
            text, at = buffer.text, buffer.pos
            found = search(text, at)
            if found is None:
                if at < len(text):
                    buffer.pos = len(text)
                    out(text[at:] if at else text)
                if buffer.ended:
                    raise UnexpectedEnd
                yield
                continue
            end = found.start()
            char = text[end]
            if char == quote:
                buffer.pos = end + 1
                if end > at:
                    out(text[at:end])
                return
            if char != "\\":
                buffer.pos = end + 1
                out(text[at:end] + escape(char))
                continue
            buffer.pos = end
            if end > at:
                out(text[at:end])
            out((yield from read_escape(buffer)))

    def _read_marked_string(self) -> ReadSteps[bool]:
        """A string between markers of the model's own; nothing in it is escaped."""
        buffer, quotes = self._buffer, self._string_markers
        assert quotes is not None  # noqa: S101
        while True:
            start, end, number = quotes.match(buffer)
            if number >= 0:
                break
            if start < 0 or buffer.ended:
                return False
            yield
        buffer.pos = end
        types = self._expected_types() if self.casts_strings else None
        if types and types != STRING:
            parts: list[str] = []
            try:
                yield from self._read_until_marker(number, parts.append, plain=True)
            except UnexpectedEnd:
                self._emit('"' + escape("".join(parts)))
                self.stack.append('"')
                raise
            self._emit(self.cast("".join(parts), types))
            return True
        self._emit('"')
        self.stack.append('"')
        yield from self._read_until_marker(number, self._out)
        self.stack.pop()
        self._out('"')
        return True

    def _expected_types(self) -> Types | None:
        """What the schema says of the value that is read."""
        if self._types is None or self._current_key is None:
            return None
        return self._types.get(json.loads(self._current_key))

    def _read_until_marker(self, number: int, out: Output, plain: bool = False) -> ReadSteps[None]:
        write = str if plain else escape
        buffer, quotes = self._buffer, self._string_markers
        assert quotes is not None  # noqa: S101
        while True:
            start, end, found = quotes.search(buffer)
            piece, buffer.pos = buffer.text[buffer.pos : start], start
            if piece:
                out(write(piece))
            if found >= 0:
                buffer.pos = end
                return
            if buffer.ended:
                piece, buffer.pos = buffer.text[buffer.pos :], len(buffer.text)
                if piece:
                    out(write(piece))
                raise UnexpectedEnd
            yield

    def _read_word(self, pattern: re.Pattern[str]) -> ReadSteps[str]:
        buffer = self._buffer
        parts: list[str] = []
        while True:
            found = pattern.match(buffer.text, buffer.pos)
            if found is not None:
                parts.append(found.group())
                buffer.pos = found.end()
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
                self._buffer.pos += 1  # a char that means nothing here
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
