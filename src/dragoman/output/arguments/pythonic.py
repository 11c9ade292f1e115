"""Calls in Python syntax, and in the near-Python that some templates write.

Several templates omit the commas between arguments or the quotes around strings, or do not escape
quotes inside strings, and models imitate their template. Where the tool's parameters are known, the
name of the next parameter shows where a value ends.
"""

from __future__ import annotations

import json
import re

from dragoman.output.arguments.call_body import (
    get_markers,
    next_char,
    read_call_object,
    read_object_list,
)
from dragoman.output.arguments.cast import cast
from dragoman.output.arguments.damage import (
    ODD_SPACES,
    choose_reader,
    read_triple_quoted,
    skip_odd_space,
)
from dragoman.output.arguments.end_markers import CLOSING_QUOTES, ends_string, is_at_end
from dragoman.output.arguments.json_strings import escape, quote, read_escape
from dragoman.output.arguments.schemas.parameter_types import STRING
from dragoman.output.arguments.strings import Output
from dragoman.output.arguments.values.reader import ValueReader
from dragoman.output.arguments.values.words import strip_quotes
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
_CALL_START = re.compile(r"([^\W\d][\w.\-]{0,256})\s{0,16}(\()?")
_SPACES = re.compile(r"\s{0,64}")
MAX_IDENTIFIER = 256
OBJECTS = JsonObjects(requires_arguments=True)  # calls in JSON instead of Python
CALL_ENDS = (")]", "),", ")\n", ")<")


def read_python_calls(
    buffer: TextBuffer, body: PythonCalls, calls: CallRecorder
) -> ReadSteps[None]:
    """Read calls in brackets, or on lines of their own."""
    char = yield from next_char(buffer)
    if char == "{":
        yield from read_call_object(buffer, OBJECTS, calls)
        return
    in_brackets = char == "["
    if body.brackets and not in_brackets:
        raise Mismatch
    if in_brackets:
        buffer.pos += 1
        char = yield from next_char(buffer)
        if char == "{":
            yield from read_object_list(buffer, OBJECTS, calls)
            return
        if char == "]" and calls.is_certain:  # no calls
            buffer.pos += 1
            return
    name = ""
    while True:
        calls.start_next_call()
        try:
            name = yield from read_python_call(buffer, calls, name)
        except Mismatch:
            yield from skip_damaged_call(buffer, calls)
            name = ""
            continue
        if name:
            continue
        char = yield from next_char(buffer)
        if char in (",", ";"):
            buffer.pos += 1
            char = yield from next_char(buffer)
        elif not in_brackets and not (char.isalpha() or char == "_"):
            return
        if in_brackets and char == "]":
            buffer.pos += 1
            return


def read_python_call(buffer: TextBuffer, calls: CallRecorder, name: str) -> ReadSteps[str]:
    """Read a call, or the rest after its name; return the name of a call that starts inside it."""
    name = name or (yield from read_identifier(buffer, _NAME))
    char = yield from next_char(buffer)
    if char != "(":
        raise Mismatch
    buffer.pos += 1
    calls.open_call(name)
    arguments = KeywordArguments(buffer, calls)
    calls.get_missing_end = arguments.get_missing_end
    calls.hold_arguments(arguments.is_in_string)
    next_name = yield from arguments.read()
    calls.close_call()
    calls.confirm_call()
    return next_name


def skip_damaged_call(buffer: TextBuffer, calls: CallRecorder) -> ReadSteps[None]:
    """Skip the rest of a call up to the next one; raise `Mismatch` if there is none."""
    if not calls.is_certain:
        raise Mismatch
    calls.complete_damaged_call()
    try:
        yield from _skip_to_next_call(buffer, calls)
    finally:
        calls.drop_brackets()
    calls.reject_text()


def _skip_to_next_call(buffer: TextBuffer, calls: CallRecorder) -> ReadSteps[None]:
    while True:
        char = yield from next_char(buffer)
        if char in calls.ends.first_chars and (yield from is_at_end(buffer, calls.ends)):
            raise Mismatch
        size = 1
        while (match := _CALL_START.match(buffer.text, buffer.pos)) is not None:
            size = len(match[1])
            if match[2] and calls.tools.is_allowed(match[1]):
                return
            if match.end() < len(buffer.text) or buffer.has_ended:
                break
            yield
        buffer.pos += size


