"""Calls as rules of a grammar, written from the entry that the parser reads them by.

A format's entry says which marks stand where; here they are put in a row, with the names of the
tools and their arguments in between. Of what a reader forgives, little is allowed to a writer: a
call is written as the format's models write it, closed where the format's example closes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from dragoman.errors import Unsupported
from dragoman.grammar.lark_builder import SPACES, Lark, either, escaped, pattern, quoted
from dragoman.grammar.schema.nodes import Object
from dragoman.grammar.writer.arguments import elements, keywords, parameters
from dragoman.grammar.writer.json_values import Writer
from dragoman.grammar.writer.python_values import BareWriter, PythonWriter
from dragoman.grammar.writer.sequences import sequence
from dragoman.grammar.writer.tool_names import Offer, check_name, objects_of, worded
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

LONGEST = 100  # letters of a name that is told from text letter by letter
WEAK = re.compile(r"`{3}\w*\s*|\w+")  # marks that stand in many a text that is no call
JOINT = rf"/{SPACES}[,;]{SPACES}|[ \t\r\n]{{1,48}}/"  # between objects that follow each other
STRING = r"/\"[^\"\\\x00-\x1f]{0,64}\"/"


@dataclass(frozen=True)
class Opening:
    """Where free text turns into calls."""

    mark: str
    follow: str  # everything from there to the end of the calls


@dataclass(frozen=True)
class Weak:
    """What only looks like the start of a call: the name that follows it decides."""

    look: str  # a regular expression
    ends: str  # another, of what ends the name
    names: tuple[tuple[str, str], ...]  # how a name is written, and the rest of the call after it
    gap: str = ""  # what may stand before a name and after it


class Calls:
    """The calls that some tools allow in one format."""

    def __init__(
        self, lark: Lark, tools: ToolFormat, offers: Sequence[Offer], *, parallel: bool
    ) -> None:
        self.lark = lark
        self._format = tools
        self._offers = offers
        self._parallel = parallel
        self._writers: dict[tuple[CallBody, str], Writer] = {}
        self._plain = tuple(body for body in tools.bodies if isinstance(body, JsonObjects))
        self._other = tuple(body for body in tools.bodies if not isinstance(body, JsonObjects))
        for offer in offers:
            check_name(tools, offer)

    # what answers are made of

    def forced(self) -> str:
        """Calls from their very beginning, with nothing before them."""
        tools, space = self._format, self.lark.gap()
        found = []
        opens = tools.section.open
        strong = [m for m in opens if not _weak(m, tools) or tools.example.startswith(m)]
        if strong:
            found.append(f"{self.lark.marks(strong)} {self.section(self._offers)}")
        elif tools.call.open:
            found.append(f"{self.lark.marks(tools.call.open)} {self._call(self._offers)}")
        block = either(found) if found else ""
        if block and self._parallel:
            block = f"{block} ({space} {block})* {space}"
        bare = [self._bare()] if tools.unmarked_starts or tools.unmarked_at_start else []
        return either([*([self.lark.rule(block, "calls")] if block else []), *bare])

    @cached_property
    def openings(self) -> list[Opening]:
        """Where calls begin in free text."""
        tools = self._format
        strong = [mark for mark in tools.section.open if not _weak(mark, tools)]
        found = [Opening(mark, self.section(self._offers)) for mark in strong]
        if tools.call.open and (tools.section_optional or not tools.section.open):
            found += [Opening(mark, self._call(self._offers)) for mark in tools.call.open]
        return found

    @cached_property
    def weak(self) -> Weak | None:
        """Where calls begin in free text without a mark that only calls have."""
        tools = self._format
        if not tools.unmarked_starts and not any(_weak(mark, tools) for mark in tools.section.open):
            return None
        for offer in self._offers:
            if len(offer.name) > LONGEST:
                raise Unsupported(
                    f"A tool whose name has more than {LONGEST} letters cannot be called in this "
                    f"model's format.",
                    param=offer.at,
                )
        return self._weak_objects() if self._plain else self._weak_python()

    def forbidden(self) -> list[str]:
        """What free text may not hold, because the parser could take it for a call of its own."""
        if self.weak is None:
            return []
        found = []
        for body in self._plain or (JsonObjects(),):
            keys = "|".join(map(escaped, body.arguments))
            names = "|".join(map(escaped, body.name))
            found.append(rf"\{{\s*[\"'](?:{keys})[\"']\s*:")
            found.append(rf"'(?:{names})'\s*:\s*['\"](?:{self._names()})")
        return found

    @property
    def dropped(self) -> tuple[str, ...]:
        """Marks that may follow a message and mean nothing."""
        ends = self._format.header.end if self._format.header is not None else ()
        return tuple(mark for mark in self._format.dropped if mark not in ends)

    def harmless(self) -> list[str]:
        """Marks that stand in many a text: only what looks like a call after them counts."""
        return [pattern(mark) for mark in self._format.section.open if _weak(mark, self._format)]

    @property
    def begins(self) -> str | None:
        """What an answer begins with that begins with a call which nothing marks."""
        return rf"\s*(?:{self._names()})\s*\{{" if self._format.unmarked_at_start else None

    def started(self) -> str | None:
        """Calls that nothing marks, at the beginning of an answer; the first brace tells."""
        if self.begins is None:
            return None
        found = []
        for offer in self._offers:
            writer = self._writer(self._format.bodies[0], offer)
            # at once, or text up to other marks would go on over it
            look = self.lark.shortest(rf"/\s*{escaped(offer.name)}\s*\{{/", "starts")
            rest = either(writer.rest_of(node) for node in objects_of(offer))
            found.append(f"{look} {self.lark.gap()} {rest}")
        return either(found)

    def addressed(self, offer: Offer) -> str:
        """The rest of a message that was addressed to a tool."""
        tools, space = self._format, self.lark.gap()
        body = tools.bodies[0]
        if isinstance(body, NamedObject):
            said = self._arguments(body, offer)
            closes = self.lark.marks(tools.call.close) if tools.call.close else ""
            return f"{space} {said} {space} {closes}?" if closes else f"{space} {said}"
        inner = self.section((offer,))
        if tools.header is not None and not tools.header.routes:
            return inner
        return f"{space} {self.lark.marks(tools.section.open)} {inner}"

    # frames

    def section(self, offers: Sequence[Offer]) -> str:
        """The rest of a section whose opening mark was written."""
        tools, space = self._format, self.lark.gap()
        found = []
        if tools.call.open:
            one = f"{self.lark.marks(tools.call.open)} {self._call(offers)}"
            found.append(f"{one} ({space} {one})*" if self._parallel else one)
        else:
            found += [self._body(body, offers) for body in self._other]
        if self._plain:
            found.append(self._objects(offers))
        closes = self._closes(tools.section.close)
        return self.lark.rule(f"{space} {either(found)} {closes}", "section")

    def _call(self, offers: Sequence[Offer]) -> str:
        """The rest of a call whose opening mark was written."""
        inner = either(self._body(body, offers) for body in self._other or self._plain)
        closes = self._closes(self._format.call.close)
        return self.lark.rule(f"{self.lark.gap()} {inner} {closes}", "call")

    def _closes(self, marks: tuple[str, ...]) -> str:
        """What closes a frame; models leave it out where the format's example does."""
        if not marks:
            return ""
        written = f"{self.lark.gap()} {self.lark.marks(marks)}"
        inner = self._format.example[1:]  # what opens may be what closes
        surely = any(mark.replace(GAP, "") in inner for mark in marks)
        return written if surely else f"({written})?"

    def _body(self, body: CallBody, offers: Sequence[Offer]) -> str:
        match body:
            case JsonObjects():
                return self._objects(offers)
            case PythonCalls():
                return self._pythonic(body, offers)
        return either(self._one(body, offer) for offer in offers)

    def _one(self, body: NamedObject | TaggedArguments | NestedElements, offer: Offer) -> str:
        """One call: the name, what ends it, and the arguments."""
        lark = self.lark
        name = either(worded(lark, way, offer.name, body) for way in body.spellings)
        marks = [mark for mark in body.name_ends if not mark.startswith("/")]  # that closes at once
        ends = f"{lark.gap()} {lark.marks(marks)}" if marks else ""
        match body:
            case NamedObject():
                fence = f"{lark.gap()} {lark.marks(body.fence)}" if body.fence else ""
                inner = f"{lark.gap()} {self._arguments(body, offer)} {fence}"
                if not self._format.call.close and not self._format.section.close:
                    ends = f"({ends})?" if ends else ""  # the brace ends the name as well
            case TaggedArguments():
                after = (*self._format.call.close, *self._format.section.close)
                if "\n" in body.name_ends:
                    ends = f"({ends})?"  # the first key, or the end, ends the name as well
                inner = parameters(self._writer(body, offer), body, offer, after)
            case NestedElements():
                after = (*self._format.call.close, *self._format.section.close)
                inner = elements(self._writer(body, offer), body, offer, after)
        return lark.rule(f"{name} {ends} {inner}", "one")

    # bodies

    def _arguments(self, body: CallBody, offer: Offer) -> str:
        """Arguments as one object."""
        writer = self._writer(body, offer)
        return either(map(writer.value, offer.options))

    def _writer(self, body: CallBody, offer: Offer) -> Writer:
        key = (body, offer.name)
        if key not in self._writers:
            self._writers[key] = self._new_writer(body, offer)
        return self._writers[key]

    def _new_writer(self, body: CallBody, offer: Offer) -> Writer:
        lark, known, at = self.lark, offer.definitions, offer.at
        match body:
            case NamedObject(bare=True):
                return BareWriter(lark, known, body.string_markers, at)
            case PythonCalls() | JsonObjects(python=True):
                return PythonWriter(lark, known, at=at)
            case TaggedArguments() | NestedElements():
                return PythonWriter(lark, known, banned=self._inner_marks(body), at=at)
        return Writer(lark, known, at=at)

    def _inner_marks(self, body: TaggedArguments | NestedElements) -> tuple[str, ...]:
        """Marks that end a value between tags, wherever in it they stand."""
        after = (*self._format.call.close, *self._format.section.close)
        if isinstance(body, NestedElements):
            return (f"{body.prefix}<", *after)
        return (*body.value.close, *((*body.key.open, *after) if body.implicit_end else ()))

    def _objects(self, offers: Sequence[Offer], first: Sequence[str] = ("{", "[")) -> str:
        """An object, or a list of them, or several after each other."""
        every = self.lark.rule(
            " | ".join(self._object(body, offer) for body in self._plain for offer in offers),
            "object",
        )
        ways = {"[": self._in_brackets(every), "{": f"{every} {self._joined(every)}"}
        return self.lark.rule(" | ".join(ways[letter] for letter in first), "objects")

    def _in_brackets(self, every: str) -> str:
        lark = self.lark
        return f"{lark.opened('[')} {every} {self._more(every)} {lark.closed(']')}"

    def _more(self, every: str) -> str:
        """Others after the first, with commas between."""
        return f"({self.lark.sign(',')} {every})*" if self._parallel else ""

    def _joined(self, every: str) -> str:
        """Others after the first, with little or nothing between."""
        return f"({self.lark.terminal(JOINT, 'JOINT')}? {every})*" if self._parallel else ""

    def _object(self, body: JsonObjects, offer: Offer) -> str:
        lark = self.lark
        if body.keyed:
            name, said = self._quote(body)((offer.name,)), self._arguments(body, offer)
            inner = f"{name} {lark.sign(':')} {said}"
        else:
            parts, required = self._members(body, offer), self._required(body, offer)
            inner = sequence(lark, parts, required, None, lark.sign(","))
        return lark.rule(f"{lark.opened('{')} {inner} {lark.closed('}')}", "object")

    def _required(self, body: JsonObjects, offer: Offer) -> frozenset[str]:
        """What an object must say: arguments only where there must be some."""
        empty = any(isinstance(one, Object) and not one.required for one in offer.options)
        return frozenset(
            {"name"} if empty and not body.requires_arguments else {"name", "arguments"}
        )

    def _members(self, body: JsonObjects, offer: Offer) -> dict[str, str]:
        quote, colon = self._quote(body), self.lark.sign(":")
        text = self.lark.terminal(STRING, "STRING")
        kind = quote(("function",))
        return {
            "name": f"{quote(body.name)} {colon} {quote((offer.name,))}",
            "arguments": f"{quote(body.arguments)} {colon} {self._arguments(body, offer)}",
            "id": f"{quote(body.id)} {colon} {text}",
            "type": f"{quote(('type',))} {colon} {kind}",
        }

    def _quote(self, body: JsonObjects) -> _Quote:
        return _Quote(python=body.python)

    def _pythonic(self, body: PythonCalls, offers: Sequence[Offer]) -> str:
        calls = " | ".join(self._python_call(body, offer) for offer in offers)
        every = self.lark.rule(calls, "python")
        if body.brackets:
            return self._in_brackets(every)
        lines = f"{every} {self._joined(every)}"
        return self.lark.rule(f"{self._in_brackets(every)} | {lines}", "pythonic")

    def _python_call(self, body: PythonCalls, offer: Offer) -> str:
        writer = self._writer(body, offer)
        inner = keywords(writer, offer)
        opened, closed = self.lark.sign("("), self.lark.closed(")")
        return self.lark.rule(f"{quoted(offer.name)} {opened} {inner} {closed}", "python")

    # calls without marks

    def _bare(self) -> str:
        """Calls that begin without a mark."""
        tools = self._format
        if self._other and not tools.unmarked_starts:
            return either(self._body(body, self._offers) for body in self._other)
        if not self._plain:
            return self._body(tools.bodies[0], self._offers)
        return self._objects(self._offers, tools.unmarked_starts or ("{", "["))

    def _weak_objects(self) -> Weak:
        body, lark = self._plain[0], self.lark
        quotes = ('"', "'") if body.python else ('"',)
        quote = f"[{''.join(map(escaped, quotes))}]"
        keys = "|".join(map(escaped, body.name))
        every = lark.rule(" | ".join(self._object(body, one) for one in self._offers), "object")
        more = f"({either((lark.sign(','), lark.sign(';')))} {every})*" if self._parallel else ""
        lead, found = lark.sign(","), []
        for offer in self._offers:
            parts = self._members(body, offer)
            parts.pop("name")
            rest = f"{lead} {sequence(lark, parts, frozenset({'arguments'}), None, lead)}"
            if "arguments" not in self._required(body, offer):
                rest = f"({rest})?"
            follow = lark.rule(f"{rest} {lark.closed('}')} {more}", "follow")
            ways = (json.dumps(offer.name), json.dumps(offer.name, ensure_ascii=False))
            found += [(way[1:-1], follow) for way in dict.fromkeys(ways)]
        return Weak(rf"{quote}(?:{keys}){quote}\s*:\s*{quote}", quote, tuple(found))

    def _weak_python(self) -> Weak:
        body = cast(PythonCalls, self._format.bodies[0])
        lark = self.lark
        every = lark.rule(
            " | ".join(self._python_call(body, one) for one in self._offers), "python"
        )
        closed = f"{lark.closed(')')} {self._more(every)} {lark.closed(']')}"
        found = []
        for offer in self._offers:
            inner = keywords(self._writer(body, offer), offer)
            found.append((offer.name, lark.rule(f"{lark.gap()} {inner} {closed}", "follow")))
        return Weak(r"\[", r"\(", tuple(found), r"[ \t\r\n]*")

    def _names(self) -> str:
        return "|".join(escaped(offer.name) for offer in self._offers)


class _Quote:
    """Names in quotes."""

    def __init__(self, *, python: bool) -> None:
        self._python = python

    def __call__(self, names: Sequence[str]) -> str:
        ways = [json.dumps(name) for name in names]
        ways += [json.dumps(name, ensure_ascii=False) for name in names]
        if self._python:
            ways += [repr(name) for name in names]
        return either(map(quoted, dict.fromkeys(ways)))


def _weak(mark: str, tools: ToolFormat) -> bool:
    return WEAK.fullmatch(mark) is not None or (bool(tools.unmarked_starts) and "`" in mark)
