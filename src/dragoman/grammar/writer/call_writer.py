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
from dragoman.grammar.lark_builder import JSON_SPACE, LarkBuilder, join_alternatives, quote_literal
from dragoman.grammar.regex.escape import escape_regex, marker_to_regex
from dragoman.grammar.schema.nodes import Object
from dragoman.grammar.writer.argument_writer import (
    write_element_arguments,
    write_keyword_arguments,
    write_tagged_arguments,
)
from dragoman.grammar.writer.json_writer import JsonWriter
from dragoman.grammar.writer.python_writer import BareKeyWriter, PythonWriter
from dragoman.grammar.writer.sequences import write_sequence
from dragoman.grammar.writer.tool_names import (
    ParsedTool,
    check_name,
    list_argument_objects,
    write_name,
)
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

MAX_NAME_LENGTH = 100  # letters of a name that is told from text letter by letter
AMBIGUOUS_MARKER = re.compile(r"`{3}\w*\s*|\w+")  # marks that stand in many a text that is no call
CALL_SEPARATOR = (
    rf"/{JSON_SPACE}[,;]{JSON_SPACE}|[ \t\r\n]{{1,48}}/"  # between objects that follow each other
)
STRING = r"/\"[^\"\\\x00-\x1f]{0,64}\"/"


@dataclass(frozen=True)
class CallOpening:
    """Where free text turns into calls."""

    marker: str
    rest: str  # everything from there to the end of the calls


@dataclass(frozen=True)
class UnmarkedCallStart:
    """What only looks like the start of a call: the name that follows it decides."""

    prefix_regex: str  # a regular expression
    name_end_regex: str  # another, of what ends the name
    names: tuple[tuple[str, str], ...]  # how a name is written, and the rest of the call after it
    space_regex: str = ""  # what may stand before a name and after it


