"""Calls as Python writes them, and as templates that only mean to write Python do.

Several templates forget the commas between arguments, the quotes around strings, or to escape the
quotes inside them, and models imitate their template. Where the tool's parameters are known, the
name of the next one tells where a value ends.
"""

from __future__ import annotations

import re

from dragoman.output.arguments.call_body import next_char, read_object_list, marker_set, read_call_object
from dragoman.output.arguments.cast import cast
from dragoman.output.arguments.json_strings import STRING_BREAKS, escape, quote, read_escape
from dragoman.output.arguments.literal import Output, ValueReader
from dragoman.output.arguments.parameter_types import STRING
from dragoman.output.calls import CallRecorder
from dragoman.output.spec import GAP, JsonObjects, PythonCalls
from dragoman.output.text_buffer import (
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    skip_space,
    stream_until,
)

_NAME = re.compile(r"[^\W\d][\w.\-]*")
_KEY = re.compile(r"[^\W\d]\w*")
_SPACES = re.compile(r"\s{0,64}")
MAX_IDENTIFIER = 256
CALL_ENDS = (")]", "),", ")\n", ")<")


def read_python_calls(src: TextBuffer, body: PythonCalls, calls: CallRecorder) -> ReadSteps[None]:
    """Calls in brackets, or on lines of their own."""
    letter = yield from next_char(src)
    if letter == "{":
        yield from read_call_object(src, JsonObjects(requires_arguments=True), calls)
        return
    listing = letter == "["
    if body.brackets and not listing:
        raise Mismatch
    if listing:
        src.pos += 1
        letter = yield from next_char(src)
        if letter == "{":
            yield from read_object_list(src, JsonObjects(requires_arguments=True), calls)
            return
    while True:
        yield from read_python_call(src, calls)
        letter = yield from next_char(src)
        if letter in (",", ";"):
            src.pos += 1
            letter = yield from next_char(src)
        elif not listing and not (letter.isalpha() or letter == "_"):
            return
        if listing and letter == "]":
            src.pos += 1
            return


def read_python_call(src: TextBuffer, calls: CallRecorder) -> ReadSteps[None]:
    name = yield from read_identifier(src, _NAME)
    letter = yield from next_char(src)
    if letter != "(":
        raise Mismatch
    src.pos += 1
    calls.open_call(name)
    arguments = KeywordArguments(src, calls)
    calls.missing_end = arguments.missing_end
    yield from arguments.read()
    calls.close_call()


def read_identifier(src: TextBuffer, pattern: re.Pattern[str]) -> ReadSteps[str]:
    """A name, to its end."""
    yield from skip_space(src)
    start = ""  # what was there of it when the text ran out
    while True:
        text = start + src.text[src.pos : src.pos + MAX_IDENTIFIER + 1]
        found = pattern.match(text)
        size = 0 if found is None else found.end()
        if size > MAX_IDENTIFIER or (not size and text):
            raise Mismatch
        src.pos += size - len(start)
        if src.has_more:
            return text[:size]
        if src.ended:
            raise UnexpectedEnd
        start = text[:size]
        yield


