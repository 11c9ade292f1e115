"""Texts that are not in quotes: what stands between tags, or between marks of a model's own.

Such a text ends where its closing mark begins, so it cannot hold that mark. A rule for it matches
up to and with the mark. Patterns and formats become part of the regular expression.

A value between tags is read by the tool's schema. Where that allows a text and something else, what
can be read as something else is: such a text must then fit the other schema, so it is left to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from dragoman.constraint.avoiding import avoiding
from dragoman.constraint.inputs.spelling import Between
from dragoman.constraint.inputs.worded import Worded, written
from dragoman.constraint.lark import ANY, Lark, either, pattern, quoted
from dragoman.constraint.schemas.nodes import (
    NULL,
    Anything,
    Array,
    Either,
    Exactly,
    Foreign,
    Node,
    Number,
    Object,
    Text,
)
from dragoman.constraint.values import Writer
from dragoman.parse.tags import CDATA

DAY = r"(?:0[1-9]|[12][0-9]|3[01])"
MONTHS = (
    rf"(?:(?:0[13578]|1[02])-{DAY}|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = rf"[0-9]{{4}}-{MONTHS}"
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
ZONE = r"(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
FORMATS = {
    "date": DATE,
    "time": CLOCK + ZONE,
    "date-time": f"{DATE}T{CLOCK}{ZONE}",
    "duration": r"P(?:[0-9]{1,9}W|[0-9]{1,9}D(?:T[0-9]{1,9}H)?|T[0-9]{1,9}[HMS]|[0-9]{1,9}[YM])",
    "email": rf"[a-zA-Z0-9._%+\-]{{1,64}}@{LABEL}(?:\.{LABEL}){{1,8}}",
    "hostname": rf"{LABEL}(?:\.{LABEL}){{0,3}}",
    "ipv4": rf"{BYTE}(?:\.{BYTE}){{3}}",
    "ipv6": r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::1",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": r"[a-z][a-z0-9+.\-]{1,15}:\/\/[a-zA-Z0-9.\-]{1,253}(?:\/[a-zA-Z0-9._~\-]{0,64}){0,16}",
}
Words: TypeAlias = Text | Exactly | Worded
# a text that begins with one of these letters may be read as a value of this kind
LOOKS = {"object": r"\{", "array": r"\[(", "number": r"\-+.0-9", "boolean": "tTfF"}


def body_of(node: Text) -> str:
    """The regular expression of a text."""
    parts = []
    if node.least or node.most is not None:
        most = "" if node.most is None else node.most
        parts.append(f"/(?s:.{{{node.least},{most}}})/")
    if node.pattern is not None:
        parts.append(f"/{searched(node.pattern)}/")
    if node.format is not None:
        parts.append(f"/{FORMATS[node.format]}/")
    return " & ".join(parts) or ANY


def filled(node: Text) -> bool:
    """Whether a text cannot be empty; what only a pattern could tell is taken for it."""
    return bool(node.least) or node.pattern is not None or node.format is not None


def searched(said: str, *, whole: bool = False) -> str:
    """A pattern that is searched for, as one that matches the whole text; `whole` if it does."""
    options = []
    for option in _options(said):
        front = back = "" if whole else r"(?s:.*)"
        if option.startswith("^"):
            option, front = option[1:], ""
        if re.search(r"(?<!\\)(?:\\\\)*\$$", option):
            option, back = option[:-1], ""
        options.append(f"{front}(?:{option}){back}")
    slashed = re.sub(r"(?s)(\\.)|/", lambda found: found[1] or r"\/", "|".join(options))
    return slashed.replace("\n", r"\n")


def _options(said: str) -> list[str]:
    """The parts of a pattern between bars that stand in no bracket."""
    found, depth, start = [], 0, 0
    for match in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]", said, re.DOTALL):
        letter = match.group()
        depth += (letter == "(") - (letter == ")")
        if letter == "|" and depth == 0:
            found.append(said[start : match.start()])
            start = match.end()
    return [*found, said[start:]]


def ended_by(
    lark: Lark,
    body: str,
    closes: Sequence[str],
    banned: Iterable[str] = (),
    *,
    some: bool = False,
) -> str:
    """A text up to the first of its closing marks, and the mark; none of `banned` is in it.

    With `some` it is not empty.
    """
    letters = [mark for mark in closes if lark.in_letters(mark)]
    tokens = [mark for mark in closes if not lark.in_letters(mark)]
    counted = body != ANY
    # a text ends at the first of its marks, even where it is too short then
    body += avoiding((*banned, *tokens, *(letters if counted else ())), counted=counted)
    found = []
    if letters:
        inner = lark.terminal(body, "TEXT")
        found.append(lark.lazy(f"/(?:{'|'.join(map(pattern, letters))})/", inner))
    if tokens:
        body += "" if counted else avoiding(letters, counted=False)
        inner = lark.terminal(f"{body} & /(?s:.+)/", "TEXT")
        found.append(f"{inner}{'' if some else '?'} {lark.marks(tokens)}")
    return either(found)


class Tags:
    """Values between tags, for one call."""

    def __init__(
        self, writer: Writer, trim: str, banned: Sequence[str], *, cdata: bool = False
    ) -> None:
        self._writer = writer
        self._cdata = cdata
        self._lark = writer.lark
        self._newlines = trim == "newline"
        self._banned = (*banned, CDATA[0]) if cdata else banned

    def split(self, node: Node) -> tuple[list[Words], list[Node]]:
        """What of a node is text, and what is not."""
        texts: list[Words] = []
        others: list[Node] = []
        queue, seen = [node], set[Node]()
        while queue:
            one = self._writer.resolved(queue.pop(0))
            if one in seen:
                continue
            seen.add(one)
            match one:
                case Either():
                    queue += one.options
                case Worded() if one.pattern is not None:
                    texts.append(Text(pattern=one.pattern))
                case Text() | Worded():
                    texts.append(one)
                case Anything():
                    texts.append(Text())
                case Exactly():
                    said = tuple(value for value in one.values if value.startswith('"'))
                    rest = tuple(value for value in one.values if not value.startswith('"'))
                    texts += [Exactly(said)] if said else []
                    others += [Exactly(rest)] if rest else []
                case Foreign() if _may_be_text(one):
                    texts.append(Text())
                case _:
                    others.append(one)
        return texts, others

    def value(self, node: Node, closes: Sequence[str]) -> str:
        """A value and what closes it."""
        texts, others = self.split(node)
        found = [self.text(one, closes, others) for one in texts]
        if self._cdata:
            found += [self._in_cdata(one, closes) for one in texts]
        if others:
            found.append(self.other(others, closes))
        return either(found)

    def text(self, node: Words, closes: Sequence[str], others: Sequence[Node] = ()) -> str:
        if isinstance(node, Worded):
            return self._worded(node, closes)
        if isinstance(node, Exactly):
            said = either(quoted(json.loads(value)) for value in node.values)
            line = '"\\n"? ' if self._newlines else ""
            return f"{line}{said} {line}{self._lark.marks(closes)}"
        body, taken = body_of(node), "".join(looks(others))
        body += rf" & /\s*(?:[^\s{taken}](?s:.*))?/" if taken else ""
        if not self._newlines or body == ANY:
            return ended_by(self._lark, body, closes, self._banned, some=filled(node))
        body += r" & /(?:[^\n](?:(?s:.*)[^\n])?)?/"
        every = [f"\n{mark}" for mark in closes] + list(closes)
        inner = ended_by(self._lark, body, every, self._banned, some=filled(node))
        return f'"\\n"? {inner}'

    def _worded(self, node: Worded, closes: Sequence[str]) -> str:
        """A text that keeps to a grammar."""
        marks = [mark for mark in (*closes, *self._banned) if self._lark.in_letters(mark)]
        breaks = "\n" if self._newlines else ""
        said = written(self._lark, node, Between(tuple(dict.fromkeys(marks)), breaks))
        return f"{said} {self._lark.marks(closes)}"

    def _in_cdata(self, node: Words, closes: Sequence[str]) -> str:
        """A text in a section of its own, which may hold every mark but the section's end."""
        start, end = CDATA
        if isinstance(node, Exactly):
            said = either(quoted(json.loads(value)) for value in node.values)
            inner = f"{said} {quoted(end)}"
        elif isinstance(node, Worded):
            inner = f"{written(self._lark, node, Between((end,)))} {quoted(end)}"
        else:
            inner = ended_by(self._lark, body_of(node), (end,), some=filled(node))
        line = '"\\n"?' if self._newlines else ""
        return f"{line} {quoted(start)} {inner} {self._lark.marks(closes)}"

    def other(self, nodes: Sequence[Node], closes: Sequence[str]) -> str:
        """A value that is written as JSON."""
        space = self._lark.gap()
        said = either(map(self._writer.value, nodes))
        return f"{space} {said} {space} {self._lark.marks(closes)}"


def looks(others: Sequence[Node]) -> list[str]:
    """How a text may not begin beside these: so that it is not taken for one of them.

    Where any value of the kind is allowed, it does not matter which of the two a text is taken for.
    """
    found = []
    for node in others:
        match node:
            case Object() if node != Object():
                found.append(LOOKS["object"])
            case Array() if node != Array():
                found.append(LOOKS["array"])
            case Number() if node != Number():
                found.append(LOOKS["number"])
            case Foreign():
                found += [LOOKS["object"], LOOKS["array"], LOOKS["number"]]
            case Exactly() if node != NULL:
                found += _looks_of(node.values)
    return list(dict.fromkeys(found))


def _looks_of(values: Sequence[str]) -> list[str]:
    found = []
    for value in values:
        if value in ("true", "false") and not {"true", "false"} <= set(values):
            found.append(LOOKS["boolean"])
        elif value[0] in "{[":
            found.append(LOOKS["object" if value[0] == "{" else "array"])
        elif value[0] in "-0123456789":
            found.append(LOOKS["number"])
    return found


def _may_be_text(node: Foreign) -> bool:
    kinds = json.loads(node.schema).get("type", ["string"])
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)
