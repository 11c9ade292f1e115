"""Keeps what a client says from turning into special tokens.

A template mixes its own marks (`<|im_end|>`) with the client's text, and once rendered the two look
the same. So before rendering every text of the client's is *broken*: wherever a mark would be read
in it, a code point that no text has (`MARK`) is put inside. The template then works as always, and
afterwards exactly those marks are whole that the template wrote. The code point is taken out again
before the text becomes tokens, so the model reads what the client wrote, as ordinary tokens.

A mark can also form where two texts meet. A client's text that ends like the beginning of a mark,
or begins like the end of one, is broken there too; also after white space is trimmed, and at the
places where this template is known to cut texts. What remains is a template that wraps a name in
its own brackets (`<` + name + `>`): where such a mark shows up in the prompt and the client sent a
text that could be the middle of it, the conversation is rendered again with that text broken.

Some texts are partly our own (tools, for a template without a place for them). Those are `Mixed`:
the client's parts are broken and kept apart from ours, and the marks in ours are left whole.

Tokens of a single character cannot be broken and are never read as special here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any

BREAK = "\ufdd0"
PROMPT_END = "\ufdd1"  # where a prompt is to end, see `continue_final_message`
POSITION = "\ufdd2"  # where a remembered turn stands, see `recalled`

_OURS = re.compile(f"[{BREAK}{PROMPT_END}{POSITION}]")
# The same as it comes out of `tojson` and of Python's own way to write texts
_WRITTEN = re.compile(rf"{BREAK}|\\[uU][fF][dD][dD]0")
_LITERAL = re.compile(r"\\(?=[uU][fF][dD][dD][02])")

# Words that make up the frame of messages, tools and schemas: never touched as keys or kinds
_FRAME = (
    "additionalProperties allOf anyOf arguments array assistant boolean const content default "
    "description developer enum format function id integer items json maxItems maximum minItems "
    "minimum name null number object oneOf parameters pattern properties reasoning "
    "reasoning_content required return role string strict system text thinking title tool "
    "tool_call_id tool_calls type user"
)
FRAME = frozenset(_FRAME.split())
KINDS = frozenset({"role", "type"})


# letters that become a plain one in another case, like the long s
CASE_CHANGING = (
    "\u00df\u0130\u0131\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)


def remove_breaks(text: str) -> str:
    """Without the code points that we use ourselves."""
    return _WRITTEN.sub("", text)


def trie_pattern(words: Iterable[str]) -> str:
    """A pattern that matches the longest of the words, however many there are."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(node: dict[str, Any]) -> str:
    single = "".join(re.escape(key) for key, rest in node.items() if key and rest.keys() == {""})
    options = [_chain(key, rest) for key, rest in node.items() if key and rest.keys() != {""}] + (
        [f"[{single}]"] if single else []
    )
    if not options:
        return ""
    joined = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
    return f"(?:{joined})?" if "" in node else joined


def _chain(letter: str, node: dict[str, Any]) -> str:
    """Letters that only go one way, without a group for each."""
    letters = [letter]
    while len(node) == 1 and "" not in node:
        [(letter, node)] = node.items()
        letters.append(letter)
    return re.escape("".join(letters)) + _pattern(node)


class MixedText(str):
    """A text with parts of our own; each part is a text and whether it is ours."""

    __slots__ = ("parts",)
    parts: tuple[tuple[str, bool], ...]

    def __new__(cls, parts: Iterable[tuple[str, bool]]) -> MixedText:
        """Parts of one side in a row become one: a mark may stand across them."""
        runs = groupby((part for part in parts if part[0]), lambda part: part[1])
        whole = tuple(("".join(text for text, _ in run), ours) for ours, run in runs)
        made = super().__new__(cls, "".join(text for text, _ in whole))
        made.parts = whole
        return made


def trust_text(text: str) -> MixedText:
    """A text in which special tokens are read as such."""
    return MixedText([(text, True)])


def join_texts(texts: Iterable[str], between: str = "") -> str:
    """One text; what is ours in it stays ours."""
    texts = list(texts)
    if not any(isinstance(text, MixedText) for text in texts):
        return between.join(texts)
    parts: list[tuple[str, bool]] = []
    for text in texts:
        parts += [(between, False)] if parts else []
        parts += text.parts if isinstance(text, MixedText) else [(text, False)]
    return MixedText(parts)


class MarkedText:
    """The client's values of one rendering, broken, with their sizes."""

    def __init__(self, guard: SpecialTokenGuard, middles: Collection[str] = ()) -> None:
        self._guard = guard
        self._middles = middles
        self.size = 0
        self.changed = False
        self.known_sizes: dict[int, int] = {}

    def mark_tree(self, value: Any, kind: bool = False) -> Any:
        """A copy of the value in which no text can be read as a mark."""
        return self._copy(value, kind)[0]

    def _copy(self, value: Any, kind: bool) -> tuple[Any, int]:
        if isinstance(value, str):
            return (value if kind and value in FRAME else self.mark_text(value)), len(value) + 4
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, (list, tuple)):
            pairs = [self._copy(item, kind) for item in value]
            made: Any = [item for item, _ in pairs]
            return self._keep(made, sum(size for _, size in pairs))
        return value, 16

    def _dict(self, value: dict[Any, Any]) -> tuple[Any, int]:
        made: dict[Any, Any] = {}
        total = 0
        for key, item in value.items():
            name = key if key in FRAME or not isinstance(key, str) else self.mark_text(key)
            made[name], size = self._copy(item, key in KINDS)
            total += size + len(str(name)) + 4
        return self._keep(made, total)

    def _keep(self, made: Any, size: int) -> tuple[Any, int]:
        size += 2 * len(made)
        self.known_sizes[id(made)] = size
        return made, size

    def mark_text(self, text: str) -> str:
        self.size += len(text)
        broken = self._guard.break_tokens(text)
        if self._middles and text.strip() in self._middles:
            broken = BREAK + broken
        self.changed |= broken is not text
        return broken


