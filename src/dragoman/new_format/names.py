"""Finds the name of a call before its arguments.

A name is a word after a marker, between two markers, in an attribute of a tag, or after a label. If
the tools are declared, only their names count; otherwise several words may be names, and `infer`
tries a format for each.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from dragoman.new_format.markup import TAG, Tag, find_tags, split_markers_before
from dragoman.output.spec import GAP

WORD = r"[A-Za-z_][\w.-]*"
NOT_NAMES = ("json", "xml", "code", "function", "tool", "call", "assistant")  # words in markers
MAX_TAGS = 6  # tags before the arguments that are searched for a name
PLAIN_NAME = re.compile(
    r"(?:^|[>\]▷⟧»】〕》\s])(?P<name>[^<>\[\]▷⟧»】〕》\s(]+?)"
    r"(?P<mark>[:=(]|\s*[-=]>)?(?P<space>\s*)\Z"
)
# a name on a line with a label, and arguments after another: Action: NAME, Action Input: {…}
LABELS = re.compile(
    rf"^(?P<first>[A-Z][\w ]{{1,30}}:)[ \t]*(?P<name>{WORD})[ \t]*\n"
    r"(?P<second>[A-Z][\w ]{1,30}:)\s*\Z",
    re.MULTILINE,
)
WORD_BEFORE_NAME = re.compile(rf"[>\]▷]\s*(?P<word>[\w.-]+)(?P<tag>{TAG.pattern})\s*\Z")
# a name with what some models write around it: functions.NAME:0, call:NAME
NAME = re.compile(rf"(?P<before>functions\.|\w+:)?(?P<name>{WORD}?)(?P<after>:\d+)?")
ATTRIBUTE = re.compile(
    rf"(?P<open>[<\[][^<>\[\]=:\s]*)(?P<others>\s[^<>\[\]]*?)?(?P<key>[\s\w]*?(?:=\s*|:\s+))"
    rf"(?P<quote>[\"']?)(?P<name>{WORD})(?P=quote)(?P<rest>[^<>\[\]]*)(?P<close>[>\]])"
)


@dataclass(frozen=True)
class NameSlot:
    """Where the name of a call is, and how it is written."""

    name: str
    before: list[str]  # the markers before it
    end_marker: str  # the marker after it; empty if the arguments end the name
    pattern: str  # matches the text of the name
    spelling: str


def find_names(text: str, arguments_start: int, known: Collection[str]) -> Iterator[NameSlot]:
    """Yield the names that may belong to arguments which start at a position, the nearest first.

    `known`: the names of the declared tools; if there are none, any word can be a name.
    """
    before = text[:arguments_start]
    slots = [*_find_labelled_name(before, known), *_find_plain_name(before, known)]
    tags = find_tags(before)
    for index in range(len(tags) - 1, max(len(tags) - MAX_TAGS, 0) - 1, -1):
        slots += _find_name_after(before, tags[: index + 2], index, known)
        slots += _find_name_in(before, tags[index], known)
    yield from slots


def _find_labelled_name(before: str, known: Collection[str]) -> Iterator[NameSlot]:
    """Find a name between two labels, each on a line of its own."""
    match = LABELS.search(before)
    slot = _make_slot(match["name"], known) if match is not None else None
    if match is not None and slot is not None:
        yield replace(slot, before=[match["first"]], end_marker=match["second"])


def _find_plain_name(before: str, known: Collection[str]) -> Iterator[NameSlot]:
    """Find a name right before the arguments, perhaps on a line of its own."""
    match = PLAIN_NAME.search(before)
    slot = _make_slot(match["name"], known) if match is not None else None
    if match is not None and slot is not None:
        end_marker = (match["mark"] or "").strip() or ("\n" if "\n" in match["space"] else "")
        yield from _add_markers(slot, before[: match.start("name")], end_marker)


def _find_name_after(
    before: str, tags: list[Tag], index: int, known: Collection[str]
) -> Iterator[NameSlot]:
    """Find a name between a tag and the next one."""
    if index + 1 < len(tags):
        start, end = tags[index].end, tags[index + 1].start
        slot = _make_slot(before[start:end].strip(), known)
        if slot is not None:
            yield from _add_markers(slot, before[:start], GAP.join(before[end:].split()))


def _find_name_in(before: str, tag: Tag, known: Collection[str]) -> Iterator[NameSlot]:
    """Find a name in a tag; only tags may stand between it and the arguments."""
    slot = _read_attribute(tag.text, known)
    rest = before[tag.end :]
    if slot is not None and not TAG.sub("", rest).strip():
        opening = split_markers_before(before[: tag.start])
        end_marker = GAP.join([slot.end_marker, *rest.split()])
        yield replace(slot, before=[*opening, *slot.before], end_marker=end_marker)


def _add_markers(slot: NameSlot, before: str, end_marker: str) -> Iterator[NameSlot]:
    """Add the markers around a name. Before it, there may be another word and its marker."""
    yield replace(slot, before=split_markers_before(before), end_marker=end_marker)
    word = WORD_BEFORE_NAME.search(before)
    if word is not None:
        is_id = re.search(r"\d", word["word"]) is not None
        text = r"(?P<id>[^\s<>{}\[\]]+)" if is_id else re.escape(word["word"])
        yield replace(
            slot,
            before=split_markers_before(before[: word.start("word")]),
            end_marker=end_marker,
            pattern=rf"(?:{text}{re.escape(word['tag'])})?{slot.pattern}",
            spelling=("{id}" if is_id else word["word"]) + word["tag"] + slot.spelling,
        )


def _make_slot(text: str, known: Collection[str]) -> NameSlot | None:
    """Return how a name in plain text is written, or None if the text is not a name."""
    name = max((name for name in known if name in text), key=len, default=None)
    if name is not None:
        first, _, last = text.partition(name)
    else:
        match = NAME.fullmatch(text)
        if known or match is None or match["name"] in ("", *NOT_NAMES):
            return None
        first, name, last = match["before"] or "", match["name"], match["after"] or ""
    if re.search(r"[\s<>{}\[\]]", first + last):
        return None
    if not first and not last:
        return NameSlot(name, [], "", r"(?P<name>[^\s<>{}\[\]]+)", "{name}")
    parts = [re.sub(r"\d+", r"\\d+", re.escape(part)) for part in (first, last)]
    optional = [f"(?:{part})?" if part else "" for part in parts]
    pattern = rf"(?P<id>{optional[0]}(?P<name>[^\s<>{{}}\[\]:]+?){optional[1]})"
    return NameSlot(name, [], "", pattern, first + "{name}" + re.sub(r"\d+", "{number}", last))


def _read_attribute(tag: str, known: Collection[str]) -> NameSlot | None:
    """Read a tag that contains the name: `<function=NAME>`, `<invoke name="NAME" id="1">`."""
    match = ATTRIBUTE.fullmatch(tag)
    if match is None or tag.startswith(("</", "[/")) or (known and match["name"] not in known):
        return None
    quote, key, others = match["quote"], match["key"], match["others"] or ""
    spelling = f"{quote}{{name}}{quote}"
    name = r"[\"']?(?P<name>[^\"'<>\[\]\s]+)[\"']?" + (r"(?:\s[^<>]*)?" if match["rest"] else "")
    if others.strip():  # other attributes come first, with values of their own
        pattern = rf"(?:[^<>]*?\s)?{re.escape(key.strip())}{name}"
        return NameSlot(
            match["name"], [match["open"] + " "], match["close"], pattern, key.strip() + spelling
        )
    return NameSlot(match["name"], [match["open"] + others + key], match["close"], name, spelling)
