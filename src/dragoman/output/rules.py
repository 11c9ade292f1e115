"""Two formats put together: which marks mean what, and where.

Tool syntax and reasoning syntax combine freely, so what a mark means depends on the place it is met
in: in text, after a call, among thoughts. The places are made once for a pair of formats and shared
by all parsers of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.events import Channel
from dragoman.output.spec import NO_REASONING, Header, Reasoning, Tools
from dragoman.output.text_buffer import Marks

What = Literal[
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
class Policy:
    """What is done with what formats leave open."""

    undeclared: Literal["text", "accept"] = "text"  # a call of a tool that was not declared
    in_reasoning: Literal["auto", "ignore", "accept"] = "auto"  # a call inside thoughts
    speechless: Literal["leave", "repeat"] = "leave"  # a whole answer of unclosed thoughts alone
    hidden: tuple[str, ...] = ()  # control tokens to leave out, for text that still has them


DEFAULT = Policy()


class Place:
    """Where the parser is, and which marks mean something there."""

    def __init__(self, channel: Channel, found: Sequence[tuple[str, What]]) -> None:
        self.channel = channel
        self.meanings: dict[str, What] = {}
        for mark, what in found:
            self.meanings.setdefault(mark, what)
        self.marks = Marks(list(self.meanings))


class Rules:
    """A tool format and a reasoning format put together. Made once, used by many parsers."""

    def __init__(self, tools: Tools | None, reasoning: Reasoning | None) -> None:
        self.tools = tools
        self.reasoning = reasoning or NO_REASONING
        self.skip = (*(tools.skip if tools is not None else ()), *self.reasoning.skip)
        self.text = Place("text", [*self._calls(), *self._answer()])
        self.after = Place("text", [*self._calls(), *self._answer(), *self._closers()])
        over: list[tuple[str, What]] = [(mark, "over") for mark in self.reasoning.ended_by]
        self.opened = Place("text", [*self._calls(), *self._answer(), *self._openers()])
        self.said = self.text if not self._routed() else Place("text", self._answer())
        self.thoughts = Place("reasoning", [*self._ends(), *self._calls()])
        self.leaving = Place("reasoning", [*self._ends(), *(self._calls() or over)])
        self.alone = Place("reasoning", self._ends())
        ends = self.reasoning.header.close if self.reasoning.header is not None else ()
        self.closers = Marks((*self.reasoning.close, *ends))  # end thoughts, whatever is open
        self.nothing = Marks(self._meaningless())  # what may follow calls and says nothing
        headers = [one.header for one in (tools, self.reasoning) if one is not None and one.header]
        self.header: Header | None = headers[0] if headers else None

    def _calls(self) -> list[tuple[str, What]]:
        tools = self.tools
        if tools is None:
            return []
        found: list[tuple[str, What]] = [(mark, "section") for mark in tools.section.open]
        if tools.bare or not tools.section.open:
            found += [(mark, "call") for mark in tools.call.open]
        return found + [(mark, "first") for mark in tools.first]

    def _answer(self) -> list[tuple[str, What]]:
        found: list[tuple[str, What]] = [(mark, "open") for mark in self.reasoning.open]
        found += [(mark, "close") for mark in self.reasoning.close]
        found += [(mark, "drop") for mark in self.reasoning.drop]
        found += [(mark, "wrap") for mark in self.reasoning.wrap.open]
        found += [(mark, "unwrap") for mark in self.reasoning.wrap.close]
        found += self._skips()
        if self.tools is not None:
            found += [(mark, "drop") for mark in self.tools.drop]
        return found + self._headers()

    def _routed(self) -> bool:
        """Whether headers tell calls from text, so that text can hold none."""
        header = self.tools.header if self.tools is not None else None
        return header is not None and any(where == "call" for _, where in header.routes)

    def _headers(self) -> list[tuple[str, What]]:
        found: list[tuple[str, What]] = []
        for one in (self.tools, self.reasoning):
            if one is not None and one.header is not None:
                found += [(mark, "header") for mark in one.header.open]
                found += [(mark, "end") for mark in one.header.close]
                if one.header.routes:
                    found += [(mark, "end") for mark in one.header.end if mark.strip()]
        return found

    def _ends(self) -> list[tuple[str, What]]:
        found: list[tuple[str, What]] = [(mark, "close") for mark in self.reasoning.close]
        found += [(mark, "open") for mark in self.reasoning.open]
        return found + self._skips() + self._headers()

    def _skips(self) -> list[tuple[str, What]]:
        return [(mark, "skip") for pair in self.skip for mark in pair.open]

    def _closers(self) -> list[tuple[str, What]]:
        tools = self.tools
        if tools is None:
            return []
        marks = (*tools.section.close, *tools.call.close, *tools.spare)
        return [*self._openers(), *((mark, "drop") for mark in marks)]

    def _meaningless(self) -> list[str]:
        tools = self.tools
        if tools is None:
            return []
        ends = () if tools.header is None else tools.header.close
        closes = (*tools.section.close, *tools.call.close)
        return [*tools.drop, *tools.spare, *self.reasoning.drop, *closes, *ends]

    def _openers(self) -> list[tuple[str, What]]:
        return [] if self.tools is None else [(mark, "call") for mark in self.tools.call.open]
