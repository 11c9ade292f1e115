"""Prevents text of clients from becoming special tokens.

A template mixes its own special tokens (`<|im_end|>`) with the client's text, and once rendered the
two look the same. So before rendering, every text of the client is *broken*: wherever it would be
read as a special token, a code point that no text contains (`BREAK`) is inserted. The template then
renders as usual, and afterwards only the special tokens that the template wrote are intact. The
code point is removed before the text is encoded, so the model reads what the client wrote, as
ordinary tokens.

A special token can also form where two texts meet. A client's text that ends like the beginning of
a special token, or begins like the end of one, is broken there too; also after white space is
trimmed, and at the separators at which this template splits texts. The remaining case is a template
that puts a name into its own brackets (`<` + name + `>`): if such a special token shows up in the
prompt and the client sent a text that could be the middle of it, the conversation is rendered again
with that text broken.

Some texts are partly our own (tools, for a template that cannot write them). Those are `MixedText`:
the client's parts are broken and separated from ours, and special tokens in our parts stay intact.

Tokens of a single character cannot be broken and are never read as special here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from typing import TypeAlias

from dragoman.types import Json

BREAK = "\ufdd0"
PROMPT_END = "\ufdd1"  # where a prompt ends that has `continue_final_message`
POSITION = "\ufdd2"  # marks a turn that will be replayed, see `turn_markers`
MEDIA = "\ufdd3"  # around the digest of a picture or sound, see `media_markers`
VISIBLE_BREAK = "\u200b"  # a zero-width space, for prompts that an engine reads as text

_CODE_POINTS = re.compile(f"[{BREAK}{PROMPT_END}{POSITION}{MEDIA}]")
# a break as it is, and as `tojson` and `repr` write it
_WRITTEN_BREAK = re.compile(rf"{BREAK}|\\[uU][fF][dD][dD]0")
_ESCAPE = re.compile(r"\\(?=[uU][fF][dD][dD][023])")

SLICE = 1 << 16  # characters that are searched at once
WRITTEN_LENGTH = 6  # characters of a written break
MAX_MATCH = 1 << 12  # characters of a special token or a separator
# Words of the format of messages, tools and schemas: never changed as keys, roles or types
_FORMAT_WORDS = (
    "additionalProperties allOf anyOf arguments array assistant boolean const content default "
    "description developer enum format function id integer items json maxItems maximum minItems "
    "minimum name null number object oneOf parameters pattern properties reasoning "
    "reasoning_content required return role string strict system text thinking title tool "
    "tool_call_id tool_calls type user"
)
FORMAT_WORDS = frozenset(_FORMAT_WORDS.split())
FORMAT_KEYS = frozenset({"role", "type"})  # keys whose values are format words, too


# letters that become a plain letter in another case, like the long s
FOLDING_LETTERS = (
    "\u00df\u0130\u0131\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)

TrieNode: TypeAlias = "dict[str, TrieNode]"  # by character; an empty key ends a word


def iterate_matches(pattern: re.Pattern[str], text: str, reach: int) -> Iterator[re.Match[str]]:
    """Yield the matches in a text, of which each looks at `reach` characters at most.

    A search holds the interpreter from beginning to end. So a long text is searched slice by slice,
    and other threads get to run in between.
    """
    position = 0
    for start in range(0, len(text), SLICE):
        end = start + SLICE
        for match in pattern.finditer(text, max(position, start), end + reach):
            if match.start() >= end:
                break
            position = match.end()
            yield match


def substitute(
    pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], text: str, reach: int
) -> str:
    """Return the result of `pattern.sub`, computed slice by slice."""
    if len(text) <= SLICE:
        return pattern.sub(replace, text)
    parts: list[str] = []
    position = 0
    for match in iterate_matches(pattern, text, reach):
        parts += (text[position : match.start()], replace(match))
        position = match.end()
    return "".join([*parts, text[position:]]) if parts else text


def remove_breaks(text: str) -> str:
    return substitute(_WRITTEN_BREAK, _drop, text, WRITTEN_LENGTH)


def _drop(match: re.Match[str]) -> str:
    return ""


def make_trie_pattern(words: Iterable[str]) -> str:
    """Return a pattern that matches the longest of the words, however many there are."""
    tree: TrieNode = {}
    for word in words:
        node = tree
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _write_node_pattern(tree)


def _write_node_pattern(node: TrieNode) -> str:
    single = "".join(re.escape(key) for key, rest in node.items() if key and rest.keys() == {""})
    options = [
        _write_chain_pattern(key, rest) for key, rest in node.items() if key and rest.keys() != {""}
    ]
    if single:
        options.append(f"[{single}]")
    if not options:
        return ""
    pattern = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
    return f"(?:{pattern})?" if "" in node else pattern


def _write_chain_pattern(char: str, node: TrieNode) -> str:
    """Return the pattern of characters without alternatives, without a group for each of them."""
    chars = [char]
    while len(node) == 1 and "" not in node:
        [(char, node)] = node.items()
        chars.append(char)
    return re.escape("".join(chars)) + _write_node_pattern(node)


class MixedText(str):
    """A text that is partly our own: `parts` has each text and whether it is ours."""

    __slots__ = ("parts",)
    parts: tuple[tuple[str, bool], ...]

    def __new__(cls, parts: Iterable[tuple[str, bool]]) -> MixedText:
        """Join neighbouring parts of one kind, since a special token may extend across them."""
        runs = groupby((part for part in parts if part[0]), lambda part: part[1])
        joined = tuple(("".join(text for text, _ in run), ours) for ours, run in runs)
        mixed = super().__new__(cls, "".join(text for text, _ in joined))
        mixed.parts = joined
        return mixed


def make_trusted_text(text: str) -> MixedText:
    """Return a text of our own, in which special tokens are read as such."""
    return MixedText([(text, True)])


def join_texts(texts: Iterable[str], separator: str = "") -> str:
    """Join texts; parts that are our own stay marked as ours."""
    texts = list(texts)
    if not any(isinstance(text, MixedText) for text in texts):
        return separator.join(texts)
    parts: list[tuple[str, bool]] = []
    for text in texts:
        parts += [(separator, False)] if parts else []
        parts += text.parts if isinstance(text, MixedText) else [(text, False)]
    return MixedText(parts)


class MarkedText:
    """Copies the client's values of one rendering with breaks in their texts, and measures them."""

    def __init__(self, guard: SpecialTokenGuard, middles: Collection[str] = ()) -> None:
        self._guard = guard
        self._middles = middles
        self.size = 0  # characters of all texts
        self.has_changed = False
        self.known_sizes: dict[int, int] = {}  # of the copied containers, by their `id`

    def mark_tree(self, value: Json, is_format: bool = False) -> Json:
        """Return a copy of the value in which no text can be read as a special token."""
        return self._copy(value, is_format)[0]

    def _copy(self, value: Json, is_format: bool) -> tuple[Json, int]:
        if isinstance(value, str):
            unchanged = is_format and value in FORMAT_WORDS
            return (value if unchanged else self.mark_text(value)), len(value) + 4
        if isinstance(value, dict):
            return self._copy_dict(value)
        if isinstance(value, (list, tuple)):
            pairs = [self._copy(item, is_format) for item in value]
            return self._measure([item for item, _ in pairs], sum(size for _, size in pairs))
        return value, 16

    def _copy_dict(self, value: dict[Json, Json]) -> tuple[Json, int]:
        copy: dict[Json, Json] = {}
        total = 0
        for key, item in value.items():
            unchanged = key in FORMAT_WORDS or not isinstance(key, str)
            name = key if unchanged else self.mark_text(key)
            copy[name], size = self._copy(item, key in FORMAT_KEYS)
            total += size + len(str(name)) + 4
        return self._measure(copy, total)

    def _measure(self, copy: Json, size: int) -> tuple[Json, int]:
        size += 2 * len(copy)
        self.known_sizes[id(copy)] = size
        return copy, size

    def mark_text(self, text: str) -> str:
        self.size += len(text)
        broken = self._guard.break_tokens(text)
        if self._middles and text.strip() in self._middles:
            broken = BREAK + broken
        self.has_changed |= broken is not text
        return broken


