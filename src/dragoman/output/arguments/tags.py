"""Readers of arguments between tags.

The text between tags gets its meaning from the tool's schema. An argument that can only be a string
is emitted as it arrives; any other is held back until its end is seen.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

from dragoman.output.arguments.argument_writer import ArgumentWriter
from dragoman.output.arguments.call_body import get_markers, next_char, read_arguments_value
from dragoman.output.arguments.cast import cast, to_json
from dragoman.output.arguments.damage import (
    WRONG_CLOSE,
    WRONG_CLOSES,
    match_name,
    skip_to_next_key,
    skip_wrong_close,
)
from dragoman.output.arguments.end_markers import (
    CLOSING_QUOTES,
    EndMarkers,
    ends_string,
    is_closed_after,
    make_finder,
)
from dragoman.output.arguments.json_strings import quote
from dragoman.output.arguments.schemas.parameter_types import STRING, Types
from dragoman.output.calls import CallRecorder
from dragoman.output.spec import TaggedArguments
from dragoman.output.text_buffer import (
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    is_at_marker,
    read_marker,
    read_until,
    skip_space,
    stream_until,
)

CDATA = ("<![CDATA[", "]]>")
ESCAPED, QUOTES = re.compile(r"\\.", re.DOTALL), re.compile("[\"']")
JSON_TYPE: Types = frozenset({"json"})  # a value that the format declares not to be a string
INLINE_TYPES = {"true": STRING, "false": JSON_TYPE}


def read_tagged_call(
    buffer: TextBuffer, body: TaggedArguments, calls: CallRecorder, after: tuple[str, ...]
) -> ReadSteps[None]:
    """Read a name, then keys and values. `after`: markers that can follow the last value."""
    ends = calls.ends.join(get_markers(*body.name_ends, *body.key.open, "{", *after))
    text, marker, end = yield from read_until(buffer, ends)
    if marker in body.name_ends:
        buffer.pos = end
    text = text.strip()
    is_empty = marker == ">" and text.endswith("/")  # a self-closing tag
    match = match_name(body.name_pattern, text[:-1].strip() if is_empty else text)
    if match is None:
        raise Mismatch
    name = match["name"].strip()
    calls.open_call(html.unescape(name) if body.html_entities else name)
    if is_empty:
        ArgumentWriter(calls).close()
        return
    yield from skip_space(buffer)
    if buffer.text.startswith("{", buffer.pos):
        yield from read_arguments_value(buffer, calls)
        calls.close_call()
        return
    if body.block.open and (yield from read_marker(buffer, get_markers(*body.block.open))) >= 0:
        yield from read_argument_block(buffer, body, calls)
        return
    yield from read_all_arguments(buffer, body, calls, after)


def read_all_arguments(
    buffer: TextBuffer, body: TaggedArguments, calls: CallRecorder, after: tuple[str, ...]
) -> ReadSteps[None]:
    """Read the keys and values of a call whose name is known."""
    out = ArgumentWriter(calls)
    opens, has_key = get_markers(*body.key.open), False
    markers = get_markers(*body.key.open, *body.value.close)
    try:  # no function of its own: each one that waits for text takes time for every token
        while True:
            yield from skip_space(buffer)
            if buffer.has_ended and not buffer.has_more:
                raise UnexpectedEnd
            index = yield from read_marker(buffer, markers)
            if 0 <= index < len(opens.markers):
                yield from read_argument(buffer, body, calls, out)
                calls.commit()
                has_key = True
            elif index < 0:  # a closing marker that closes nothing is skipped
                is_over = not has_key or buffer.text.startswith(after, buffer.pos)
                text = "" if is_over else (yield from skip_to_next_key(buffer, opens, calls.ends))
                if not text:
                    break
                calls.keep_text(text, buffer.base + buffer.pos - len(text))
    finally:
        out.write_list()
    if (
        not out.has_arguments
        and after
        and not (yield from is_at_marker(buffer, get_markers(*after)))
    ):
        raise Mismatch  # neither arguments nor an end
    out.close()


def read_argument_block(
    buffer: TextBuffer, body: TaggedArguments, calls: CallRecorder
) -> ReadSteps[None]:
    """Read all arguments as one JSON object between markers."""
    _, _, buffer.pos = yield from read_until(buffer, get_markers(*body.key.close))
    if (yield from next_char(buffer)) != "{":
        raise Mismatch
    yield from read_arguments_value(buffer, calls)
    calls.close_call()
    yield from skip_space(buffer)
    yield from read_marker(buffer, get_markers(*body.block.close))


def read_argument(
    buffer: TextBuffer,
    body: TaggedArguments,
    calls: CallRecorder,
    out: ArgumentWriter,
) -> ReadSteps[None]:
    """Read a key and its value. A key without a value is left out."""
    ends = calls.ends.join(get_markers(*body.key.close, *body.value.open, *body.value.close))
    text, marker, end = yield from read_until(buffer, ends)
    if marker in body.key.close:
        buffer.pos = end
    elif marker in body.value.close:
        raise Mismatch  # nothing separates the key from its value
    elif marker not in body.value.open:
        keep_unless_key(text, body, calls, buffer.base + buffer.pos)
        return
    key_text = WRONG_CLOSE.split(text)[0] if marker in body.value.open else text
    match = match_name(body.key_pattern, key_text.strip())
    if match is None:
        raise Mismatch
    groups = match.groupdict()
    key = html.unescape(groups["key"]) if body.html_entities else groups["key"].strip()
    inline = groups.get("type")
    if body.type.open:
        inline = yield from read_type(buffer, body, calls.ends)
    if body.value.open:
        yield from skip_space(buffer)
        has_value = (yield from read_marker(buffer, get_markers(*body.value.open))) >= 0
        next_markers = calls.ends.join(get_markers(*body.key.open))
        if not has_value and (yield from is_at_marker(buffer, next_markers)):
            return
        if not has_value:
            skip_cut_marker(buffer, body.value.open)
    types = calls.get_parameter_types(key) if inline is None else _read_inline_type(inline)
    yield from read_value(buffer, PendingValue(body, key, types, calls.ends), out)


def keep_unless_key(text: str, body: TaggedArguments, calls: CallRecorder, end: int) -> None:
    """Keep text before a position as text, unless it is a key without a value."""
    if match_name(body.key_pattern, text.strip()) is None:
        calls.keep_text(text, end - len(text))


def skip_cut_marker(buffer: TextBuffer, markers: tuple[str, ...]) -> None:
    """Raise `UnexpectedEnd` if the text ends here, or in one of the markers, which is not text."""
    rest = buffer.text[buffer.pos :]
    if buffer.has_ended and any(marker.startswith(rest) for marker in markers):
        buffer.pos = len(buffer.text)
        raise UnexpectedEnd


def read_type(buffer: TextBuffer, body: TaggedArguments, ends: EndMarkers) -> ReadSteps[str | None]:
    """Read the type of a value between its markers; None if it is not there."""
    yield from skip_space(buffer)
    if (yield from read_marker(buffer, get_markers(*body.type.open))) < 0:
        return None
    markers = ends.join(get_markers(*body.type.close, *body.value.open, *body.key.open))
    text, marker, end = yield from read_until(buffer, markers)
    if marker in body.type.close:
        buffer.pos = end
    return text.strip()


class PendingValue:
    """A value that is about to be read, and the markers that can end it."""

    def __init__(self, body: TaggedArguments, key: str, types: Types, ends: EndMarkers) -> None:
        self.key = key
        self.types = types
        self.body = body
        self.ends = ends
        self.closes = (*body.value.close, *body.key.open)
        if body.cdata:
            self.closes += (CDATA[0],)
        found = (*self.closes, *ends.join(get_markers(*WRONG_CLOSES)).markers)
        trimmed = found if body.trim == "newline" else ()
        self.markers = get_markers(*found, *("\n" + marker for marker in trimmed))
        self.next_markers = ends.join(get_markers(*body.key.open))
        self._checked = 0  # parts of the value up to which this is known:
        self._quote = ""  # they end inside a string of a JSON or Python value with this quote

    def is_in_string(self, parts: Sequence[str]) -> bool:
        """Whether the value read so far is JSON, and ends inside a string of JSON."""
        text = "".join(parts[self._checked :])
        if not self._checked and not text.lstrip().startswith(("[", "{")):
            return False
        self._checked = len(parts)
        if self._quote != "'" and "'" not in text and "\\" not in text:  # counting is faster
            if text.count('"') % 2:
                self._quote = "" if self._quote else '"'
            return self._quote == '"'
        for char in QUOTES.findall(ESCAPED.sub("", text)):
            if not self._quote or self._quote == char:
                self._quote = "" if self._quote else char
        return self._quote == '"'


def read_value(buffer: TextBuffer, pending: PendingValue, out: ArgumentWriter) -> ReadSteps[None]:
    """Read a value up to its closing marker."""
    body = pending.body
    if body.trim == "newline":
        yield from read_marker(buffer, get_markers("\n"))
    elif body.trim == "space":
        yield from skip_space(buffer)
    is_streamed = pending.types == STRING or (not pending.types and body.untyped == "text")
    parts: list[str] = []
    write = out.write_string if is_streamed else parts.append
    if is_streamed:
        out.start_string(pending.key)
    try:
        while True:
            marker, end = yield from (stream_cdata if body.cdata else stream_value)(
                buffer, pending, write
            )
            length = end - buffer.pos  # the position changes while more text arrives
            is_close = marker.lstrip("\n") in pending.closes
            may_be_quoted = is_close and pending.is_in_string(parts)
            if not may_be_quoted or not (
                yield from is_closed_after(buffer, length, CLOSING_QUOTES['"'])
            ):
                break
            write(buffer.text[buffer.pos : buffer.pos + length])
            buffer.pos += length
    except UnexpectedEnd:
        text = "".join(parts)
        if text.strip() and not buffer.is_truncated:  # half a value is another value
            write_pending(pending, text, out)
        raise
    is_closed = not marker or marker.lstrip("\n") in body.value.close
    text = "".join(parts) if is_closed else "".join(parts).rstrip("\n")
    if is_streamed:
        out.end_string(is_closed=is_closed)
    elif is_closed or text.strip():
        write_pending(pending, text, out)
    if marker and is_closed:
        buffer.pos += length


def stream_value(
    buffer: TextBuffer, pending: PendingValue, write: Callable[[str], object]
) -> ReadSteps[tuple[str, int]]:
    """Pass the text of a value to `write`; return the marker that ends it, unread, and its end.

    A marker that ends the call ends the value, unless the value is closed before the next one. A
    closing tag of another name ends it, too, if the next key or the end of the call follows.
    """
    body = pending.body
    finder = make_finder(get_markers(*body.value.close), get_markers(*body.key.open))
    while True:
        marker, end = yield from stream_until(buffer, pending.markers, write)
        name = marker.lstrip("\n")
        if name in pending.closes:
            return marker, end
        line_end = buffer.pos + (marker != name) + buffer.text.startswith("\r", buffer.pos)
        line, buffer.pos = buffer.text[buffer.pos : line_end], line_end
        if name in WRONG_CLOSES:
            pending.markers.check_cut(buffer)
            if (yield from skip_wrong_close(buffer, pending.next_markers, finder)):
                return "", buffer.pos
            skip_cut_marker(buffer, pending.closes)
        elif (yield from ends_string(buffer, pending.ends, finder)):
            return name, buffer.pos
        write(line + buffer.text[buffer.pos])
        buffer.pos += 1


def stream_cdata(
    buffer: TextBuffer, pending: PendingValue, write: Callable[[str], object]
) -> ReadSteps[tuple[str, int]]:
    """Like `stream_value`, for text with CDATA sections; white space beside them is dropped."""
    after_cdata = False
    while True:
        parts: list[str] = []
        marker, end = yield from stream_value(
            buffer, pending, parts.append if after_cdata else write
        )
        if "".join(parts).strip():
            write("".join(parts))
        if marker != CDATA[0]:
            return marker, end
        buffer.pos = end
        _, buffer.pos = yield from stream_until(buffer, get_markers(CDATA[1]), write)
        after_cdata = True


def write_pending(pending: PendingValue, text: str, out: ArgumentWriter) -> None:
    value = finish_value(text, pending)
    out.write_value(pending.key, pending.types, value, lambda schema: cast(text, schema.types))


def finish_value(text: str, pending: PendingValue) -> str:
    if not pending.types or pending.types == JSON_TYPE:
        return to_json(text) or quote(text)
    return cast(text, pending.types)


def _read_inline_type(type_name: str) -> Types:
    if type_name in INLINE_TYPES:
        return INLINE_TYPES[type_name]
    return JSON_TYPE if type_name != "string" else STRING
