"""Writes calls as rules, from the same description of the format that the parser reads them with.

The description lists the markers of a format. This writer puts them in their order, with the names
of the tools and their arguments between them. The parser forgives more than the writer allows: a
call is written as models of the format write it, and closed where the format's example closes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dragoman.errors import Unsupported
from dragoman.grammar.lark_builder import LarkBuilder, join_alternatives, repeat_more
from dragoman.grammar.regex.escape import SKIPPED_CLASS, escape_regex, marker_to_regex
from dragoman.grammar.writer.call_body_writer import (
    SKIPPED,
    CallBodyWriter,
    UnmarkedCallStart,
)
from dragoman.grammar.writer.tool_names import ParsedTool, check_name, list_argument_objects
from dragoman.output.spec import (
    GAP,
    JsonObjects,
    NamedObject,
    PythonCalls,
    TaggedArguments,
    ToolFormat,
)

MAX_NAME_LENGTH = 100  # of a name that is compared with free text character by character
AMBIGUOUS_MARKER = re.compile(r"`{3}\w*\s*|\w+")  # markers that are frequent in ordinary text


@dataclass(frozen=True)
class CallOpening:
    """A marker that begins calls in free text.

    The parser may take a bracket after a section for another call if no closing marker stands
    between. So calls without it end an answer, or text follows that cannot begin a call.
    """

    marker: str
    rest: str  # the expression of everything from the marker to the end of the calls
    unclosed_rest: str = ""  # the same at the end of an answer, if no closing marker is needed


class CallWriter:
    """Writes the calls of some tools in one format, at most `max_calls`; None is any number."""

    def __init__(
        self,
        lark: LarkBuilder,
        tool_format: ToolFormat,
        tools: Sequence[ParsedTool],
        max_calls: int | None,
    ) -> None:
        self.lark = lark
        self.max_calls = max_calls
        self._format = tool_format
        self._tools = tools
        self._bodies = CallBodyWriter(lark, tool_format)
        for tool in tools:
            check_name(tool_format, tool)

    def write_required(self) -> str:
        """Write an answer that consists of calls.

        They are all in one section, or each has a section of its own, so that their number is
        bounded.
        """
        layout, limit = self._format, self.max_calls
        options = []
        if any(self._list_required_markers()):
            space = self.lark.add_optional_space() if limit != 1 else ""
            single = self._write_marked_calls(self._calls_per_group)
            calls = f"{single} {repeat_more(f'{space} {single}', limit)}"
            if (group := self._write_marked_calls(limit)) != single:
                calls = f"({group} | {calls})"
            options.append(self.lark.add_rule(f"{calls} {space}", "calls"))
        if layout.unmarked_starts or layout.unmarked_at_start:
            options.append(self._write_unmarked())
        return join_alternatives(options)

    @property
    def _calls_per_group(self) -> int | None:
        """How many calls a section may have if there may be several sections."""
        return None if self.max_calls is None else 1

    def _list_required_markers(self) -> tuple[list[str], tuple[str, ...]]:
        """Return the markers of sections that may begin an answer of calls; else those of calls."""
        layout = self._format
        sections = [
            marker
            for marker in layout.section.open
            if not _is_ambiguous(marker, layout) or layout.example.startswith(marker)
        ]
        return sections, () if sections else layout.call.open

    def _write_marked_calls(self, max_calls: int | None) -> str:
        """Write one section with at most this many calls, or one call in formats without."""
        sections, calls = self._list_required_markers()
        if sections:
            rest = self._write_section(self._tools, max_calls)
        else:
            rest = self._write_call(self._tools, max_calls)
        return f"({self.lark.write_any_marker(sections or calls)} {rest})"

    @cached_property
    def openings(self) -> list[CallOpening]:
        """The markers that begin calls in free text."""
        layout = self._format
        openings = [
            self._write_section_opening(marker)
            for marker in layout.section.open
            if not _is_ambiguous(marker, layout)
        ]
        if layout.call.open and (layout.section_optional or not layout.section.open):
            call = self._write_call(self._tools, self.max_calls)
            openings += [CallOpening(marker, call) for marker in layout.call.open]
        return openings

    def _write_section_opening(self, marker: str) -> CallOpening:
        """Write a section that begins in free text."""
        closings = self._format.section.close
        if not self._may_continue or self._is_always_closed(closings) or self.max_calls == 1:
            return CallOpening(marker, self._write_section(self._tools, self.max_calls))
        lark, space = self.lark, self.lark.add_optional_space()
        content = self._write_section_content(self._tools, self.max_calls)
        next_section = f"{space} {lark.write_marker(marker)} {content}"
        unclosed = lark.add_rule(f"{content} ({next_section})*", "unclosed")
        ends = [lark.write_any_marker(closings)] if closings else []
        ends.append(lark.add_terminal(f"/{self._text_start_regex}/", "START"))
        closed = lark.add_rule(f"{unclosed} {space} {join_alternatives(ends)}", "section")
        return CallOpening(marker, closed, unclosed)

    @property
    def _text_start_regex(self) -> str:
        """A character after which text is text: it begins neither a call nor a marker."""
        layout = self._format
        markers = (*layout.section.open, *layout.section.close, *layout.call.open)
        first = "".join(marker.lstrip()[0] for marker in markers)
        return rf"[^{SKIPPED_CLASS},;{{}}<`\[\]{escape_regex(first)}]"

    @property
    def next_call_regex(self) -> str:
        """What the parser may take for the start of another call, right after calls.

        Empty if there is nothing: another call always has a marker.
        """
        layout = self._format
        # the opening marker of another call may be missing if its closing one follows
        is_read = layout.section.close and any(
            isinstance(body, JsonObjects | PythonCalls) for body in layout.bodies
        )
        if not is_read:
            return ""
        markers = (*layout.section.open, *layout.ignored_after_call, *layout.dropped)
        others = "".join(escape_regex(marker[1]) for marker in markers if marker[0] == "[")
        return rf"{SKIPPED}(?:\{{|\[{f'[^{others}]' if others else ''})"

    @property
    def _may_continue(self) -> bool:
        """Whether the parser may find another call after the calls of a section."""
        bodies = self._format.bodies
        return any(isinstance(body, JsonObjects | PythonCalls) for body in bodies) and (
            not self._format.call.open or len(bodies) > 1
        )

    @cached_property
    def unmarked_start(self) -> UnmarkedCallStart | None:
        """How calls begin in free text without a marker; None if they always have one."""
        layout = self._format
        has_ambiguous = any(_is_ambiguous(marker, layout) for marker in layout.section.open)
        if not layout.unmarked_starts and not has_ambiguous:
            return None
        for tool in self._tools:
            if len(tool.name) > MAX_NAME_LENGTH:
                raise Unsupported(
                    f"In this model's format, the name of a tool can have at most "
                    f"{MAX_NAME_LENGTH} characters.",
                    param=tool.param,
                )
        return self._bodies.build_unmarked_start(self._tools, self.max_calls)

    def list_forbidden_regexes(self) -> list[str]:
        """Return the text that the parser could take for a call although the model means none."""
        if self.unmarked_start is None:
            return []
        bodies = self._bodies.object_bodies or (JsonObjects(),)
        keys = [join_regexes(map(escape_regex, body.arguments)) for body in bodies]
        return [rf"\{{{SKIPPED}[\"']{key}[\"']{SKIPPED}:" for key in keys]

    def list_ambiguous_regexes(self) -> list[str]:
        """Return the markers that ordinary text may contain: what follows makes them a call."""
        layout = self._format
        return [
            marker_to_regex(marker)
            for marker in layout.section.open
            if _is_ambiguous(marker, layout)
        ]

    @property
    def inner_markers(self) -> tuple[str, ...]:
        """The markers that begin a call for the parser, after calls, but not for the grammar."""
        opening = {opening.marker for opening in self.openings}
        return tuple(marker for marker in self._format.call.open if marker not in opening)

    @property
    def ignored_markers(self) -> tuple[str, ...]:
        """The markers without meaning that may follow a message."""
        ends = self._format.header.end if self._format.header is not None else ()
        return tuple(marker for marker in self._format.dropped if marker not in ends)

    @property
    def first_call_regex(self) -> str | None:
        """What the parser takes for a call without a marker at the start of an answer."""
        if not self._format.unmarked_at_start:
            return None
        skipped = f"(?:[{SKIPPED_CLASS}`]|json|JSON)*"
        names = join_regexes(list_read_names(tool.name for tool in self._tools))
        return rf"{skipped}{names}{skipped}[{{\[\"']"

    def write_unmarked_first_call(self) -> str | None:
        """Write a call without a marker at the start of an answer; its first brace decides."""
        if self.first_call_regex is None:
            return None
        options = []
        for tool in self._tools:
            writer = self._bodies.get_writer(self._format.bodies[0], tool)
            # the shortest match, or text up to other markers would extend over it
            start = rf"/\s*{escape_regex(tool.name)}\s*\{{/"
            name = self.lark.add_shortest_match(start, "starts")
            rest = join_alternatives(map(writer.write_object_rest, list_argument_objects(tool)))
            options.append(f"{name} {self.lark.add_optional_space()} {rest}")
        return join_alternatives(options)

    def write_addressed_call(self, tool: ParsedTool) -> str:
        """Write the rest of a message whose header names the tool."""
        lark, layout = self.lark, self._format
        space = lark.add_optional_space()
        body = layout.bodies[0]
        is_tagged = isinstance(body, TaggedArguments) and not layout.call.open
        if isinstance(body, NamedObject) or is_tagged:
            arguments = self._bodies.write_arguments(body, tool)
            if not layout.call.close:
                return f"{space} {arguments}"
            close = lark.write_any_marker(layout.call.close)
            # an object has its own end
            return f"{space} {arguments} {space} {close}{'' if is_tagged else '?'}"
        section = self._write_section((tool,), self._calls_per_group)
        if layout.header is not None and not layout.header.routes:
            return section
        return f"{space} {lark.write_any_marker(layout.section.open)} {section}"

    def _write_section(self, tools: Sequence[ParsedTool], max_calls: int | None) -> str:
        """Write the rest of a section, after its opening marker."""
        close = self._write_close(self._format.section.close)
        content = self._write_section_content(tools, max_calls)
        return self.lark.add_rule(f"{content} {close}", "section")

    def _write_section_content(self, tools: Sequence[ParsedTool], max_calls: int | None) -> str:
        """Write the calls of a section."""
        lark, layout, bodies = self.lark, self._format, self._bodies
        space = lark.add_optional_space()
        options = []
        if layout.call.open:
            rest = self._write_call(tools, self._calls_per_group)
            call = f"{lark.write_any_marker(layout.call.open)} {rest}"
            options.append(f"{call} {repeat_more(f'{space} {call}', max_calls)}")
        else:
            options += [bodies.write_body(body, tools, max_calls) for body in bodies.other_bodies]
        if bodies.object_bodies:
            options.append(bodies.write_objects(tools, max_calls))
        return f"{space} {join_alternatives(options)}"

    def _write_call(self, tools: Sequence[ParsedTool], max_calls: int | None) -> str:
        """Write the rest of a call, after its opening marker."""
        bodies = self._bodies
        options = [
            bodies.write_body(body, tools, max_calls)
            for body in bodies.other_bodies or bodies.object_bodies
        ]
        inner, close = join_alternatives(options), self._write_close(self._format.call.close)
        return self.lark.add_rule(f"{self.lark.add_optional_space()} {inner} {close}", "call")

    def _write_close(self, markers: tuple[str, ...]) -> str:
        """Write a closing marker, which is optional if the format's example leaves it out."""
        if not markers:
            return ""
        close = f"{self.lark.add_optional_space()} {self.lark.write_any_marker(markers)}"
        return close if self._is_always_closed(markers) else f"({close})?"

    def _is_always_closed(self, markers: tuple[str, ...]) -> bool:
        """Whether the format's example has one of these closing markers."""
        example = self._format.example[1:]  # a marker may be both the opening and the closing one
        return any(marker.replace(GAP, "") in example for marker in markers)

    def _write_unmarked(self) -> str:
        """Write calls that begin without a marker."""
        layout, bodies, limit = self._format, self._bodies, self.max_calls
        if bodies.other_bodies and not layout.unmarked_starts:
            return join_alternatives(
                bodies.write_body(body, self._tools, limit) for body in bodies.other_bodies
            )
        if not bodies.object_bodies:
            return bodies.write_body(layout.bodies[0], self._tools, limit)
        return bodies.write_objects(self._tools, limit, layout.unmarked_starts or ("{", "["))


def join_regexes(options: Iterable[str]) -> str:
    return f"(?:{'|'.join(options)})"


def list_read_names(names: Iterable[str]) -> list[str]:
    """Return expressions for the spellings of these names: some models repeat a name."""
    regexes = [escape_regex(name) for name in names]
    return [*regexes, *(rf"{name}\.{name}" for name in regexes)]


def _is_ambiguous(marker: str, layout: ToolFormat) -> bool:
    """Whether a marker is frequent in ordinary text, so that it does not mean a call by itself."""
    if AMBIGUOUS_MARKER.fullmatch(marker) is not None:
        return True
    return bool(layout.unmarked_starts) and "`" in marker
