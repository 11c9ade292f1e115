"""Rewrites values as JSON while they arrive.

One scanner reads JSON, Python literals, and mixtures: single quotes, `True`, bare keys, missing
commas, tuples, strings between the format's markers. Valid JSON stays unchanged. The emitted text
and `ValueReader.get_missing_end` are valid JSON, since a key is held back until its value starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.output.arguments.damage import (
    CLOSERS,
    COLONS,
    COMMAS,
    LIST_END,
    MEMBER,
    ElementText,
    StringReader,
    choose_reader,
    find_next_key,
    is_at_key,
    is_before,
    is_before_other,
    read_more_string,
    skip_doubled_closing,
    skip_other_quote,
)
from dragoman.output.arguments.end_markers import (
    CLOSING_QUOTES,
    ends_string,
    is_plain_object,
)
from dragoman.output.arguments.json_strings import escape, quote, word_to_json
from dragoman.output.arguments.schemas.argument_types import ANY_ARGUMENTS, ArgumentTypes
from dragoman.output.arguments.schemas.parameter_types import STRING
from dragoman.output.arguments.strings import Output, read_quoted, read_until_marker
from dragoman.output.arguments.values.state import ValueState
from dragoman.output.arguments.values.words import (
    QUOTED_KEY,
    read_bare_key,
    read_bare_word,
    read_plain_key,
    read_plain_word,
    read_unquoted,
    strip_quotes,
)
from dragoman.output.text_buffer import (
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    peek_char,
    read_marker,
)

MAX_DEPTH = 128  # containers in containers


class ValueReader(ValueState):
    """Reads one value and emits it as JSON."""

    __slots__ = (
        "_bare_key",
        "_set_depths",
        "_unquoted",
        "colon_optional",
        "glued_key",
        "keys",
        "must_be_object",
    )

    def __init__(
        self,
        buffer: TextBuffer,
        out: Output,
        string_markers: MarkerSet | None = None,
        unquoted: bool = False,
        types: ArgumentTypes = ANY_ARGUMENTS,
    ) -> None:
        super().__init__(buffer, out, string_markers, types)
        self._unquoted = unquoted
        self._bare_key = ""  # a key without quotes
        self._set_depths: set[int] = set()  # depths of sets of Python, which braces close
        self.keys: Sequence[str] = ()  # names that may follow a bare word without a separator
        self.glued_key = ""  # the name that did
        self.must_be_object = self.colon_optional = False  # the colon after a key

    def read(self) -> ReadSteps[None]:
        """Read the value to its end."""
        buffer = self._buffer
        yield from self._read_value()
        while self.stack:
            while buffer.pos == len(buffer.text) and not buffer.has_ended:
                yield  # here, since most tokens end here: a reader of its own takes longer
            char = self.peek_plain() or (yield from self.next_char())
            if char in "}])":
                yield from self._close_container(char)
            elif char in COMMAS:
                buffer.pos += 1
                self._pending = ","
            elif self.stack[-1] == "}":
                yield from self._read_member()
            else:
                if "," not in self._pending:  # the comma is missing
                    self._pending = "," + (self._pending or " ")
                yield from self._read_element(char)

    def _close_container(self, char: str) -> ReadSteps[None]:
        """Close what a bracket closes. A bracket that closes nothing is skipped."""
        self._buffer.pos += 1
        depth = len(self.stack)
        closer = "}" if char == "}" and depth not in self._set_depths else "]"
        if "," in self._pending or closer not in self.stack:
            self._pending = ""
        if closer not in self.stack:
            return
        if closer != self.stack[-1]:
            if (yield from is_before(self._buffer, MEMBER)):
                closer = self.stack[-1]  # the wrong bracket: the object goes on
            elif self.stack.count("]") == 1 and (yield from is_before(self._buffer, LIST_END)):
                return  # the list ends after it: the bracket is doubled
        elif depth == 1 and self.types.is_parameter((yield from find_next_key(self._buffer))):
            self._pending = ""  # the bracket is doubled: the object goes on
            return
        self._set_depths.discard(depth)
        self._plain_lists.discard(depth)
        while self.stack[-1] != closer:
            self._emit(self.stack.pop())
        self._emit(self.stack.pop())

    # values

    def _read_value(self) -> ReadSteps[None]:
        buffer = self._buffer
        char = self.peek_plain() or (yield from self.next_char())
        if char in "\"'":
            buffer.pos += 1
            yield from self._read_string(char)
        elif char in "{[(":
            if len(self.stack) >= MAX_DEPTH:
                raise Mismatch
            buffer.pos += 1
            yield from self._read_container(char)
        elif (
            self._string_markers is not None
            and char in self._string_markers.first_chars
            and (yield from self._read_marked_string())
        ):
            return
        elif word := (yield from read_plain_word(buffer)):
            self._emit_word(word)
        elif not self._unquoted and (text := (yield from read_unquoted(buffer))):
            self._emit(text)
        else:
            yield from self._read_bare_word()

    def _read_container(self, char: str) -> ReadSteps[None]:
        self._current_key = None  # the key's types do not apply to the container's members
        if char != "{":
            self._emit("[")
            self.stack.append("]")
            following = self.peek_plain() or (yield from self.next_char())
            if following not in "}])":
                yield from self._read_element(following)
            return
        self._pending, self._pending_braces = "", self._pending_braces + self._pending + "{"
        self._pending_depth += 1
        self.stack.append("}")
        following = self.peek_plain() or (yield from self.next_char())
        if following in "{,":  # no key starts with it: the brace is doubled, or a key is missing
            self._buffer.pos += 1
            following = self.peek_plain() or (yield from self.next_char())
        if following not in "}])":
            yield from self._read_member()

    def _read_element(self, char: str) -> ReadSteps[None]:
        """Read an element of a list. A key shows that the list was not closed before it."""
        if char not in "{[(" or (
            yield from is_plain_object(self._buffer, self.ends, self.types.tools)
        ):
            self._plain_lists.add(len(self.stack))
        if char not in "\"'" or self.stack[-2:] != ["}", "]"]:
            yield from self._read_value()
            return
        self._buffer.pos += 1
        while self._buffer.pos == len(self._buffer.text) and not self._buffer.has_ended:
            yield
        read: StringReader = read_quoted
        if not is_before_other(self._buffer, char):
            read = yield from choose_reader(self._buffer, char)
        element = ElementText(self._start_string, self._out)
        try:
            yield from read(self._buffer, self.ends, char, element.add)
        except (UnexpectedEnd, Mismatch):
            element.flush()  # without text it is left out
            raise
        if element.is_flushed:
            self.stack.pop()
            self._out('"')
            return
        lead, self._pending = self._pending, ""
        try:
            if not is_before_other(self._buffer, char):
                yield from skip_doubled_closing(self._buffer, char)
            following = self.peek_plain() or (yield from self.next_char())
        except (UnexpectedEnd, Mismatch):
            self._pending = lead
            self._emit(element.quoted)
            raise
        if following != ":":
            space, self._pending = self._pending, lead
            self._emit(element.quoted)
            self._pending = space
            return
        self.stack.pop()
        self._pending = ""
        self._emit("]")
        self._buffer.pos += 1
        self._pending = f", {element.quoted}:"
        self._current_key = element.quoted if len(self.stack) == 1 else None
        yield from self._read_value()
        self._current_key = None

    def _start_string(self) -> None:
        self.stack.append('"')
        self._emit('"')

    def _read_member(self) -> ReadSteps[None]:
        """Read a key and its value, or one element of a Python set."""
        buffer, is_first = self._buffer, bool(self._pending_braces)
        lead = self._pending.replace(",", "") if is_first else self._pending
        if not is_first and "," not in lead:
            lead = "," + (lead or " ")
        self._pending = self._bare_key = ""
        key = yield from self._read_key()
        char = self.peek_plain() or (yield from self.next_char())
        is_colon = char in COLONS
        may_lack_colon = not is_colon and (self.colon_optional or not is_first)
        may_lack_colon &= not (self._bare_key and char.isalnum())  # which are only words
        if may_lack_colon and char in "\"'" and (yield from is_at_key(buffer)):
            return  # a key without a value is left out
        if is_colon or (may_lack_colon and char not in ",}"):
            buffer.pos += is_colon
            self._pending = f"{lead}{key}:"
            following = ""
            if is_colon:
                while buffer.pos == len(buffer.text) and not buffer.has_ended:
                    yield
                following = self.peek_plain() or (yield from self.next_char())
            if following == char or char + following == "=>":
                buffer.pos += 1  # it is doubled, or an arrow
                following = self.peek_plain() or (yield from self.next_char())
            if following and following in ",}])":
                self._pending = ""  # a key without a value is left out
                return
            self._current_key = key if len(self.stack) == 1 else None
            yield from self._read_value()
            self._current_key = None
        elif char in ",}" and is_first and not (self.must_be_object and len(self.stack) == 1):
            self.stack[-1] = "]"
            self._set_depths.add(len(self.stack))
            self._plain_lists.add(len(self.stack))
            self._pending_braces = self._pending_braces[:-1] + "["
            self._pending = lead
            self._emit(word_to_json(self._bare_key) if self._bare_key else key)
        else:
            raise Mismatch

    def _read_key(self) -> ReadSteps[str]:
        buffer = self._buffer
        char, markers = buffer.text[buffer.pos], self._string_markers
        parts: list[str] = []
        if char == '"' or (
            char == "'" and not (self.must_be_object and (yield from skip_other_quote(buffer)))
        ):
            buffer.pos += 1
            if key := (yield from read_plain_key(buffer, QUOTED_KEY[char])):
                parts.append(key)
            else:
                read = yield from choose_reader(buffer, char)
                yield from read(buffer, self.ends, char, parts.append)
            if not is_before_other(buffer, char):
                yield from skip_doubled_closing(buffer, char)
        elif (
            markers is not None
            and char in markers.first_chars
            and (yield from read_marker(buffer, markers)) >= 0
        ):
            yield from read_until_marker(buffer, self.ends, markers, parts.append)
        else:
            self._bare_key = yield from read_bare_key(buffer, self.ends)
            return quote(self._bare_key)
        return f'"{"".join(parts)}"'

    def _read_string(self, quote: str) -> ReadSteps[None]:
        buffer = self._buffer
        while buffer.pos == len(buffer.text) and not buffer.has_ended:
            yield
        read: StringReader = read_quoted
        if not is_before_other(buffer, quote):
            read = yield from choose_reader(buffer, quote)
        if (yield from peek_char(buffer)) in self.ends.string_chars and (
            yield from ends_string(buffer, self.ends, CLOSING_QUOTES[quote])
        ):
            raise Mismatch  # a key without a value is left out
        self._start_string()
        yield from read(buffer, self.ends, quote, self._out)
        if read is read_quoted and buffer.text[buffer.pos : buffer.pos + 1] not in CLOSERS:
            yield from read_more_string(buffer, self.ends, quote, self._out)
        self.stack.pop()
        self._out('"')
        if not is_before_other(buffer, quote):
            yield from skip_doubled_closing(buffer, quote)

    def _read_marked_string(self) -> ReadSteps[bool]:
        """Read a string between the format's own markers; it contains no escapes."""
        buffer, markers = self._buffer, self._string_markers
        assert markers is not None  # noqa: S101
        if (yield from read_marker(buffer, markers)) < 0:
            return False
        types = self.types.get_expected(self._get_key()) if self.types.casts_strings else None
        if types and types != STRING:
            parts: list[str] = []
            try:
                yield from read_until_marker(buffer, self.ends, markers, parts.append, str)
            except UnexpectedEnd:
                self._emit('"' + escape("".join(parts)))
                self.stack.append('"')
                raise
            self._emit(self.types.cast("".join(parts), types))
            return True
        self._start_string()
        yield from read_until_marker(buffer, self.ends, markers, self._out)
        self.stack.pop()
        self._out('"')
        return True

    def _read_bare_word(self) -> ReadSteps[None]:
        pattern = self.ends.unquoted if self._unquoted else self.ends.word
        text = yield from read_bare_word(self._buffer, self.ends, pattern)
        word = strip_quotes(text, self._string_markers)
        if not word:
            if (self.stack or self._pending_braces) and not self._buffer.has_more:
                raise UnexpectedEnd
            raise Mismatch  # a character without meaning here
        following = self._buffer.text[self._buffer.pos : self._buffer.pos + 1]
        if following and following in "\"'(":
            raise Mismatch  # no value of JSON: `b"..."`, `f(1)`
        if self.keys and not self.stack and following == "=":
            glued = (key for key in self.keys if word.endswith(key) and word != key)
            self.glued_key = next(glued, "")
            word = word.removesuffix(self.glued_key)
        self._emit_word(word)

    def _emit_word(self, word: str) -> None:
        types = self.types.get_expected(self._get_key()) if self.types.casts_words else None
        self._emit(self.types.cast(word, types) if types else word_to_json(word))
