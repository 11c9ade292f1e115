"""Finds tags in a text, and the markers before and after a part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dragoman.output.spec import GAP

# <tag>, </tag>, <|token|>, [TAG], [/TAG], [tag=x], ◁tag▷, and the fence of a code block
TAG = re.compile(
    r"<(?=[^\s<>])[^<>\n]{0,119}[^\s<>]>|\[/?[A-Z_][A-Z_0-9]{1,40}\]|\[/\w{1,40}\]"
    r"|\[\w{1,40}=[^\[\]\n]{1,60}\]|[◁⟦«【〔《][^◁▷⟦⟧«»【】〔〕《》\n]{1,60}[▷⟧»】〕》]|```\w*"
)
TAGS_BEFORE = re.compile(rf"(?:(?:{TAG.pattern})\s*)+\Z")
TAGS_AFTER = re.compile(rf"(?:\s*(?:{TAG.pattern}))+")
# a word that stands for a tag, such as `functools` or `@call`; not the last word of a sentence
WORD_BEFORE = re.compile(r"(?:^|(?<=\s))(?:\S*[^\s\w.,;!?'\")(-]\S*|[A-Za-z_]\w*(?=\Z))\s*\Z")
WORD_AFTER = re.compile(r"\s*[^\s\w.,;!?'\"(\[{]\S*(?=\s|\Z)")
OBJECT = re.compile(r"\{[^{}]*[\"':=][^{}]*\}")
HTML = re.compile(
    r"</?(?:a|b|br|code|em|h\d|i|li|ol|p|pre|strong|sub|sup|t[dhr]|table|u|ul)\b[^<>]*>"
)


@dataclass(frozen=True)
class Tag:
    """A tag in a text."""

    start: int
    end: int
    text: str


def find_tags(text: str) -> list[Tag]:
    return [Tag(match.start(), match.end(), match[0]) for match in TAG.finditer(text)]


def contains_markup(text: str) -> bool:
    """Whether a text that should be prose still contains tags or an object; HTML is prose."""
    text = HTML.sub("", text)
    return TAG.search(text) is not None or OBJECT.search(text) is not None


def split_markers_before(text: str) -> list[str]:
    """Return the markers that a text ends with, in order."""
    match = TAGS_BEFORE.search(text)
    if match is not None:
        return TAG.findall(match[0])
    word = WORD_BEFORE.search(text)
    return [word[0].strip()] if word is not None and word[0].strip() else []


def split_markers_after(text: str) -> list[str]:
    """Return the markers that a text begins with, in order."""
    match = TAGS_AFTER.match(text)
    if match is not None:
        return TAG.findall(match[0])
    word = WORD_AFTER.match(text)
    return [word[0].strip()] if word is not None else []


def join_markers(markers: list[str]) -> tuple[str, ...]:
    """Return one marker for several that follow each other, with any white space between them."""
    return (GAP.join(markers),) if markers else ()
