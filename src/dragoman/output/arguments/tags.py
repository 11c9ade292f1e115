"""Readers of arguments between tags.

The text between tags gets its meaning from the tool's schema. An argument that can only be a string
is emitted as it arrives; any other is held back until its end is seen.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence

from dragoman.output.arguments.call_body import marker_set, next_char, read_arguments_value
from dragoman.output.arguments.cast import cast, to_json
from dragoman.output.arguments.json_strings import escape, quote
from dragoman.output.arguments.parameter_types import STRING, ParameterSchema, Types
from dragoman.output.calls import CallRecorder
from dragoman.output.spec import NestedElements, TaggedArguments
from dragoman.output.text_buffer import (
    MarkerSet,
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

# an element in a text: its name, its content, and its position
ChildElement = tuple[str, str, tuple[int, int]]
CDATA = ("<![CDATA[", "]]>")
JSON_TYPE: Types = frozenset({"json"})  # a value that the format declares not to be a string
INLINE_TYPES = {"true": STRING, "false": JSON_TYPE}


class ArgumentWriter:
    """Emits arguments as one JSON object."""

    def __init__(self, calls: CallRecorder) -> None:
        self._calls = calls
        self.has_arguments = False
        self._in_string = False
        calls.missing_end = self.missing_end

    def missing_end(self) -> str:
        return '"}' if self._in_string else "}"

    def _start_member(self, key: str) -> str:
        lead = ", " if self.has_arguments else "{"
        self.has_arguments = True
        return f"{lead}{quote(key)}: "

    def write_member(self, key: str, value: str) -> None:
        self._calls.write_arguments(self._start_member(key) + value)

    def start_string(self, key: str) -> None:
        self._in_string = True
        self._calls.write_arguments(self._start_member(key) + '"')

    def write_string(self, text: str) -> None:
        self._calls.write_arguments(escape(text))

    def end_string(self) -> None:
        self._in_string = False
        self._calls.write_arguments('"')

    def close(self) -> None:
        self._calls.write_arguments("}" if self.has_arguments else "{}")
        self._calls.close_call()


def read_tagged_call(
    buffer: TextBuffer, body: TaggedArguments, calls: CallRecorder, after: tuple[str, ...]
) -> ReadSteps[None]:
    """Read a name, then keys and values. `after`: markers that can follow the last value."""
    text, marker, end = yield from read_until(
        buffer, marker_set(*body.name_ends, *body.key.open, *after)
    )
    if marker in body.name_ends:
        buffer.pos = end
    match = re.fullmatch(body.name_pattern, text.strip())
    if match is None:
        raise Mismatch
    name = match["name"].strip()
    calls.open_call(html.unescape(name) if body.html_entities else name)
    if body.accepts_json and (yield from next_char(buffer)) == "{":
        yield from read_arguments_value(buffer, calls)
        calls.close_call()
        return
    yield from skip_space(buffer)
    if body.block.open and (yield from read_marker(buffer, marker_set(*body.block.open))) >= 0:
        yield from read_argument_block(buffer, body, calls)
        return
    out = ArgumentWriter(calls)
    if marker.startswith("/"):  # a self-closing tag
        out.close()
        return
    opens = marker_set(*body.key.open)
    while True:
        yield from skip_space(buffer)
        if buffer.ended and not buffer.has_more:
            raise UnexpectedEnd
        if (yield from read_marker(buffer, opens)) < 0:
            break
        yield from read_argument(buffer, body, calls, out, after)
        calls.commit()
    if (
        not out.has_arguments
        and after
        and not (yield from is_at_marker(buffer, marker_set(*after)))
    ):
        raise Mismatch  # neither arguments nor an end
    out.close()


def read_argument_block(
    buffer: TextBuffer, body: TaggedArguments, calls: CallRecorder
) -> ReadSteps[None]:
    """Read all arguments as one JSON object between markers."""
    _, _, buffer.pos = yield from read_until(buffer, marker_set(*body.key.close))
    if (yield from next_char(buffer)) != "{":
        raise Mismatch
    yield from read_arguments_value(buffer, calls)
    calls.close_call()
    yield from skip_space(buffer)
    yield from read_marker(buffer, marker_set(*body.block.close))


def read_argument(
    buffer: TextBuffer,
    body: TaggedArguments,
    calls: CallRecorder,
    out: ArgumentWriter,
    after: tuple[str, ...],
) -> ReadSteps[None]:
    text, marker, end = yield from read_until(buffer, marker_set(*body.key.close, *body.value.open))
    if marker in body.key.close:
        buffer.pos = end
    match = re.fullmatch(body.key_pattern, text.strip())
    if match is None:
        raise Mismatch
    groups = match.groupdict()
    key = html.unescape(groups["key"]) if body.html_entities else groups["key"].strip()
    if body.value.open:
        yield from skip_space(buffer)
        yield from read_marker(buffer, marker_set(*body.value.open))
    inline = groups.get("type")
    types = calls.parameter_types(key) if inline is None else _read_inline_type(inline)
    closes = body.value.close
    if body.implicit_end:
        closes += (*body.key.open, *after)
    if body.trim == "newline":
        closes += tuple("\n" + marker for marker in closes)
    yield from read_value(buffer, PendingValue(body, key, types, marker_set(*closes)), out)


class PendingValue:
    """A value that is about to be read, and the markers that close it."""

    def __init__(self, body: TaggedArguments, key: str, types: Types, closes: MarkerSet) -> None:
        self.key = key
        self.types = types
        self.closes = closes
        self.body = body


def read_value(buffer: TextBuffer, pending: PendingValue, out: ArgumentWriter) -> ReadSteps[None]:
    """Read a value up to its closing marker."""
    body = pending.body
    if body.trim == "newline":
        yield from read_marker(buffer, marker_set("\n"))
    elif body.trim == "space":
        yield from skip_space(buffer)
    is_streamed = pending.types == STRING or (not pending.types and body.untyped == "text")
    parts: list[str] = []
    write = out.write_string if is_streamed else parts.append
    if is_streamed:
        out.start_string(pending.key)
    try:
        marker, end = yield from (stream_until_cdata if body.cdata else stream_until)(
            buffer, pending.closes, write
        )
    except UnexpectedEnd:
        if not is_streamed:
            out.write_member(pending.key, finish_value("".join(parts), pending))
        raise
    if is_streamed:
        out.end_string()
    else:
        out.write_member(pending.key, finish_value("".join(parts), pending))
    if marker.lstrip("\n") in body.value.close:
        buffer.pos = end


def stream_until_cdata(
    buffer: TextBuffer, closes: MarkerSet, write: Callable[[str], object]
) -> ReadSteps[tuple[str, int]]:
    """Like `stream_until`, for text with CDATA sections; white space beside them is dropped."""
    all_markers = marker_set(CDATA[0], *closes.markers)
    after_cdata = False
    while True:
        parts: list[str] = []
        marker, end = yield from stream_until(
            buffer, all_markers, parts.append if after_cdata else write
        )
        if "".join(parts).strip():
            write("".join(parts))
        if marker != CDATA[0]:
            return marker, end
        buffer.pos = end
        _, buffer.pos = yield from stream_until(buffer, marker_set(CDATA[1]), write)
        after_cdata = True


def finish_value(text: str, pending: PendingValue) -> str:
    if not pending.types or pending.types == JSON_TYPE:
        return to_json(text) or quote(text)
    return cast(text, pending.types)


def _read_inline_type(type_name: str) -> Types:
    if type_name in INLINE_TYPES:
        return INLINE_TYPES[type_name]
    return JSON_TYPE if type_name != "string" else STRING


# bodies of type `NestedElements`


def read_nested_call(
    buffer: TextBuffer, body: NestedElements, calls: CallRecorder, after: tuple[str, ...]
) -> ReadSteps[None]:
    """Read a name, then an element for each argument."""
    text, marker, end = yield from read_until(buffer, marker_set(*body.name_ends, *after))
    if marker in body.name_ends:
        buffer.pos = end
    match = re.fullmatch(body.name_pattern, text.strip())
    if match is None:
        raise Mismatch
    calls.open_call(match["name"].strip())
    out = ArgumentWriter(calls)
    opens, ends = marker_set(body.prefix + "<"), marker_set(*after)
    while True:
        yield from skip_space(buffer)
        at_end = yield from is_at_marker(buffer, ends)
        if at_end or (yield from read_marker(buffer, opens)) < 0:
            break
        key, _, buffer.pos = yield from read_until(buffer, marker_set(">"))
        yield from read_element(buffer, body, calls, out, PendingElement(key, after))
        calls.commit()
    out.close()


class PendingElement:
    """An element about to be read, and the markers that end it if it is not closed."""

    def __init__(self, key: str, after: tuple[str, ...]) -> None:
        self.key = key
        self.after = after


def read_element(
    buffer: TextBuffer,
    body: NestedElements,
    calls: CallRecorder,
    out: ArgumentWriter,
    element: PendingElement,
) -> ReadSteps[None]:
    key = element.key
    if calls.parameter_types(key) == STRING:
        out.start_string(key)
        yield from read_element_text(buffer, body, element, out.write_string)
        out.end_string()
        return
    parts: list[str] = []
    schema = calls.tools.parameter_schema(calls.name, key)
    try:
        yield from read_element_text(buffer, body, element, parts.append)
    except UnexpectedEnd:
        out.write_member(key, element_to_json(body, "".join(parts), schema))
        raise
    out.write_member(key, element_to_json(body, "".join(parts), schema))


def read_element_text(
    buffer: TextBuffer,
    body: NestedElements,
    element: PendingElement,
    write: Callable[[str], object],
) -> ReadSteps[None]:
    """Read the content of an element, which may contain elements of the same name."""
    opening, closing = f"{body.prefix}<{element.key}>", f"{body.prefix}</{element.key}>"
    depth = 1
    while True:
        marker, end = yield from stream_until(
            buffer, marker_set(opening, closing, *element.after), write
        )
        depth += (marker == opening) - (marker == closing)
        if marker in element.after:
            return
        if depth:
            write(buffer.text[buffer.pos : end])
        buffer.pos = end
        if not depth:
            return


def element_to_json(
    body: NestedElements, text: str, schema: ParameterSchema, depth: int = 0
) -> str:
    """Return the content of an element as JSON. Text beside elements makes all of it a string."""
    children = list(_iterate_children(body, text)) if depth < 32 else []
    types = schema.types
    rest = "".join(text[start:end] for start, end in _iterate_gaps(children, len(text)))
    if not children or rest.strip():
        return cast(text, types) if types else untyped_to_json(text)
    items_only = all(key == body.item for key, _, _ in children)
    if types == frozenset({"array"}) or (items_only and (not types or "array" in types)):
        items = (
            element_to_json(body, inner, schema.item(index), depth + 1)
            for index, (_, inner, _) in enumerate(children)
        )
        return f"[{', '.join(items)}]"
    members = (
        f"{quote(key)}: {element_to_json(body, inner, schema.member(key), depth + 1)}"
        for key, inner, _ in children
    )
    return f"{{{', '.join(members)}}}"


def _iterate_gaps(children: Sequence[ChildElement], size: int) -> Iterator[tuple[int, int]]:
    pos = 0
    for _, _, (start, end) in children:
        yield pos, start
        pos = end
    yield pos, size


def untyped_to_json(text: str) -> str:
    """Return the content of an element without a schema: a value if it is one, else a string."""
    if not text.strip():
        return "null"
    return to_json(text) or quote(text)


def _iterate_children(body: NestedElements, text: str) -> Iterator[ChildElement]:
    """Yield the elements in a text; elements of the same name nest."""
    pos, opening = 0, body.prefix + "<"
    while (start := text.find(opening, pos)) >= 0:
        end = text.find(">", start + len(opening))
        if end < 0:
            return
        key = text[start + len(opening) : end]
        if key.startswith("/"):
            pos = end + 1
            continue
        content_start, depth, pos = end + 1, 1, end + 1
        pattern = re.compile(re.escape(opening) + "(/?)" + re.escape(key) + ">")
        close = len(text)
        for match in pattern.finditer(text, content_start):
            depth += -1 if match[1] else 1
            if not depth:
                close, pos = match.start(), match.end()
                break
        else:
            pos = len(text)
        yield key, text[content_start:close], (start, pos)
