"""Readers of arguments that are elements: keys of objects are tags, list entries `item` tags.

An argument that can only be a string is emitted as it arrives; any other is held back until its end
is seen, and the elements inside it become an object or a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dragoman.output.arguments.argument_writer import ArgumentWriter
from dragoman.output.arguments.call_body import get_markers
from dragoman.output.arguments.cast import cast, to_json
from dragoman.output.arguments.end_markers import (
    EndMarkers,
    ends_string,
    is_closed_after,
    make_finder,
)
from dragoman.output.arguments.json_strings import quote
from dragoman.output.arguments.schemas.parameter_types import STRING, ParameterSchema, Types
from dragoman.output.calls import CallRecorder
from dragoman.output.spec import NestedElements
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

# an element in a text: its name, its content, and its position
ChildElement = tuple[str, str, tuple[int, int]]
EMPTY_VALUES = {frozenset({"array"}): "[]", frozenset({"object"}): "{}"}
_ELEMENT_NAME = re.compile(r"[^<>/\[\]]+")


def read_nested_call(
    buffer: TextBuffer, body: NestedElements, calls: CallRecorder, after: tuple[str, ...]
) -> ReadSteps[None]:
    """Read a name, then an element for each argument."""
    ends = calls.ends.join(get_markers(*body.name_ends, *after))
    text, marker, end = yield from read_until(buffer, ends)
    if marker in body.name_ends:
        buffer.pos = end
    match = re.fullmatch(body.name_pattern, text.strip())
    if match is None:
        raise Mismatch
    calls.open_call(match["name"].strip())
    out = ArgumentWriter(calls)
    opens, ends = get_markers(body.prefix + "<"), calls.ends.join(get_markers(*after))
    try:
        while True:
            yield from skip_space(buffer)
            at_end = yield from is_at_marker(buffer, ends)
            if at_end or (yield from read_marker(buffer, opens)) < 0:
                break
            key, marker, end = yield from read_until(buffer, calls.ends.join(get_markers(">")))
            closing = f"{body.prefix}</{key}>"
            if marker != ">" or _ELEMENT_NAME.fullmatch(key) is None or closing in after:
                raise Mismatch
            buffer.pos = end
            element = PendingElement(key, calls.get_parameter_types(key), calls.ends)
            yield from read_element(buffer, body, calls, out, element)
            calls.commit()
    finally:
        out.write_list()
    out.close()


class PendingElement:
    """An element about to be read, and the markers that end it if it is not closed."""

    def __init__(self, key: str, types: Types, ends: EndMarkers) -> None:
        self.key = key
        self.types = types
        self.ends = ends
        self.has_children = not types or not types.isdisjoint(("array", "object", "json"))


def read_element(
    buffer: TextBuffer,
    body: NestedElements,
    calls: CallRecorder,
    out: ArgumentWriter,
    element: PendingElement,
) -> ReadSteps[None]:
    key = element.key
    if element.types == STRING:
        out.start_string(key)
        is_closed = yield from read_element_text(buffer, body, element, out.write_string)
        out.end_string(is_closed=is_closed)
        return
    parts: list[str] = []
    schema = calls.tools.get_parameter_schema(calls.name, key)

    def write() -> None:
        make_item = partial(element_to_json, body, "".join(parts))
        out.write_value(key, schema.types, make_item(schema), make_item)

    try:
        is_closed = yield from read_element_text(buffer, body, element, parts.append)
    except UnexpectedEnd:
        if not buffer.is_truncated:  # half a value is another value
            write()
        raise
    if is_closed or "".join(parts).strip():
        write()


def read_element_text(
    buffer: TextBuffer,
    body: NestedElements,
    element: PendingElement,
    write: Callable[[str], object],
) -> ReadSteps[bool]:
    """Read the content of an element, which may contain elements of the same name.

    Return whether a closing tag ends it. Any tag ends a value without elements that is not closed.
    """
    opening, closing = f"{body.prefix}<{element.key}>", f"{body.prefix}</{element.key}>"
    next_opens = get_markers(opening, *element.ends.call_opens.markers)
    finder = make_finder(get_markers(closing), next_opens)
    tag = () if element.has_children else (body.prefix + "<",)
    markers = element.ends.join(get_markers(opening, closing, *tag))
    depth = 1
    while True:
        marker, end = yield from stream_until(buffer, markers, write)
        depth += (marker == opening) - (marker == closing)
        if marker in tag:
            if not (yield from is_closed_after(buffer, len(marker), finder)):
                return (yield from skip_other_close(buffer, body, element.ends))
            end = buffer.pos + 1
        elif marker not in (opening, closing):
            if (yield from ends_string(buffer, element.ends, finder)):
                return False
            end = buffer.pos + 1
        if depth:
            write(buffer.text[buffer.pos : end])
        buffer.pos = end
        if not depth:
            return True


def skip_other_close(buffer: TextBuffer, body: NestedElements, ends: EndMarkers) -> ReadSteps[bool]:
    """Skip the closing tag of another name; False if there is none."""
    if (yield from read_marker(buffer, get_markers(body.prefix + "</"))) < 0:
        return False
    _, marker, end = yield from read_until(buffer, ends.join(get_markers(">")))
    buffer.pos = end if marker == ">" else buffer.pos
    return True


def element_to_json(
    body: NestedElements, text: str, schema: ParameterSchema, depth: int = 0
) -> str:
    """Return the content of an element as JSON. Text beside elements makes all of it a string."""
    children = list(_iterate_children(body, text)) if depth < 32 else []
    types = schema.types
    rest = "".join(text[start:end] for start, end in _iterate_gaps(children, len(text)))
    if not text.strip() and types in EMPTY_VALUES:
        return EMPTY_VALUES[types]
    if not children or rest.strip():
        return cast(text, types) if types else untyped_to_json(text)
    children = [child for child in children if child[0]]
    if not children:
        return "{}"
    items_only = all(key == body.item for key, _, _ in children)
    if types == frozenset({"array"}) or (items_only and (not types or "array" in types)):
        items = (
            element_to_json(body, inner, schema.get_item(index), depth + 1)
            for index, (_, inner, _) in enumerate(children)
        )
        return f"[{', '.join(items)}]"
    members = (
        f"{quote(key)}: {element_to_json(body, inner, schema.get_member(key), depth + 1)}"
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
            if not text[content_start:].strip():
                key = ""  # a key without a value is left out
        yield key, text[content_start:close], (start, pos)
