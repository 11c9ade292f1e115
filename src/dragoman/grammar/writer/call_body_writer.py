"""Writes the bodies of calls: the names of tools and their arguments, between the markers.

A format has one or more kinds of bodies: JSON objects with a name and arguments, Python calls, or a
name that arguments follow as one object, between tags or as elements.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.grammar.lark_builder import (
    JSON_SPACE,
    LarkBuilder,
    join_alternatives,
    quote_literal,
    repeat_more,
)
from dragoman.grammar.regex.escape import SKIPPED_CLASS, escape_regex
from dragoman.grammar.schema.nodes import Object
from dragoman.grammar.writer.argument_writer import (
    write_element_arguments,
    write_keyword_arguments,
    write_tagged_arguments,
)
from dragoman.grammar.writer.json_writer import JsonWriter
from dragoman.grammar.writer.python_writer import BareKeyWriter, PythonWriter
from dragoman.grammar.writer.sequences import write_sequence
from dragoman.grammar.writer.tool_names import ParsedTool, write_name
from dragoman.output.spec import (
    CallBody,
    JsonObjects,
    NamedObject,
    NestedElements,
    PythonCalls,
    TaggedArguments,
    ToolFormat,
)

# between calls that follow each other outside a list
CALL_SEPARATOR = rf"/{JSON_SPACE}[,;]{JSON_SPACE}|[ \t\r\n]{{1,8}}/"
SKIPPED = f"[{SKIPPED_CLASS}]*"
NAME_END = r"(?:[^A-Za-z0-9_\-\\]|\\[^uUx])"
# what the parser skips or decodes before a name that is a string, and also after a damaged key
CURLY_QUOTES = "\u201c\u201d\u2018\u2019"
QUOTES = "\"'" + CURLY_QUOTES
BEFORE_NAME = rf"(?:[{SKIPPED_CLASS}{QUOTES}]|\\[nrtfb\"'\n])*"
BEFORE_ODD_NAME = rf"(?:[{SKIPPED_CLASS}{QUOTES}:=>]|\\[nrtfb\"'\n])*"
ESCAPED_LETTER = r"\\(?:u00|x|U000000)[2-7]"
ESCAPED_LETTER_START = r"\\(?:u0{0,2}|x|U0{0,6})?"
ID_STRING = r"/\"[^\"\\\x00-\x1f]{0,64}\"/"


@dataclass(frozen=True)
class UnmarkedCallStart:
    """Text that may be the start of a call without a marker: the name that follows decides.

    The parser repairs more spellings of keys and names than the grammar of a call has. After such a
    key, and in such a spelling, text contains no name of a tool.
    """

    prefix_regex: str
    odd_prefix_regex: str  # the same with keys that the parser repairs
    name_end_regex: str
    names: tuple[tuple[str, str], ...]  # spellings of names, each with the rest of its call
    space_regex: str = ""  # the white space before and after a name
    lead_regex: str = ""  # what the parser skips before a name
    read_end_regex: str = ""  # what the parser takes for the end of a name
    escape_regexes: tuple[str, str] | None = None  # of a letter that is escaped, and its start


class CallBodyWriter:
    """Writes bodies in one format.

    A body may be a list, of at most `max_calls` calls; None is any number.
    """

    def __init__(self, lark: LarkBuilder, tool_format: ToolFormat) -> None:
        self.lark = lark
        bodies = tool_format.bodies
        self.object_bodies = tuple(body for body in bodies if isinstance(body, JsonObjects))
        self.other_bodies = tuple(body for body in bodies if not isinstance(body, JsonObjects))
        self._format = tool_format
        self._closing_markers = (*tool_format.call.close, *tool_format.section.close)
        self._writers: dict[tuple[CallBody, str], JsonWriter] = {}

    def write_body(self, body: CallBody, tools: Sequence[ParsedTool], max_calls: int | None) -> str:
        """Write a body that calls one of these tools, or several where bodies are lists."""
        match body:
            case JsonObjects():
                return self.write_objects(tools, max_calls)
            case PythonCalls():
                return self._write_python_calls(body, tools, max_calls)
        return join_alternatives(self._write_named_call(body, tool) for tool in tools)

    def write_arguments(self, body: CallBody, tool: ParsedTool) -> str:
        """Write all arguments, as one object or between tags."""
        writer = self.get_writer(body, tool)
        if isinstance(body, TaggedArguments):
            return write_tagged_arguments(writer, body, tool, self._closing_markers)
        return join_alternatives(map(writer.write_value, tool.argument_nodes))

    def get_writer(self, body: CallBody, tool: ParsedTool) -> JsonWriter:
        """Return the writer of a tool's values, which is created once."""
        key = (body, tool.name)
        if key not in self._writers:
            self._writers[key] = self._create_writer(body, tool)
        return self._writers[key]

    def _create_writer(self, body: CallBody, tool: ParsedTool) -> JsonWriter:
        lark, definitions, param = self.lark, tool.definitions, tool.param
        match body:
            case NamedObject(unquoted_values=True):
                return BareKeyWriter(lark, definitions, body.string_markers, param)
            case PythonCalls() | JsonObjects(python=True):
                return PythonWriter(lark, definitions, param=param)
            case TaggedArguments() | NestedElements():
                banned = self._list_inner_markers(body)
                return PythonWriter(lark, definitions, banned=banned, param=param)
        return JsonWriter(lark, definitions, param=param)

    def _list_inner_markers(self, body: TaggedArguments | NestedElements) -> tuple[str, ...]:
        """Return the markers that end a value between tags, wherever in it they are."""
        if isinstance(body, NestedElements):
            return (f"{body.prefix}<", *self._closing_markers)
        return (*body.value.close, *body.key.open, *self._closing_markers)

    def _write_named_call(
        self, body: NamedObject | TaggedArguments | NestedElements, tool: ParsedTool
    ) -> str:
        """Write one call: the name, what ends it, and the arguments."""
        lark = self.lark
        name = join_alternatives(
            write_name(lark, spelling, tool.name, body) for spelling in body.spellings
        )
        # an end with a slash closes the call at once
        markers = [marker for marker in body.name_ends if not marker.startswith("/")]
        end = f"{lark.add_optional_space()} {lark.write_any_marker(markers)}" if markers else ""
        match body:
            case NamedObject():
                arguments = f"{lark.add_optional_space()} {self.write_arguments(body, tool)}"
                if body.fence:
                    fence = lark.write_any_marker(body.fence)
                    arguments += f" {lark.add_optional_space()} {fence}"
                if not self._closing_markers:
                    end = f"({end})?" if end else ""  # the brace ends the name as well
            case TaggedArguments():
                if "\n" in body.name_ends:
                    end = f"({end})?"  # the first key or the end of the call ends it as well
                arguments = self.write_arguments(body, tool)
            case NestedElements():
                arguments = write_element_arguments(
                    self.get_writer(body, tool), body, tool, self._closing_markers
                )
        return lark.add_rule(f"{name} {end} {arguments}", "named_call")

    # JSON objects

    def write_objects(
        self,
        tools: Sequence[ParsedTool],
        max_calls: int | None,
        first: Sequence[str] = ("{", "["),
    ) -> str:
        """Write an object, a list of objects, or several objects after each other.

        `first` are the characters that it may begin with.
        """
        call = self.lark.add_rule(
            " | ".join(
                self._write_object(body, tool) for body in self.object_bodies for tool in tools
            ),
            "object",
        )
        options = {
            "[": self._write_list(call, max_calls),
            "{": f"{call} {self._write_joined_rest(call, max_calls)}",
        }
        return self.lark.add_rule(" | ".join(options[bracket] for bracket in first), "objects")

    def _write_object(self, body: JsonObjects, tool: ParsedTool) -> str:
        lark = self.lark
        if body.keyed:
            name = _write_quoted((tool.name,), python=body.python)
            inner = f"{name} {lark.add_punctuation(':')} {self.write_arguments(body, tool)}"
        else:
            members, required = self._write_members(body, tool), _list_required(body, tool)
            inner = write_sequence(lark, members, required, None, lark.add_punctuation(","))
        opening, closing = lark.add_opening_bracket("{"), lark.add_closing_bracket("}")
        return lark.add_rule(f"{opening} {inner} {closing}", "object")

    def _write_members(self, body: JsonObjects, tool: ParsedTool) -> dict[str, str]:
        def quote(*names: str) -> str:
            return _write_quoted(names, python=body.python)

        colon = self.lark.add_punctuation(":")
        text = self.lark.add_terminal(ID_STRING, "STRING")
        return {
            "name": f"{quote(*body.name)} {colon} {quote(tool.name)}",
            "arguments": f"{quote(*body.arguments)} {colon} {self.write_arguments(body, tool)}",
            "id": f"{quote(*body.id)} {colon} {text}",
            "type": f"{quote('type')} {colon} {quote('function')}",
        }

    # Python calls

    def _write_python_calls(
        self, body: PythonCalls, tools: Sequence[ParsedTool], max_calls: int | None
    ) -> str:
        call = self._write_python_call(body, tools)
        if body.brackets:
            return self._write_list(call, max_calls)
        lines = f"{call} {self._write_joined_rest(call, max_calls)}"
        return self.lark.add_rule(f"{self._write_list(call, max_calls)} | {lines}", "pythonic")

    def _write_python_call(self, body: PythonCalls, tools: Sequence[ParsedTool]) -> str:
        """Write one call of any of these tools."""
        lark, calls = self.lark, []
        for tool in tools:
            arguments = write_keyword_arguments(self.get_writer(body, tool), tool)
            opening, closing = lark.add_punctuation("("), lark.add_closing_bracket(")")
            call = f"{quote_literal(tool.name)} {opening} {arguments} {closing}"
            calls.append(lark.add_rule(call, "python"))
        return lark.add_rule(" | ".join(calls), "python")

    # Several calls

    def _write_list(self, call: str, max_calls: int | None) -> str:
        opening, closing = self.lark.add_opening_bracket("["), self.lark.add_closing_bracket("]")
        return f"{opening} {call} {self._write_list_rest(call, max_calls)} {closing}"

    def _write_list_rest(self, call: str, max_calls: int | None) -> str:
        """Write the calls after the first of a list."""
        return repeat_more(f"{self.lark.add_punctuation(',')} {call}", max_calls)

    def _write_joined_rest(self, call: str, max_calls: int | None) -> str:
        """Write the calls after the first outside a list."""
        return repeat_more(f"{self.lark.add_terminal(CALL_SEPARATOR, 'JOINT')}? {call}", max_calls)

    # Calls in free text without a marker

    def build_unmarked_start(
        self, tools: Sequence[ParsedTool], max_calls: int | None
    ) -> UnmarkedCallStart:
        """Write what follows the name of a tool where a call may begin with the name."""
        body = self._format.bodies[0]
        if self.object_bodies:
            return self._build_object_start(self.object_bodies[0], tools, max_calls)
        assert isinstance(body, PythonCalls)  # noqa: S101
        return self._build_python_start(body, tools, max_calls)

    def _build_object_start(
        self, body: JsonObjects, tools: Sequence[ParsedTool], max_calls: int | None
    ) -> UnmarkedCallStart:
        lark = self.lark
        quotes = ('"', "'") if body.python else ('"',)
        quote = f"[{''.join(map(escape_regex, quotes))}]"
        keys = "|".join(map(escape_regex, body.name))
        call = lark.add_rule(" | ".join(self._write_object(body, tool) for tool in tools), "object")
        comma = lark.add_punctuation(",")
        separator = join_alternatives((comma, lark.add_punctuation(";")))
        more = repeat_more(f"{separator} {call}", max_calls)
        names: list[tuple[str, str]] = []
        for tool in tools:
            members = self._write_members(body, tool)
            members.pop("name")
            required = frozenset({"arguments"})
            rest = f"{comma} {write_sequence(lark, members, required, None, comma)}"
            if "arguments" not in _list_required(body, tool):
                rest = f"({rest})?"
            rule = lark.add_rule(f"{rest} {lark.add_closing_bracket('}')} {more}", "follow")
            spellings = (json.dumps(tool.name), json.dumps(tool.name, ensure_ascii=False))
            names += [(spelling[1:-1], rule) for spelling in dict.fromkeys(spellings)]
        return UnmarkedCallStart(
            rf"{quote}(?:{keys}){quote}{SKIPPED}:{SKIPPED}{quote}",
            _write_odd_prefix(keys, quotes),
            quote,
            tuple(names),
            lead_regex=BEFORE_NAME,
            read_end_regex=NAME_END,
            escape_regexes=(ESCAPED_LETTER, ESCAPED_LETTER_START),
        )

    def _build_python_start(
        self, body: PythonCalls, tools: Sequence[ParsedTool], max_calls: int | None
    ) -> UnmarkedCallStart:
        lark = self.lark
        more = self._write_list_rest(self._write_python_call(body, tools), max_calls)
        end = f"{lark.add_closing_bracket(')')} {more} {lark.add_closing_bracket(']')}"
        names = []
        for tool in tools:
            arguments = write_keyword_arguments(self.get_writer(body, tool), tool)
            rule = lark.add_rule(f"{lark.add_optional_space()} {arguments} {end}", "follow")
            names.append((tool.name, rule))
        return UnmarkedCallStart(
            r"\[",
            _write_odd_prefix("|".join(map(escape_regex, JsonObjects().name)), ()),
            r"\(",
            tuple(names),
            r"[ \t\r\n]*",
            lead_regex=rf"[{SKIPPED_CLASS}\[`]*",
            read_end_regex=rf"{SKIPPED}\(",
        )