class SpecialTokenGuard:
    """Breaks marks in a client's texts, and finds those that a template wrote."""

    def __init__(
        self,
        specials: Iterable[str],
        literals: Iterable[str] = (),
        cuts: Iterable[str] = (),
        folds: bool = False,
    ) -> None:
        marks = {text for text in specials if len(text) > 1}
        self._fold = folds
        same = {text.casefold() for text in marks} if folds else marks
        self._longest = max(map(len, marks), default=0)
        self._starts = {mark[:at] for mark in same for at in range(1, len(mark))}
        self._ends = {mark[at:] for mark in same for at in range(1, len(mark))}
        self._firsts = sorted({mark[0] for mark in same})
        self._lasts = sorted({mark[-1] for mark in same})
        self._inside = list(_breaking(marks, folds))
        self._whole = re.compile(f"({trie_pattern(marks)})") if marks else None
        self._cuts = re.compile(f"({trie_pattern(cuts)})") if any(cuts) else None
        self._composed = frozenset(_composable(marks, literals))

    def break_tokens(self, text: str) -> str:
        """The same text, but no mark can be read in it, nor where it meets another."""
        if isinstance(text, MixedText):
            return BREAK.join(part if own else self.break_tokens(part) for part, own in text.parts)
        if BREAK in text or PROMPT_END in text or POSITION in text:
            text = _OURS.sub("", text)
        if "\\" in text:
            text = _LITERAL.sub(_break, text)
        for pattern in self._inside:
            text = pattern.sub(_break, text)
        if not self._longest:
            return text
        if self._cuts is not None and self._cuts.search(text):
            return "".join(map(self._edges, self._cuts.split(text)))
        return self._edges(text)

    def _edges(self, text: str) -> str:
        """Break a text where it begins like the end of a mark, or ends like the beginning."""
        bare = text.strip()
        if not bare:
            return text
        at = text.index(bare[0])
        whole, led, ended = map(self._folded, (text, text[at:], text.rstrip()))
        if self._begins(led):
            text = text[:at] + BREAK + text[at:]
        if at and self._begins(whole):
            text = BREAK + text
        at = len(text.rstrip())
        if at < len(text) and self._finishes(whole):
            text += BREAK
        if self._finishes(ended):
            text = text[:at] + BREAK + text[at:]
        return text

    def _folded(self, text: str) -> str:
        return text.casefold() if self._fold else text

    def _begins(self, text: str) -> bool:
        head = text[: self._longest]
        for last in self._lasts:
            at = head.find(last)
            while at >= 0:
                if head[: at + 1] in self._ends:
                    return True
                at = head.find(last, at + 1)
        return False

    def _finishes(self, text: str) -> bool:
        tail = text[-self._longest :]
        for first in self._firsts:
            at = tail.rfind(first)
            while at >= 0:
                if tail[at:] in self._starts:
                    return True
                at = tail.rfind(first, 0, at)
        return False

    def split(self, text: str) -> list[str]:
        """Plain text and marks in turn, plain text first and last."""
        return [text] if self._whole is None else self._whole.split(text)

    def find_middles(self, pieces: list[str], values: Any) -> frozenset[str]:
        """Texts of the client's that could be the middle of a mark in the rendered prompt."""
        found = self._composed.intersection(pieces[1::2]) if self._composed else frozenset()
        if not found:
            return frozenset()
        short = {text.strip() for text in iterate_texts(values) if len(text) < self._longest + 32}
        return frozenset(text for text in short if text and any(text in mark for mark in found))


def iterate_texts(value: Any) -> Iterator[str]:
    """Every text in a value; not the words of the frame around it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str) and key not in FRAME:
                yield key
            if not (key in KINDS and isinstance(item, str) and item in FRAME):
                yield from iterate_texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from iterate_texts(item)


def _break(match: re.Match[str]) -> str:
    return match[0] + BREAK


def _breaking(marks: Collection[str], folds: bool) -> Iterator[re.Pattern[str]]:
    """What to put a code point behind. One pattern for each first letter: that is searched fast."""
    rests: dict[str, list[str]] = {}
    for mark in marks:
        rests.setdefault(mark[0], []).append(mark[1:])
    for first, rest in sorted(rests.items()):
        pattern = f"{re.escape(first)}(?={trie_pattern(rest)})"
        yield re.compile(pattern, re.IGNORECASE if folds else 0)
    if folds:
        yield re.compile(f"[{CASE_CHANGING}]")


def _composable(marks: Iterable[str], literals: Iterable[str]) -> Iterator[str]:
    """Marks of which the template can write the beginning and the end by itself."""
    longest = max(map(len, marks), default=0)
    tails, heads = set(), set()
    for text in literals:
        for size in range(1, min(len(text), longest) + 1):
            tails.add(text[-size:])
            heads.add(text[:size])
    for mark in marks:
        begins = [at for at in range(1, len(mark) - 1) if mark[:at] in tails]
        finishes = [at for at in range(2, len(mark)) if mark[at:] in heads]
        if begins and finishes and min(begins) < max(finishes):
            yield mark