class SpecialTokenGuard:
    """Breaks special tokens in the texts of clients, and finds those that a template wrote."""

    def __init__(
        self,
        specials: Iterable[str],
        literals: Iterable[str] = (),
        separators: Iterable[str] = (),
        ignore_case: bool = False,
        placeholders: Iterable[str] = (),
    ) -> None:
        """`literals` are texts that the template writes, `separators` those that it splits at.

        `placeholders` are texts that it writes for media; no client's text is taken for one.
        """
        specials = {text for text in specials if len(text) > 1}
        tokens = specials | {text for text in placeholders if len(text) > 1}
        self._ignore_case = ignore_case
        folded = {text.casefold() for text in tokens} if ignore_case else tokens
        self._longest = max(map(len, tokens), default=0)
        self._heads = {token[:end] for token in folded for end in range(1, len(token))}
        self._tails = {token[start:] for token in folded for start in range(1, len(token))}
        self._first_chars = sorted({token[0] for token in folded})
        self._last_chars = sorted({token[-1] for token in folded})
        self._break_patterns = list(_make_break_patterns(tokens, ignore_case))
        self._tokens = re.compile(f"({make_trie_pattern(specials)})") if specials else None
        self._specials = specials
        self._separators = (
            re.compile(f"({make_trie_pattern(separators)})") if any(separators) else None
        )
        self._composable = frozenset(_find_composable(tokens, literals))

    def break_tokens(self, text: str) -> str:
        """Return the text with breaks, so that no special token is read in it or at its ends."""
        if isinstance(text, MixedText):
            return BREAK.join(
                part if ours else self.break_tokens(part) for part, ours in text.parts
            )
        if BREAK in text or PROMPT_END in text or POSITION in text or MEDIA in text:
            text = substitute(_CODE_POINTS, _drop, text, 1)
        if "\\" in text:
            text = substitute(_ESCAPE, _append_break, text, WRITTEN_LENGTH)
        for pattern in self._break_patterns:
            text = substitute(pattern, _append_break, text, self._longest)
        if not self._longest:
            return text
        if self._separators is None:
            return self._break_ends(text)
        return "".join(map(self._break_ends, _split(self._separators, text)))

    def _break_ends(self, text: str) -> str:
        """Break a text that begins like the end of a special token or ends like the beginning."""
        trimmed = text.strip()
        if not trimmed:
            return text
        start = text.index(trimmed[0])
        whole, left_trimmed, right_trimmed = map(
            self._fold_case, (text, text[start:], text.rstrip())
        )
        if self._starts_with_tail(left_trimmed):
            text = text[:start] + BREAK + text[start:]
        if start and self._starts_with_tail(whole):
            text = BREAK + text
        end = len(text.rstrip())
        if end < len(text) and self._ends_with_head(whole):
            text += BREAK
        if self._ends_with_head(right_trimmed):
            text = text[:end] + BREAK + text[end:]
        return text

    def _fold_case(self, text: str) -> str:
        return text.casefold() if self._ignore_case else text

    def _starts_with_tail(self, text: str) -> bool:
        beginning = text[: self._longest]
        for char in self._last_chars:
            index = beginning.find(char)
            while index >= 0:
                if beginning[: index + 1] in self._tails:
                    return True
                index = beginning.find(char, index + 1)
        return False

    def _ends_with_head(self, text: str) -> bool:
        ending = text[-self._longest :]
        for char in self._first_chars:
            index = ending.rfind(char)
            while index >= 0:
                if ending[index:] in self._heads:
                    return True
                index = ending.rfind(char, 0, index)
        return False

    def break_visibly(self, text: str) -> str:
        """Return a plain text so that no special token is spelled in it, with a character more.

        This is for engines that read prompts with media as text, in which breaks mean nothing.
        """
        if self._tokens is None or self._tokens.search(text) is None:
            return text
        for pattern in _make_break_patterns(self._specials, ignore_case=False):
            text = substitute(pattern, _append_visible_break, text, self._longest)
        return text

    def split(self, text: str) -> list[str]:
        """Split a text into plain text and special tokens, alternately; the ends are plain text."""
        return [text] if self._tokens is None else _split(self._tokens, text)

    def find_middles(self, pieces: list[str], values: Json) -> frozenset[str]:
        """Return the client's texts that could be the middle of a special token in the prompt."""
        composed = self._composable.intersection(pieces[1::2]) if self._composable else frozenset()
        if not composed:
            return frozenset()
        max_length = self._longest + 32
        short = {text.strip() for text in iterate_texts(values) if len(text) < max_length}
        return frozenset(
            text for text in short if text and any(text in token for token in composed)
        )


