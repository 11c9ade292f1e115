"""Two formats put together: which markers mean what, and where.

Tool syntax and reasoning syntax combine freely, so what a marker means depends on the place it is met
in: in text, after a call, among thoughts. The places are made once for a pair of formats and shared
by all parsers of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.events import Channel
from dragoman.output.spec import NO_REASONING, MessageHeader, ReasoningFormat, ToolFormat
from dragoman.output.text_buffer import MarkerSet

MarkerMeaning = Literal[
    "open",
    "close",
    "drop",
    "section",
    "call",
    "first",
    "header",
    "end",
    "over",
    "skip",
    "wrap",
    "unwrap",
]


@dataclass(frozen=True)
class ParserPolicy:
    """What is done with what formats leave open."""

    undeclared: Literal["text", "accept"] = "text"  # a call of a tool that was not declared
    in_reasoning: Literal["auto", "ignore", "accept"] = "auto"  # a call inside thoughts
    unclosed_reasoning: Literal["leave", "repeat"] = (
        "leave"  # a whole answer of unclosed thoughts alone
    )
    hidden: tuple[str, ...] = ()  # control tokens to leave out, for text that still has them


DEFAULT_POLICY = ParserPolicy()


class ParserState:
    """Where the parser is, and which markers mean something there."""

    def __init__(self, channel: Channel, meanings: Sequence[tuple[str, MarkerMeaning]]) -> None:
        self.channel = channel
        self.meanings: dict[str, MarkerMeaning] = {}
        for marker, what in meanings:
            self.meanings.setdefault(marker, what)
        self.markers = MarkerSet(list(self.meanings))


class FormatRules:
    """A tool format and a reasoning format put together. Made once, used by many parsers."""

    def __init__(self, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> None:
        self.tools = tools
        self.reasoning = reasoning or NO_REASONING
        self.skipped = (*(tools.skipped if tools is not None else ()), *self.reasoning.skipped)
        self.in_text = ParserState("text", [*self._call_openers(), *self._answer_markers()])
        self.after_call = ParserState(
            "text", [*self._call_openers(), *self._answer_markers(), *self._after_call_markers()]
        )
        over: list[tuple[str, MarkerMeaning]] = [
            (marker, "over") for marker in self.reasoning.ended_by
        ]
        self.after_rejected_section = ParserState(
            "text", [*self._call_openers(), *self._answer_markers(), *self._bare_call_openers()]
        )
        self.in_routed_text = (
            self.in_text
            if not self._has_call_routes()
            else ParserState("text", self._answer_markers())
        )
        self.in_reasoning = ParserState(
            "reasoning", [*self._reasoning_markers(), *self._call_openers()]
        )
        self.in_reasoning_with_calls = ParserState(
            "reasoning", [*self._reasoning_markers(), *(self._call_openers() or over)]
        )
        self.in_reasoning_without_calls = ParserState("reasoning", self._reasoning_markers())
        ends = self.reasoning.header.close if self.reasoning.header is not None else ()
        self.reasoning_closers = MarkerSet(
            (*self.reasoning.close, *ends)
        )  # end thoughts, whatever is open
        self.ignorable = MarkerSet(
            self._ignorable_markers()
        )  # what may follow calls and says nothing
        headers = [one.header for one in (tools, self.reasoning) if one is not None and one.header]
        self.header: MessageHeader | None = headers[0] if headers else None

    def _call_openers(self) -> list[tuple[str, MarkerMeaning]]:
        tools = self.tools
        if tools is None:
            return []
        found: list[tuple[str, MarkerMeaning]] = [
            (marker, "section") for marker in tools.section.open
        ]
        if tools.section_optional or not tools.section.open:
            found += [(marker, "call") for marker in tools.call.open]
        return found + [(marker, "first") for marker in tools.unmarked_starts]

    def _answer_markers(self) -> list[tuple[str, MarkerMeaning]]:
        found: list[tuple[str, MarkerMeaning]] = [
            (marker, "open") for marker in self.reasoning.open
        ]
        found += [(marker, "close") for marker in self.reasoning.close]
        found += [(marker, "drop") for marker in self.reasoning.dropped]
        found += [(marker, "wrap") for marker in self.reasoning.answer_wrapper.open]
        found += [(marker, "unwrap") for marker in self.reasoning.answer_wrapper.close]
        found += self._skip_openers()
        if self.tools is not None:
            found += [(marker, "drop") for marker in self.tools.dropped]
        return found + self._header_markers()

    def _has_call_routes(self) -> bool:
        """Whether headers tell calls from text, so that text can hold none."""
        header = self.tools.header if self.tools is not None else None
        return header is not None and any(where == "call" for _, where in header.routes)

    def _header_markers(self) -> list[tuple[str, MarkerMeaning]]:
        found: list[tuple[str, MarkerMeaning]] = []
        for one in (self.tools, self.reasoning):
            if one is not None and one.header is not None:
                found += [(marker, "header") for marker in one.header.open]
                found += [(marker, "end") for marker in one.header.close]
                if one.header.routes:
                    found += [(marker, "end") for marker in one.header.end if marker.strip()]
        return found

    def _reasoning_markers(self) -> list[tuple[str, MarkerMeaning]]:
        found: list[tuple[str, MarkerMeaning]] = [
            (marker, "close") for marker in self.reasoning.close
        ]
        found += [(marker, "open") for marker in self.reasoning.open]
        return found + self._skip_openers() + self._header_markers()

    def _skip_openers(self) -> list[tuple[str, MarkerMeaning]]:
        return [(marker, "skip") for pair in self.skipped for marker in pair.open]

    def _after_call_markers(self) -> list[tuple[str, MarkerMeaning]]:
        tools = self.tools
        if tools is None:
            return []
        markers = (*tools.section.close, *tools.call.close, *tools.ignored_after_call)
        return [*self._bare_call_openers(), *((marker, "drop") for marker in markers)]

    def _ignorable_markers(self) -> list[str]:
        tools = self.tools
        if tools is None:
            return []
        ends = () if tools.header is None else tools.header.close
        closes = (*tools.section.close, *tools.call.close)
        return [*tools.dropped, *tools.ignored_after_call, *self.reasoning.dropped, *closes, *ends]

    def _bare_call_openers(self) -> list[tuple[str, MarkerMeaning]]:
        return [] if self.tools is None else [(marker, "call") for marker in self.tools.call.open]