class CallWriter:
    """The calls that some tools allow in one format."""

    def __init__(
        self, lark: LarkBuilder, tools: ToolFormat, offers: Sequence[ParsedTool], *, parallel: bool
    ) -> None:
        self.lark = lark
        self._format = tools
        self._tools = offers
        self._parallel = parallel
        self._writers: dict[tuple[CallBody, str], JsonWriter] = {}
        self._object_bodies = tuple(body for body in tools.bodies if isinstance(body, JsonObjects))
        self._other_bodies = tuple(
            body for body in tools.bodies if not isinstance(body, JsonObjects)
        )
        for offer in offers:
            check_name(tools, offer)

    # what answers are made of

    def write_required(self) -> str:
        """Calls from their very beginning, with nothing before them."""
        tools, space = self._format, self.lark.add_optional_space()
        found = []
        opens = tools.section.open
        strong = [m for m in opens if not _is_ambiguous(m, tools) or tools.example.startswith(m)]
        if strong:
            found.append(f"{self.lark.write_any_marker(strong)} {self.write_section(self._tools)}")
        elif tools.call.open:
            found.append(
                f"{self.lark.write_any_marker(tools.call.open)} {self._write_call(self._tools)}"
            )
        block = join_alternatives(found) if found else ""
        if block and self._parallel:
            block = f"{block} ({space} {block})* {space}"
        bare = [self._write_unmarked()] if tools.unmarked_starts or tools.unmarked_at_start else []
        return join_alternatives([*([self.lark.add_rule(block, "calls")] if block else []), *bare])

    @cached_property
    def openings(self) -> list[CallOpening]:
        """Where calls begin in free text."""
        tools = self._format
        strong = [mark for mark in tools.section.open if not _is_ambiguous(mark, tools)]
        found = [CallOpening(mark, self.write_section(self._tools)) for mark in strong]
        if tools.call.open and (tools.section_optional or not tools.section.open):
            found += [CallOpening(mark, self._write_call(self._tools)) for mark in tools.call.open]
        return found

    @cached_property
    def unmarked_start(self) -> UnmarkedCallStart | None:
        """Where calls begin in free text without a mark that only calls have."""
        tools = self._format
        if not tools.unmarked_starts and not any(
            _is_ambiguous(mark, tools) for mark in tools.section.open
        ):
            return None
        for offer in self._tools:
            if len(offer.name) > MAX_NAME_LENGTH:
                raise Unsupported(
                    f"A tool whose name has more than {MAX_NAME_LENGTH} letters cannot be called in this "
                    f"model's format.",
                    param=offer.param,
                )
        return self._build_object_start() if self._object_bodies else self._build_python_start()

    def list_forbidden_regexes(self) -> list[str]:
        """What free text may not hold, because the parser could take it for a call of its own."""
        if self.unmarked_start is None:
            return []
        found = []
        for body in self._object_bodies or (JsonObjects(),):
            keys = "|".join(map(escape_regex, body.arguments))
            names = "|".join(map(escape_regex, body.name))
            found.append(rf"\{{\s*[\"'](?:{keys})[\"']\s*:")
            found.append(rf"'(?:{names})'\s*:\s*['\"](?:{self._join_names()})")
        return found

    @property
    def ignored_markers(self) -> tuple[str, ...]:
        """Marks that may follow a message and mean nothing."""
        ends = self._format.header.end if self._format.header is not None else ()
        return tuple(mark for mark in self._format.dropped if mark not in ends)

    def list_ambiguous_regexes(self) -> list[str]:
        """Marks that stand in many a text: only what looks like a call after them counts."""
        return [
            marker_to_regex(mark) for mark in self._format.section.open if _is_ambiguous(mark, self._format)
        ]

    @property
    def first_call_regex(self) -> str | None:
        """What an answer begins with that begins with a call which nothing marks."""
        return rf"\s*(?:{self._join_names()})\s*\{{" if self._format.unmarked_at_start else None

    def write_unmarked_first_call(self) -> str | None:
        """Calls that nothing marks, at the beginning of an answer; the first brace tells."""
        if self.first_call_regex is None:
            return None
        found = []
        for offer in self._tools:
            writer = self._get_writer(self._format.bodies[0], offer)
            # at once, or text up to other marks would go on over it
            look = self.lark.add_shortest_match(rf"/\s*{escape_regex(offer.name)}\s*\{{/", "starts")
            rest = join_alternatives(
                writer.write_object_rest(node) for node in list_argument_objects(offer)
            )
            found.append(f"{look} {self.lark.add_optional_space()} {rest}")
        return join_alternatives(found)

    def write_addressed_call(self, offer: ParsedTool) -> str:
        """The rest of a message that was addressed to a tool."""
        tools, space = self._format, self.lark.add_optional_space()
        body = tools.bodies[0]
        if isinstance(body, NamedObject):
            said = self._write_arguments(body, offer)
            closes = self.lark.write_any_marker(tools.call.close) if tools.call.close else ""
            return f"{space} {said} {space} {closes}?" if closes else f"{space} {said}"
        inner = self.write_section((offer,))
        if tools.header is not None and not tools.header.routes:
            return inner
        return f"{space} {self.lark.write_any_marker(tools.section.open)} {inner}"

    # frames

    def write_section(self, offers: Sequence[ParsedTool]) -> str:
        """The rest of a section whose opening mark was written."""
        tools, space = self._format, self.lark.add_optional_space()
        found = []
        if tools.call.open:
            one = f"{self.lark.write_any_marker(tools.call.open)} {self._write_call(offers)}"
            found.append(f"{one} ({space} {one})*" if self._parallel else one)
        else:
            found += [self._write_body(body, offers) for body in self._other_bodies]
        if self._object_bodies:
            found.append(self._write_objects(offers))
        closes = self._write_close(tools.section.close)
        return self.lark.add_rule(f"{space} {join_alternatives(found)} {closes}", "section")

    def _write_call(self, offers: Sequence[ParsedTool]) -> str:
        """The rest of a call whose opening mark was written."""
        inner = join_alternatives(
            self._write_body(body, offers) for body in self._other_bodies or self._object_bodies
        )
        closes = self._write_close(self._format.call.close)
        return self.lark.add_rule(f"{self.lark.add_optional_space()} {inner} {closes}", "call")

    def _write_close(self, marks: tuple[str, ...]) -> str:
        """What closes a frame; models leave it out where the format's example does."""
        if not marks:
            return ""
        written = f"{self.lark.add_optional_space()} {self.lark.write_any_marker(marks)}"
        inner = self._format.example[1:]  # what opens may be what closes
        surely = any(mark.replace(GAP, "") in inner for mark in marks)
        return written if surely else f"({written})?"

    def _write_body(self, body: CallBody, offers: Sequence[ParsedTool]) -> str:
        match body:
            case JsonObjects():
                return self._write_objects(offers)
            case PythonCalls():
                return self._write_pythonic(body, offers)
        return join_alternatives(self._write_named_call(body, offer) for offer in offers)

    def _write_named_call(
        self, body: NamedObject | TaggedArguments | NestedElements, offer: ParsedTool
    ) -> str:
        """One call: the name, what ends it, and the arguments."""
        lark = self.lark
        name = join_alternatives(write_name(lark, way, offer.name, body) for way in body.spellings)
        marks = [mark for mark in body.name_ends if not mark.startswith("/")]  # that closes at once
        ends = f"{lark.add_optional_space()} {lark.write_any_marker(marks)}" if marks else ""
        match body:
            case NamedObject():
                fence = (
                    f"{lark.add_optional_space()} {lark.write_any_marker(body.fence)}"
                    if body.fence
                    else ""
                )
                inner = f"{lark.add_optional_space()} {self._write_arguments(body, offer)} {fence}"
                if not self._format.call.close and not self._format.section.close:
                    ends = f"({ends})?" if ends else ""  # the brace ends the name as well
            case TaggedArguments():
                after = (*self._format.call.close, *self._format.section.close)
                if "\n" in body.name_ends:
                    ends = f"({ends})?"  # the first key, or the end, ends the name as well
                inner = write_tagged_arguments(self._get_writer(body, offer), body, offer, after)
            case NestedElements():
                after = (*self._format.call.close, *self._format.section.close)
                inner = write_element_arguments(self._get_writer(body, offer), body, offer, after)
        return lark.add_rule(f"{name} {ends} {inner}", "one")

    # bodies

    def _write_arguments(self, body: CallBody, offer: ParsedTool) -> str:
        """Arguments as one object."""
        writer = self._get_writer(body, offer)
        return join_alternatives(map(writer.write_value, offer.argument_nodes))

    def _get_writer(self, body: CallBody, offer: ParsedTool) -> JsonWriter:
        key = (body, offer.name)
        if key not in self._writers:
            self._writers[key] = self._create_writer(body, offer)
        return self._writers[key]

    def _create_writer(self, body: CallBody, offer: ParsedTool) -> JsonWriter:
        lark, known, at = self.lark, offer.definitions, offer.param
        match body:
            case NamedObject(unquoted_values=True):
                return BareKeyWriter(lark, known, body.string_markers, at)
            case PythonCalls() | JsonObjects(python=True):
                return PythonWriter(lark, known, param=at)
            case TaggedArguments() | NestedElements():
                return PythonWriter(lark, known, banned=self._list_inner_markers(body), param=at)
        return JsonWriter(lark, known, param=at)

    def _list_inner_markers(self, body: TaggedArguments | NestedElements) -> tuple[str, ...]:
        """Marks that end a value between tags, wherever in it they stand."""
        after = (*self._format.call.close, *self._format.section.close)
        if isinstance(body, NestedElements):
            return (f"{body.prefix}<", *after)
        return (*body.value.close, *((*body.key.open, *after) if body.implicit_end else ()))

    def _write_objects(
        self, offers: Sequence[ParsedTool], first: Sequence[str] = ("{", "[")
    ) -> str:
        """An object, or a list of them, or several after each other."""
        every = self.lark.add_rule(
            " | ".join(
                self._write_object(body, offer) for body in self._object_bodies for offer in offers
            ),
            "object",
        )
        ways = {"[": self._write_list(every), "{": f"{every} {self._write_joined_rest(every)}"}
        return self.lark.add_rule(" | ".join(ways[letter] for letter in first), "objects")

    def _write_list(self, every: str) -> str:
        lark = self.lark
        return f"{lark.add_opening_bracket('[')} {every} {self._write_list_rest(every)} {lark.add_closing_bracket(']')}"

    def _write_list_rest(self, every: str) -> str:
        """Others after the first, with commas between."""
        return f"({self.lark.add_punctuation(',')} {every})*" if self._parallel else ""

    def _write_joined_rest(self, every: str) -> str:
        """Others after the first, with little or nothing between."""
        return (
            f"({self.lark.add_terminal(CALL_SEPARATOR, 'JOINT')}? {every})*"
            if self._parallel
            else ""
        )

    def _write_object(self, body: JsonObjects, offer: ParsedTool) -> str:
        lark = self.lark
        if body.keyed:
            name, said = (
                self._create_quoter(body)((offer.name,)),
                self._write_arguments(body, offer),
            )
            inner = f"{name} {lark.add_punctuation(':')} {said}"
        else:
            parts, required = (
                self._write_members(body, offer),
                self._list_required_members(body, offer),
            )
            inner = write_sequence(lark, parts, required, None, lark.add_punctuation(","))
        return lark.add_rule(
            f"{lark.add_opening_bracket('{')} {inner} {lark.add_closing_bracket('}')}", "object"
        )

    def _list_required_members(self, body: JsonObjects, offer: ParsedTool) -> frozenset[str]:
        """What an object must say: arguments only where there must be some."""
        empty = any(isinstance(one, Object) and not one.required for one in offer.argument_nodes)
        return frozenset(
            {"name"} if empty and not body.requires_arguments else {"name", "arguments"}
        )

    def _write_members(self, body: JsonObjects, offer: ParsedTool) -> dict[str, str]:
        quote, colon = self._create_quoter(body), self.lark.add_punctuation(":")
        text = self.lark.add_terminal(STRING, "STRING")
        kind = quote(("function",))
        return {
            "name": f"{quote(body.name)} {colon} {quote((offer.name,))}",
            "arguments": f"{quote(body.arguments)} {colon} {self._write_arguments(body, offer)}",
            "id": f"{quote(body.id)} {colon} {text}",
            "type": f"{quote(('type',))} {colon} {kind}",
        }

    def _create_quoter(self, body: JsonObjects) -> _NameQuoter:
        return _NameQuoter(python=body.python)

    def _write_pythonic(self, body: PythonCalls, offers: Sequence[ParsedTool]) -> str:
        calls = " | ".join(self._write_python_call(body, offer) for offer in offers)
        every = self.lark.add_rule(calls, "python")
        if body.brackets:
            return self._write_list(every)
        lines = f"{every} {self._write_joined_rest(every)}"
        return self.lark.add_rule(f"{self._write_list(every)} | {lines}", "pythonic")

    def _write_python_call(self, body: PythonCalls, offer: ParsedTool) -> str:
        writer = self._get_writer(body, offer)
        inner = write_keyword_arguments(writer, offer)
        opened, closed = self.lark.add_punctuation("("), self.lark.add_closing_bracket(")")
        return self.lark.add_rule(
            f"{quote_literal(offer.name)} {opened} {inner} {closed}", "python"
        )

    # calls without marks

    def _write_unmarked(self) -> str:
        """Calls that begin without a mark."""
        tools = self._format
        if self._other_bodies and not tools.unmarked_starts:
            return join_alternatives(
                self._write_body(body, self._tools) for body in self._other_bodies
            )
        if not self._object_bodies:
            return self._write_body(tools.bodies[0], self._tools)
        return self._write_objects(self._tools, tools.unmarked_starts or ("{", "["))

    def _build_object_start(self) -> UnmarkedCallStart:
        body, lark = self._object_bodies[0], self.lark
        quotes = ('"', "'") if body.python else ('"',)
        quote = f"[{''.join(map(escape_regex, quotes))}]"
        keys = "|".join(map(escape_regex, body.name))
        every = lark.add_rule(
            " | ".join(self._write_object(body, one) for one in self._tools), "object"
        )
        more = (
            f"({join_alternatives((lark.add_punctuation(','), lark.add_punctuation(';')))} {every})*"
            if self._parallel
            else ""
        )
        lead, found = lark.add_punctuation(","), []
        for offer in self._tools:
            parts = self._write_members(body, offer)
            parts.pop("name")
            rest = f"{lead} {write_sequence(lark, parts, frozenset({'arguments'}), None, lead)}"
            if "arguments" not in self._list_required_members(body, offer):
                rest = f"({rest})?"
            follow = lark.add_rule(f"{rest} {lark.add_closing_bracket('}')} {more}", "follow")
            ways = (json.dumps(offer.name), json.dumps(offer.name, ensure_ascii=False))
            found += [(way[1:-1], follow) for way in dict.fromkeys(ways)]
        return UnmarkedCallStart(rf"{quote}(?:{keys}){quote}\s*:\s*{quote}", quote, tuple(found))

    def _build_python_start(self) -> UnmarkedCallStart:
        body = cast(PythonCalls, self._format.bodies[0])
        lark = self.lark
        every = lark.add_rule(
            " | ".join(self._write_python_call(body, one) for one in self._tools), "python"
        )
        closed = f"{lark.add_closing_bracket(')')} {self._write_list_rest(every)} {lark.add_closing_bracket(']')}"
        found = []
        for offer in self._tools:
            inner = write_keyword_arguments(self._get_writer(body, offer), offer)
            found.append(
                (
                    offer.name,
                    lark.add_rule(f"{lark.add_optional_space()} {inner} {closed}", "follow"),
                )
            )
        return UnmarkedCallStart(r"\[", r"\(", tuple(found), r"[ \t\r\n]*")

    def _join_names(self) -> str:
        return "|".join(escape_regex(offer.name) for offer in self._tools)


class _NameQuoter:
    """Names in quotes."""

    def __init__(self, *, python: bool) -> None:
        self._python = python

    def __call__(self, names: Sequence[str]) -> str:
        ways = [json.dumps(name) for name in names]
        ways += [json.dumps(name, ensure_ascii=False) for name in names]
        if self._python:
            ways += [repr(name) for name in names]
        return join_alternatives(map(quote_literal, dict.fromkeys(ways)))


def _is_ambiguous(mark: str, tools: ToolFormat) -> bool:
    return AMBIGUOUS_MARKER.fullmatch(mark) is not None or (
        bool(tools.unmarked_starts) and "`" in mark
    )
