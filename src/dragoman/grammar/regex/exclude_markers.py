"""Regular expressions for text that contains none of some markers.

A complement (`& ~/.../`) is the simple way to write one. But llguidance detects that a complement
has become unsatisfiable only by trying everything that may follow, and if the length is bounded too
(`maxLength`) that exceeds its limits, and the answer ends in an error. So if the length is bounded,
the expression enumerates what is allowed: the text is split into segments that start with the first
character of a marker, and each segment deviates from every marker before its end. Markers are
shortened for this, as the expression would grow too large; it excludes slightly more than needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from dragoman.grammar.regex.escape import escape_regex, marker_to_regex, prefixes_to_regex
from dragoman.output.spec import GAP

# what may follow, by next character; contains `MARKER_END` where a marker is complete
MarkerTrie: TypeAlias = "dict[str, MarkerTrie]"
MARKER_END = ""
MAX_MARKER_CHARS = 8
SPELLED_DIFFERENTLY = re.compile(f"[{GAP}\n]")  # the parts of a marker that have several spellings
MAX_WORD_MARKER_CHARS = 24  # of a marker that starts with a letter


def exclude_markers(markers: Iterable[str], *, length_bounded: bool) -> str:
    """Return what to append to a terminal so that its text contains none of these markers."""
    distinct = dict.fromkeys(markers)
    minimal = [
        marker
        for marker in distinct
        if not any(other in marker for other in distinct if other != marker)
    ]
    if not minimal:
        return ""
    if not length_bounded:
        return _exclude_by_complement(minimal)
    return "".join(f" & /{regex}/" for regex in write_marker_free_regexes(minimal))


def exclude_partial_markers(markers: Iterable[str]) -> str:
    """Exclude markers, and at the end also their prefixes, which later text could complete."""
    starts = [marker.split(GAP)[0] for marker in markers]
    if not starts:
        return ""
    prefixes = "|".join(prefixes_to_regex(start[:-1]) for start in starts if start[1:])
    return _exclude_by_complement(starts) + (f" & ~/(?s:.*)(?:{prefixes})/" if prefixes else "")


def _exclude_by_complement(markers: Sequence[str]) -> str:
    return rf" & /(?s:.*)/ & ~/(?s:.*)(?:{'|'.join(map(marker_to_regex, markers))})(?s:.*)/"


def write_marker_free_regexes(markers: Iterable[str]) -> list[str]:
    """Return regular expressions; text that matches all of them contains none of the markers."""
    tries: dict[str, MarkerTrie] = {}
    for marker in markers:
        first = marker[0]
        length = MAX_WORD_MARKER_CHARS if first.isalpha() else MAX_MARKER_CHARS
        rest = SPELLED_DIFFERENTLY.split(marker[1:length])[0].split(first)[0]
        trie = tries.setdefault(first, {})
        for char in rest:
            trie = trie.setdefault(char, {})
        trie[MARKER_END] = {}
    return [_write_segments_regex(first, trie) for first, trie in tries.items()]


def _write_segments_regex(first: str, trie: MarkerTrie) -> str:
    free = f"[^{_escape_in_class(first)}]*"
    if MARKER_END in trie:
        return free
    return f"{free}(?:{escape_regex(first)}{_write_rest_of_segment(first, trie)})*"


def _write_rest_of_segment(first: str, trie: MarkerTrie) -> str:
    """Match the rest of a segment: it deviates from the markers, or the next segment starts."""
    expected = "".join(map(_escape_in_class, (first, *trie)))
    alternatives = [f"[^{expected}][^{_escape_in_class(first)}]*"]
    alternatives += [
        f"{escape_regex(char)}{_write_rest_of_segment(first, rest)}"
        for char, rest in trie.items()
        if MARKER_END not in rest
    ]
    return f"(?:{'|'.join(alternatives)})?"


def _escape_in_class(char: str) -> str:
    return r"\^" if char == "^" else escape_regex(char)