def _write_odd_prefix(keys: str, quotes: Sequence[str]) -> str:
    """Write a regular expression for a key and a colon that the parser reads in spite of errors.

    `keys` are the spellings of the key, in a call between `quotes`.
    """
    others = "".join(quote for quote in "\"'" if quote not in quotes)
    options = [rf"[{{\[,]{SKIPPED}(?:{keys})[\"']?{SKIPPED}[:=]"]
    if others:
        options.append(rf"[{others}](?:{keys})[\"']?{SKIPPED}[:=]")
    for quote in quotes:
        values = f"{quote}{SKIPPED}(?:=|:{SKIPPED}[:=>{others}{CURLY_QUOTES}])"
        options.append(f"{quote}(?:{keys})(?:{SKIPPED}[:=]|{values})")
    return f"(?:{'|'.join(options)})"


def _list_required(body: JsonObjects, tool: ParsedTool) -> frozenset[str]:
    """Return the required members of a call: arguments may be left out where they may be empty."""
    may_be_empty = any(
        isinstance(node, Object) and not node.required for node in tool.argument_nodes
    )
    if may_be_empty and not body.requires_arguments:
        return frozenset({"name"})
    return frozenset({"name", "arguments"})


def _write_quoted(names: Sequence[str], *, python: bool) -> str:
    """Write any of these names in quotes."""
    spellings = [json.dumps(name) for name in names]
    spellings += [json.dumps(name, ensure_ascii=False) for name in names]
    if python:
        spellings += [repr(name) for name in names]
    return join_alternatives(map(quote_literal, dict.fromkeys(spellings)))