def iterate_texts(value: Json) -> Iterator[str]:
    """Yield every text in a value, without the words of the format."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str) and key not in FORMAT_WORDS:
                yield key
            if not (key in FORMAT_KEYS and isinstance(item, str) and item in FORMAT_WORDS):
                yield from iterate_texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iterate_texts(item)


def _append_break(match: re.Match[str]) -> str:
    return match[0] + BREAK


def _append_visible_break(match: re.Match[str]) -> str:
    return match[0] + VISIBLE_BREAK


def _split(pattern: re.Pattern[str], text: str) -> list[str]:
    """Split a text into what is between the matches and the matches, alternately."""
    if len(text) <= SLICE:
        return pattern.split(text)
    pieces: list[str] = []
    start = 0
    for match in iterate_matches(pattern, text, MAX_MATCH):
        pieces += (text[start : match.start()], match[0])
        start = match.end()
    return [*pieces, text[start:]]


def _make_break_patterns(tokens: Collection[str], ignore_case: bool) -> Iterator[re.Pattern[str]]:
    """Yield patterns to append a break to: one per first character, which is fast to search."""
    rests: dict[str, list[str]] = {}
    for token in tokens:
        rests.setdefault(token[0], []).append(token[1:])
    for char, rest in sorted(rests.items()):
        pattern = f"{re.escape(char)}(?={make_trie_pattern(rest)})"
        yield re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    if ignore_case:
        yield re.compile(f"[{FOLDING_LETTERS}]")


def _find_composable(tokens: Iterable[str], literals: Iterable[str]) -> Iterator[str]:
    """Yield the special tokens whose beginning and end the template can write by itself."""
    longest = max(map(len, tokens), default=0)
    endings, beginnings = set(), set()
    for text in literals:
        for size in range(1, min(len(text), longest) + 1):
            endings.add(text[-size:])
            beginnings.add(text[:size])
    for token in tokens:
        starts = [end for end in range(1, len(token) - 1) if token[:end] in endings]
        ends = [start for start in range(2, len(token)) if token[start:] in beginnings]
        if starts and ends and min(starts) < max(ends):
            yield token