def read_identifier(buffer: TextBuffer, pattern: re.Pattern[str]) -> ReadSteps[str]:
    """Read a name to its end."""
    yield from skip_space(buffer)
    start = ""  # the part of the name that was read before the text ran out
    while True:
        text = start + buffer.text[buffer.pos : buffer.pos + MAX_IDENTIFIER + 1]
        match = pattern.match(text)
        size = 0 if match is None else match.end()
        if size > MAX_IDENTIFIER or (not size and text):
            raise Mismatch
        buffer.pos += size - len(start)
        if buffer.has_more:
            return text[:size]
        if buffer.has_ended:
            raise UnexpectedEnd
        start = text[:size]
        yield


class KeywordArguments:
    """The arguments of a call, from the opening to the closing parenthesis."""

    def __init__(self, buffer: TextBuffer, calls: CallRecorder) -> None:
        self._buffer = buffer
        self._calls = calls
        self._keys = tuple(calls.tools.get_parameter_types(calls.name))
        self._value: ValueReader | None = None
        self._in_string = False
        self._has_arguments = False
        self._lead = "{"

    def get_missing_end(self) -> str:
        inner = self._value.get_missing_end() if self._value is not None else ""
        return ('"' if self._in_string else inner) + "}"

    def is_in_string(self) -> bool:
        return self._in_string

    def _emit(self, text: str) -> None:
        lead, self._lead = self._lead, ""
        self._calls.write_arguments(lead + text)

    def read(self) -> ReadSteps[str]:
        """Read to the end; return the name of another call that starts before this one ends."""
        buffer, ends = self._buffer, self._calls.ends
        next_key = ""
        while True:
            char = yield from next_char(buffer)
            if char in ends.first_chars and (yield from is_at_end(buffer, ends)):
                raise Mismatch
            if char in ODD_SPACES and (yield from skip_odd_space(buffer, ")")):
                continue
            if char == ")" and not next_key:
                buffer.pos += 1
                self._emit("}")
                return ""
            if char == "," and not next_key:
                buffer.pos += 1
                continue
            key = next_key or (yield from read_identifier(buffer, _NAME))
            char = yield from next_char(buffer)
            if char == "(" and key == self._calls.name and not self._has_arguments:
                buffer.pos += 1  # the name is doubled
                continue
            if char == "(" and self._calls.tools.is_allowed(key):
                self._emit("}")
                return key
            if char not in ("=", ":") or _KEY.fullmatch(key) is None:
                raise Mismatch
            buffer.pos += 1
            if (yield from next_char(buffer)) in ",)":  # a key without a value is left out
                if not self._has_arguments:
                    raise Mismatch
                next_key = ""
                continue
            self._lead += f"{', ' if self._has_arguments else ''}{quote(key)}: "
            self._has_arguments = True
            next_key = yield from self._read_argument(key)

    def _read_argument(self, key: str) -> ReadSteps[str]:
        """Read the value of an argument; return the next key if it follows without a separator."""
        buffer = self._buffer
        types = self._calls.get_parameter_types(key)
        char = buffer.text[buffer.pos : buffer.pos + 1]
        if char and char in "\"'":
            buffer.pos += 1
            if types and "string" not in types:
                parts: list[str] = []
                try:
                    yield from self._read_string_body(char, parts.append)
                except UnexpectedEnd:
                    self._in_string = True
                    self._emit('"' + "".join(parts))
                    raise
                self._emit(cast(_unescape("".join(parts)), types))
            else:
                self._in_string = True
                self._emit('"')
                yield from self._read_string_body(char, self._emit)
                self._in_string = False
                self._emit('"')
            return ""
        if types == STRING and char not in ("[", "{", "(", ""):
            self._emit((yield from self._read_unquoted_string()))
            return ""
        held: list[str] = []  # a word is a value only if the call can go on after it
        is_word = char.isalpha()
        self._value = ValueReader(buffer, held.append if is_word else self._emit)
        self._value.keys = self._keys
        self._value.ends = self._calls.ends
        yield from self._value.read()
        next_key, self._value = self._value.glued_key, None
        if is_word:
            following = yield from next_char(buffer)
            if not (next_key or following in (",", ")", "]", "_", "<") or following.isalpha()):
                raise Mismatch
            self._emit("".join(held))
        return next_key

    def _read_unquoted_string(self) -> ReadSteps[str]:
        """Read a string without quotes, up to the next argument or the end of the call."""
        buffer = self._buffer
        parts: list[str] = []
        ends = get_markers(*(f",{GAP}{key}{GAP}=" for key in self._keys), *CALL_ENDS)
        ends = self._calls.ends.join(ends)
        try:
            yield from stream_until(buffer, ends, parts.append)
        except UnexpectedEnd:
            text = "".join(parts)
            if not buffer.text.endswith(")"):
                self._in_string = True
                self._emit('"' + escape(text.strip()))
                raise
            parts = [text[:-1]]
            buffer.pos -= 1
        text = strip_quotes("".join(parts).strip())
        return "null" if text in ("None", "null") else quote(text)

    def _read_string_body(self, quote: str, out: Output) -> ReadSteps[None]:
        """Read a string up to the first quote after which the call can continue."""
        buffer, ends = self._buffer, self._calls.ends
        if (yield from choose_reader(buffer, quote)) is read_triple_quoted:
            yield from read_triple_quoted(buffer, ends, quote, out)
            return
        parentheses = 0  # that are open in the string
        while True:
            match = ends.string_breaks[quote].search(buffer.text, buffer.pos)
            text, end = buffer.text, len(buffer.text) if match is None else match.start()
            start, buffer.pos = buffer.pos, end
            if end > start:
                piece = text[start:end]
                out(piece)
                if parentheses or "(" in piece:
                    parentheses += piece.count("(") - piece.count(")")
            if match is None:
                if buffer.has_ended:
                    raise UnexpectedEnd
                yield
                continue
            char = text[end]
            if char == "\\":
                out((yield from read_escape(buffer)))
            elif char in ends.string_chars and (
                yield from ends_string(buffer, ends, CLOSING_QUOTES[quote])
            ):
                raise Mismatch
            elif char != quote:
                buffer.pos += 1
                out(escape(char))
            elif (yield from self._is_closing_quote(parentheses > 0)):
                buffer.pos += 1
                return
            else:
                buffer.pos += 1
                out(escape(quote))

    def _is_closing_quote(self, in_parentheses: bool) -> ReadSteps[bool]:
        """Whether the text after the quote can follow a string.

        `in_parentheses`: the string quotes a call, which has quotes and parentheses of its own.
        """
        buffer = self._buffer
        while True:
            match = _SPACES.match(buffer.text, buffer.pos + 1)
            assert match is not None  # noqa: S101
            rest = buffer.text[match.end() : match.end() + MAX_IDENTIFIER]
            if rest[:1] == ")" and in_parentheses:
                after = rest.lstrip(")]} ")[:1]
                if after or buffer.has_ended or len(rest) == MAX_IDENTIFIER:
                    return after not in ('"', "'")
                yield
                continue
            if rest[:1] in (",", ")", "]", "}", ";") and rest:
                return True
            key = _KEY.match(rest)
            after = rest[key.end() :].lstrip() if key is not None else "?"
            if key is not None and after[:1] == "(" and "\n" in match[0]:
                return self._calls.tools.is_declared(key[0])  # the next call, on a line of its own
            if key is not None and after[:1] == "=":
                return not self._keys or key.group() in self._keys
            is_undecided = len(rest) < MAX_IDENTIFIER and (not rest or not after)
            if buffer.has_ended or not is_undecided:
                return buffer.has_ended and not rest
            yield


def _unescape(text: str) -> str:
    """Return the text whose escaped form is the inside of a JSON string."""
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