class KeywordArguments:
    """The arguments of a call, from its opening to its closing bracket."""

    def __init__(self, src: TextBuffer, calls: CallRecorder) -> None:
        self._buffer = src
        self._calls = calls
        self._keys = tuple(calls.tools.parameter_types(calls.name))
        self._value: ValueReader | None = None
        self._in_string = False
        self._has_arguments = False
        self._lead = "{"

    def missing_end(self) -> str:
        inner = self._value.missing_end() if self._value is not None else ""
        return ('"' if self._in_string else inner) + "}"

    def _emit(self, text: str) -> None:
        lead, self._lead = self._lead, ""
        self._calls.write_arguments(lead + text)

    def read(self) -> ReadSteps[None]:
        src = self._buffer
        glued = ""
        while True:
            letter = yield from next_char(src)
            if letter == ")" and not glued:
                src.pos += 1
                self._emit("}")
                return
            if letter == "," and not glued:
                src.pos += 1
                continue
            key = glued or (yield from read_identifier(src, _KEY))
            letter = yield from next_char(src)
            if letter not in ("=", ":"):
                raise Mismatch
            src.pos += 1
            yield from skip_space(src)
            self._lead += f"{', ' if self._has_arguments else ''}{quote(key)}: "
            self._has_arguments = True
            glued = yield from self._read_argument(key)

    def _read_argument(self, key: str) -> ReadSteps[str]:
        """The value of an argument; the next key, if it is glued to the value's end."""
        src = self._buffer
        types = self._calls.parameter_types(key)
        letter = src.text[src.pos : src.pos + 1]
        if letter and letter in "\"'":
            src.pos += 1
            if types and "string" not in types:
                parts: list[str] = []
                try:
                    yield from self._read_string_body(letter, parts.append)
                except UnexpectedEnd:
                    self._in_string = True
                    self._emit('"' + "".join(parts))
                    raise
                self._emit(cast(_unescape("".join(parts)), types))
            else:
                self._in_string = True
                self._emit('"')
                yield from self._read_string_body(letter, self._emit)
                self._in_string = False
                self._emit('"')
            return ""
        if types == STRING and letter not in ("[", "{", "(", ""):
            self._emit((yield from self._read_unquoted_string()))
            return ""
        self._value = ValueReader(src, self._emit)
        self._value.keys = self._keys
        yield from self._value.read()
        glued, self._value = self._value.glued_key, None
        return glued

    def _read_unquoted_string(self) -> ReadSteps[str]:
        """A string without quotes, to the next argument or the call's end."""
        src = self._buffer
        parts: list[str] = []
        ends = marker_set(*(f",{GAP}{key}{GAP}=" for key in self._keys), *CALL_ENDS)
        try:
            yield from stream_until(src, ends, parts.append)
        except UnexpectedEnd:
            text = "".join(parts)
            if not src.text.endswith(")"):
                self._in_string = True
                self._emit('"' + escape(text.strip()))
                raise
            parts = [text[:-1]]
            src.pos -= 1
        said = "".join(parts).strip()
        return "null" if said in ("None", "null") else quote(said)

    def _read_string_body(self, quote: str, out: Output) -> ReadSteps[None]:
        """A string up to the quote that closes it: one that something can follow."""
        src = self._buffer
        while True:
            found = STRING_BREAKS[quote].search(src.text, src.pos)
            end = len(src.text) if found is None else found.start()
            if end > src.pos:
                out(src.text[src.pos : end])
                src.pos = end
            if found is None:
                if src.ended:
                    raise UnexpectedEnd
                yield
                continue
            letter = src.text[end]
            if letter == "\\":
                out((yield from read_escape(src)))
            elif letter != quote:
                src.pos += 1
                out(escape(letter))
            elif (yield from self._is_closing_quote()):
                src.pos += 1
                return
            else:
                src.pos += 1
                out(escape(quote))

    def _is_closing_quote(self) -> ReadSteps[bool]:
        """Whether what comes after the quote can follow a string."""
        src = self._buffer
        while True:
            found = _SPACES.match(src.text, src.pos + 1)
            assert found is not None  # noqa: S101
            rest = src.text[found.end() : found.end() + MAX_IDENTIFIER]
            if rest[:1] in (",", ")", "]", "}", ";") and rest:
                return True
            key = _KEY.match(rest)
            after = rest[key.end() :].lstrip() if key is not None else "?"
            if key is not None and after[:1] == "=":
                return not self._keys or key.group() in self._keys
            waits = len(rest) < MAX_IDENTIFIER and (not rest or not after)
            if src.ended or not waits:
                return src.ended and not rest
            yield


def _unescape(text: str) -> str:
    """The text of what is written as the inside of a JSON string."""
    import json

    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
