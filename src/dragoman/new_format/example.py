"""Writes the example of a format: a call of `f` with one argument, as other formats have it.

The example is put together from the markers of the format, with the white space that the answer has
between them, and read by the parser. If that does not give the call back, the calls of the answer
itself become the example.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise

from dragoman.new_format.readers import read_answer
from dragoman.output.spec import (
    GAP,
    CallBody,
    JsonObjects,
    NamedObject,
    NestedElements,
    PythonCalls,
    TaggedArguments,
    ToolFormat,
)

ARGUMENTS = {"a": 1}
PLACEHOLDERS = {"name": "f", "key": "a", "id": "a1", "number": "0", "text": "false"}


@dataclass(frozen=True)
class Part:
    """A part of an example, and the markers that it starts and ends with in any answer."""

    text: str
    starts: str
    ends: str


def add_example(tools: ToolFormat, text: str) -> ToolFormat:
    """Return a format with an example that it reads; if it cannot be written, the answer itself."""
    section, call = tools.section, tools.call
    markers = [*map(_make_marker, (section.open, call.open))]
    endings = [*map(_make_marker, (call.close, section.close))]
    parts = [
        part for part in (*markers, *_write_body(tools.bodies[0], text), *endings) if part.text
    ]
    spaces = [_find_space(text, before.ends, after.starts) for before, after in pairwise(parts)]
    example = "".join(part.text + space for part, space in zip(parts, [*spaces, ""], strict=True))
    with_example = replace(tools, example=example.replace(GAP, ""))
    reading = read_answer(with_example, None, with_example.example, None)
    calls = [(name, json.loads(arguments)) for name, arguments in reading.calls]
    if reading.is_complete and calls in ([("f", {"a": 1})], [("f", {"a": "1"})]):
        return with_example
    return replace(tools, example=_cut_example(tools, text))


def _get_first(markers: tuple[str, ...]) -> str:
    return markers[0] if markers else ""


def _make_marker(markers: tuple[str, ...]) -> Part:
    text = _get_first(markers)
    return Part(text, text.split(GAP)[0], text.split(GAP)[-1])


def _make_name(body: NamedObject | TaggedArguments | NestedElements, end: str) -> list[Part]:
    """Return the name and the marker after it."""
    name = body.spellings[0].format(**PLACEHOLDERS)
    return [Part(name, name.partition("f")[0], ""), _make_marker((end,))]


def _write_body(body: CallBody, text: str) -> list[Part]:
    """Return the parts of a call between its markers."""
    arguments = json.dumps(ARGUMENTS)
    match body:
        case JsonObjects():
            name, key = _find_used_key(body.name, text), _find_used_key(body.arguments, text)
            call = {"f": ARGUMENTS} if body.keyed else {name: "f", key: ARGUMENTS}
            written = repr(call) if body.python else json.dumps(call)
            is_list = re.search(r"\[\s*\{", text) is not None
            return [Part(f"[{written}]", "[", "]") if is_list else Part(written, "{", "}")]
        case NamedObject():
            value = "{a:1}" if body.unquoted_values else arguments
            name_parts = _make_name(body, _get_first(body.name_ends))
            return [*name_parts, Part(value, "{", "}"), _make_marker(body.fence)]
        case TaggedArguments():
            return [*_make_name(body, _find_name_end(body, text)), _write_pair(body, text)]
        case NestedElements():
            return [*_make_name(body, _find_name_end(body, text)), Part("<a>1</a>", "<", ">")]
        case PythonCalls() if body.brackets:
            return [Part("[f(a=1)]", "[", "]")]
        case PythonCalls():
            return [Part("f(a=1)", "", ")")]


def _find_name_end(body: TaggedArguments | NestedElements, text: str) -> str:
    """Return the marker after the name; a line break ends it only if the answer has one there."""
    end = _get_first(body.name_ends)
    if end != "\n" or not isinstance(body, TaggedArguments):
        return end
    return end if re.search(rf"\w\n\s*{re.escape(_get_first(body.key.open))}", text) else ""


def _write_pair(body: TaggedArguments, text: str) -> Part:
    """Return a key with its value."""
    key = body.key_spelling.format(**PLACEHOLDERS, type="number")
    pad = {"newline": "\n", "space": " ", "none": ""}[body.trim]
    key_open, key_close = _get_first(body.key.open), _get_first(body.key.close)
    value_open, value_close = _get_first(body.value.open), _get_first(body.value.close)
    space = _find_space(text, key_close, value_open) if value_open else ""
    written = f"{key_open}{key}{key_close}{space}{value_open}{pad}1{pad}{value_close}"
    return Part(written, key_open, value_close)


def _find_used_key(keys: tuple[str, ...], text: str) -> str:
    """Return the key that the answer uses."""
    return next((key for key in keys if f'"{key}"' in text or f"'{key}'" in text), keys[0])


def _find_space(text: str, before: str, after: str) -> str:
    """Return the white space between two markers in the answer."""
    match = re.search(rf"{re.escape(before)}(\s*){re.escape(after)}", text)
    return match[1] if match is not None and (before or after) else ""


def _cut_example(tools: ToolFormat, text: str) -> str:
    """Return the text from the first marker to the last: the answer without its prose."""
    opens = [marker.split(GAP)[0] for marker in (*tools.section.open, *tools.call.open)]
    closes = [marker.split(GAP)[-1] for marker in (*tools.section.close, *tools.call.close)]
    starts = [text.find(marker) for marker in opens if marker in text]
    ends = [text.rfind(marker) + len(marker) for marker in closes if marker in text]
    return text[min(starts, default=0) : max(ends, default=len(text))].strip()
