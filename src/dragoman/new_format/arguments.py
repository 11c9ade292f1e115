"""Finds the arguments of calls in an answer, however they are written.

Three kinds are looked for: objects in JSON or Python syntax, calls in Python syntax, and keys with
values in tags. Each is returned with its place in the answer; what is around it are the markers of
the new format (`infer`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dragoman.new_format.markup import Tag, find_tags
from dragoman.types import Json

MAX_FAILURES = 200  # brackets that start no object; each is searched to the end of the answer
BRACKET = re.compile(r"[\[{]")
# a name is bounded, so that a search takes linear time
PYTHON_CALL = re.compile(r"(?:\[\s*)?(?<!\w)[A-Za-z_][\w.]{0,200}\((?:\s*[A-Za-z_]\w*\s*=|\s*\))")
UNQUOTED_OBJECT = re.compile(r"\{\s*[A-Za-z_]\w*\s*:")
KEY_WORDS = re.compile(r"key|name|arg|param|\bk\b", re.IGNORECASE)  # of a tag around a key
KEY = re.compile(r"\s*[A-Za-z_][\w.-]*\s*")
# a tag that contains a key: <parameter=a>, <param name="a">, [arg=a], <a>
KEY_IN_TAG = re.compile(
    r"(?P<open>[<\[][^<>\[\]\"']*?[=:]\s*)(?P<quote>[\"']?)(?P<key>[A-Za-z_][\w.-]*)(?P=quote)"
    r"(?P<rest>[^<>\[\]]*)(?P<close>[>\]])"
)
ELEMENT = re.compile(r".*<(?P<key>[A-Za-z_][\w.-]*)>", re.DOTALL)
BRACKETS = {"{": "}", "[": "]", "(": ")"}


@dataclass(frozen=True)
class ObjectArguments:
    """A JSON or Python value."""

    start: int
    end: int
    value: Json
    is_python: bool = False
    is_unquoted: bool = False  # keys have no quotes, and the value is not known


@dataclass(frozen=True)
class PythonArguments:
    """Calls in Python syntax, with their names."""

    start: int
    end: int


@dataclass(frozen=True)
class TagArguments:
    """Keys and values in tags. `key_open` … `value_close` are the markers around them."""

    start: int
    end: int
    keys: tuple[str, ...]
    values: tuple[str, ...]
    key_open: str
    key_close: str
    value_open: str  # empty if the value follows `key_close`
    value_close: str
    quote: str = ""  # around the key
    attributes: str = ""  # between the key and `key_close`


@dataclass(frozen=True)
class ElementArguments:
    """Keys are the names of tags."""

    start: int
    end: int
    keys: tuple[str, ...]


def find_objects(text: str) -> list[ObjectArguments]:
    """Return the outermost JSON objects and lists, and those written like Python or unquoted."""
    found: list[ObjectArguments] = []
    position = failures = 0
    while failures < MAX_FAILURES and (match := BRACKET.search(text, position)) is not None:
        value = _read_object(text, match.start())
        position = match.end() if value is None else value.end
        failures += value is None
        found += [] if value is None else [value]
    return found


def _read_object(text: str, start: int) -> ObjectArguments | None:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        return _read_other_object(text, start)
    is_list_of_objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if isinstance(value, dict) or (value and is_list_of_objects):
        return ObjectArguments(start, end, value)
    return None


def _read_other_object(text: str, start: int) -> ObjectArguments | None:
    end = _find_closing_bracket(text, start)
    if end is None:
        return None
    try:
        value = ast.literal_eval(text[start:end])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        if UNQUOTED_OBJECT.match(text, start):
            return ObjectArguments(start, end, {}, is_unquoted=True)
        return None
    if isinstance(value, dict) or (
        isinstance(value, list) and value and isinstance(value[0], dict)
    ):
        return ObjectArguments(start, end, value, is_python=True)
    return None


def _find_closing_bracket(text: str, start: int) -> int | None:
    """Return the position after the bracket that closes the one at `start`, outside strings."""
    stack: list[str] = []
    quote = ""
    position = start
    while position < len(text):
        char = text[position]
        if quote:
            position += char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'" and (position == start or not text[position - 1].isalnum()):
            quote = char
        elif char in BRACKETS:
            stack.append(BRACKETS[char])
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                return position + 1
        position += 1
    return None


def find_python_calls(text: str) -> PythonArguments | None:
    """Return the part of a text with calls in Python syntax, from the first to the last."""
    first = PYTHON_CALL.search(text)
    if first is None:
        return None
    start = end = first.start()
    while PYTHON_CALL.match(text, start) is not None:
        opening = start if text[start] == "[" else text.index("(", start)
        closing = _find_closing_bracket(text, opening)
        if closing is None:
            break
        end = closing
        start = end + len(text[end:]) - len(text[end:].lstrip(" \n,;"))
    return PythonArguments(first.start(), end) if end > first.start() else None


def find_tag_arguments(text: str) -> Iterator[list[TagArguments]]:
    """Yield the ways to read keys and values in tags; each is the arguments of every call."""
    tags = find_tags(text)
    for read in (_read_tag_with_key, _read_pair, _read_pair_with_separator):
        pairs = [pair for index in range(len(tags)) if (pair := read(text, tags, index))]
        for markers in dict.fromkeys(map(_get_markers, pairs)):
            alike = [pair for pair in pairs if _get_markers(pair) == markers]
            if len(alike) > 1 or read is _read_tag_with_key or KEY_WORDS.search(markers[0]):
                yield _join_pairs(alike, text)


def find_elements(text: str) -> list[ElementArguments]:
    """Return groups of elements that follow each other, each with one key as its tag."""
    groups: list[ElementArguments] = []
    tags = find_tags(text)
    index = 0
    while index + 1 < len(tags):
        element = ELEMENT.fullmatch(tags[index].text)
        close = f"</{element['key']}>" if element else ""
        after = next((tag for tag in tags[index + 1 :] if tag.text == close), None)
        if element is None or after is None or tags[index + 1] != after:
            index += 1
            continue
        last = groups[-1] if groups else None
        if last is not None and not text[last.end : tags[index].start].strip():
            groups[-1] = ElementArguments(last.start, after.end, (*last.keys, element["key"]))
        else:
            groups.append(ElementArguments(tags[index].start, after.end, (element["key"],)))
        index += 2
    return groups


def _read_tag_with_key(text: str, tags: list[Tag], index: int) -> TagArguments | None:
    """Read `<parameter=KEY>VALUE</parameter>` and the like."""
    match = KEY_IN_TAG.fullmatch(tags[index].text)
    if match is None:
        return None
    head = re.sub(r"\s+\w*\Z", "", match["open"][1:].rstrip("=: "))
    ends = [tag for tag in tags[index + 1 :] if _closes(tag.text, head)]
    inside = [tag for tag in tags[index + 1 :] if ends and tag.end <= ends[0].start]
    if not ends or any(KEY_IN_TAG.fullmatch(tag.text) for tag in inside):
        return None
    return TagArguments(
        tags[index].start,
        ends[0].end,
        (match["key"],),
        (text[tags[index].end : ends[0].start],),
        match["open"],
        match["close"],
        "",
        ends[0].text,
        match["quote"],
        match["rest"],
    )


def _closes(tag: str, head: str) -> bool:
    """Whether a tag is the closing one of a tag that begins with these words."""
    return "/" in tag and tag[1:-1].replace("/", "", 1).strip() == head.strip()


def _read_pair(text: str, tags: list[Tag], index: int) -> TagArguments | None:
    """Read `<k>KEY</k><v>VALUE</v>`."""
    if index + 3 >= len(tags):
        return None
    key_open, key_close, value_open, value_close = tags[index : index + 4]
    key = text[key_open.end : key_close.start]
    if not KEY.fullmatch(key) or text[key_close.end : value_open.start].strip():
        return None
    if len({tag.text for tag in tags[index : index + 4]}) < 4:
        return None
    return TagArguments(
        key_open.start,
        value_close.end,
        (key.strip(),),
        (text[value_open.end : value_close.start],),
        key_open.text,
        key_close.text,
        value_open.text,
        value_close.text,
    )


def _read_pair_with_separator(text: str, tags: list[Tag], index: int) -> TagArguments | None:
    """Read `<arg>KEY<sep>VALUE</arg>`."""
    if index + 2 >= len(tags):
        return None
    key_open, separator, value_close = tags[index : index + 3]
    key = text[key_open.end : separator.start]
    if not KEY.fullmatch(key) or len({key_open.text, separator.text, value_close.text}) < 3:
        return None
    return TagArguments(
        key_open.start,
        value_close.end,
        (key.strip(),),
        (text[separator.end : value_close.start],),
        key_open.text,
        separator.text,
        "",
        value_close.text,
    )


def _get_markers(pair: TagArguments) -> tuple[str, ...]:
    return pair.key_open, pair.key_close, pair.value_open, pair.value_close, pair.quote


def _join_pairs(pairs: list[TagArguments], text: str) -> list[TagArguments]:
    """Join pairs that only white space separates: they belong to one call."""
    groups: list[TagArguments] = []
    for pair in pairs:
        last = groups[-1] if groups else None
        if last is not None and not text[last.end : pair.start].strip():
            groups[-1] = replace(
                last,
                end=pair.end,
                keys=(*last.keys, *pair.keys),
                values=(*last.values, *pair.values),
                attributes=last.attributes or pair.attributes,
            )
        elif last is None or pair.start >= last.end:
            groups.append(pair)
    return groups
