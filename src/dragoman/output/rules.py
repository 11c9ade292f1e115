"""A tool format and a reasoning format combined: what each marker means in each parser state.

Any tool format combines with any reasoning format, so the meaning of a marker depends on the
parser's state: in text, after a call, in reasoning. The states are built once for a pair of formats
and shared by all its parsers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.events import Channel
from dragoman.output.spec import (
    NO_REASONING,
    MessageHeader,
    NamedObject,
    ReasoningFormat,
    ToolFormat,
)
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
    "ended_by",
    "skip",
    "wrap",
    "unwrap",
    "text",
]


@dataclass(frozen=True)
class ParserPolicy:
    """How to treat output that a format leaves undefined."""

    undeclared: Literal["text", "accept"] = "text"  # a call of an undeclared tool
    in_reasoning: Literal["auto", "ignore", "accept"] = "auto"  # a call inside reasoning
    # an answer that consists of unclosed reasoning only: "repeat" also returns it as text
    unclosed_reasoning: Literal["leave", "repeat"] = "leave"
    only_calls: bool = False  # text is held back to the end, and dropped if the answer is cut
    hidden: tuple[str, ...] = ()  # special tokens to remove from text that still contains them


DEFAULT_POLICY = ParserPolicy()
# Tokens that end a turn or a text. Engines remove them; after calls they are dropped in any format.
ENDS_OF_TURN = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"),
    *("<eos>", "<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>"),
    *("<|eot|>", "<|eom|>", "<|end|>", "<|endofturn|>", "<|role_end|>", "<seed:eos>"),
    *("<|observation|>", "<|user|>"),
)
MARKUP = re.compile(r"(?!`{3}\w*\s*$).*[^\w\s{\[].*", re.DOTALL)


def is_markup(marker: str) -> bool:
    """Whether a marker is only markup: not a word, a bracket or the fence of a code block."""
    return MARKUP.fullmatch(marker) is not None


class ParserState:
    """A state of the parser: its channel and the markers that have a meaning in it."""

    def __init__(self, channel: Channel, meanings: Sequence[tuple[str, MarkerMeaning]]) -> None:
        self.channel = channel
        self.meanings: dict[str, MarkerMeaning] = {}
        for marker, meaning in meanings:
            self.meanings.setdefault(marker, meaning)
        self.markers = MarkerSet(list(self.meanings))


class FormatRules:
    """The parser states of one pair of formats. Built once, shared by many parsers."""

    def __init__(self, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> None:
        self.tools = tools
        self.reasoning = reasoning or NO_REASONING
        self.skipped = (*(tools.skipped if tools is not None else ()), *self.reasoning.skipped)
        self.in_text = ParserState("text", [*self._call_openers(), *self._answer_markers()])
        self.after_call = ParserState(
            "text",
            [*self._list_markers_after_call(), *self._call_openers(), *self._answer_markers()],
        )
        ended_by: list[tuple[str, MarkerMeaning]] = [
            (marker, "ended_by") for marker in self.reasoning.ended_by
        ]
        self.after_rejected_section = ParserState(
            "text",
            [*self._call_openers(), *self._answer_markers(), *self._list_bare_call_openers()],
        )
        self.in_routed_text = (
            self.in_text
            if not self._has_call_routes()
            else ParserState("text", self._answer_markers())
        )
        self.in_reasoning = {  # by the policy for calls in it
            policy: ParserState("reasoning", [*self._list_reasoning_markers(), *openers])
            for policy, openers in (
                ("auto", self._call_openers()),
                ("accept", self._call_openers() or ended_by),
                ("ignore", []),
            )
        }
        ends = self.reasoning.header.close if self.reasoning.header is not None else ()
        # markers that end reasoning, whatever else is open
        self.reasoning_closers = MarkerSet((*self.reasoning.close, *ends))
        # markers without a meaning that may follow calls
        self.ignorable = MarkerSet(self._list_ignorable_markers())
        headers = [
            spec.header for spec in (tools, self.reasoning) if spec is not None and spec.header
        ]
        self.header: MessageHeader | None = headers[0] if headers else None
        # whether every message starts with a marker: a call is never a draft in reasoning
        self.calls_end_reasoning = self.reasoning.special_token_markers and bool(headers)

    def _call_openers(self) -> list[tuple[str, MarkerMeaning]]:
        tools = self.tools
        if tools is None:
            return []
        meanings: list[tuple[str, MarkerMeaning]] = [
            (marker, "section") for marker in tools.section.open
        ]
        if tools.section_optional or not tools.section.open:
            meanings += [(marker, "call") for marker in tools.call.open]
        return meanings + [(marker, "first") for marker in tools.unmarked_starts]

    def _answer_markers(self) -> list[tuple[str, MarkerMeaning]]:
        meanings: list[tuple[str, MarkerMeaning]] = [
            (marker, "open") for marker in self.reasoning.open
        ]
        meanings += [(marker, "close") for marker in self.reasoning.close]
        meanings += [(marker, "drop") for marker in self.reasoning.dropped]
        meanings += [(marker, "wrap") for marker in self.reasoning.answer_wrapper.open]
        meanings += [(marker, "unwrap") for marker in self.reasoning.answer_wrapper.close]
        meanings += self._list_skip_openers()
        if self.tools is not None:
            meanings += [(marker, "drop") for marker in self.tools.dropped]
        return meanings + self._list_header_markers()

    def _has_call_routes(self) -> bool:
        """Whether headers separate calls from text, so that text contains no calls."""
        header = self.tools.header if self.tools is not None else None
        return header is not None and any(route == "call" for _, route in header.routes)

    def _list_header_markers(self) -> list[tuple[str, MarkerMeaning]]:
        meanings: list[tuple[str, MarkerMeaning]] = []
        for spec in (self.tools, self.reasoning):
            if spec is not None and spec.header is not None:
                meanings += [(marker, "header") for marker in spec.header.open]
                meanings += [(marker, "end") for marker in spec.header.close]
                if spec.header.routes:
                    meanings += [(marker, "end") for marker in spec.header.end if marker.strip()]
        return meanings

    def _list_reasoning_markers(self) -> list[tuple[str, MarkerMeaning]]:
        meanings: list[tuple[str, MarkerMeaning]] = [
            (marker, "close") for marker in self.reasoning.close
        ]
        meanings += [(marker, "open") for marker in self.reasoning.open]
        return meanings + self._list_skip_openers() + self._list_header_markers()

    def _list_skip_openers(self) -> list[tuple[str, MarkerMeaning]]:
        return [(marker, "skip") for pair in self.skipped for marker in pair.open]

    def _list_markers_after_call(self) -> list[tuple[str, MarkerMeaning]]:
        tools = self.tools
        if tools is None:
            return []
        markers = (*tools.section.close, *tools.call.close, *tools.ignored_after_call)
        fences = (body.fence for body in tools.bodies if isinstance(body, NamedObject))
        markers += tuple(marker for fence in fences for marker in fence if is_markup(marker))
        markers += ENDS_OF_TURN
        return [*self._list_bare_call_openers(), *((marker, "drop") for marker in markers)]

    def _list_ignorable_markers(self) -> list[str]:
        tools = self.tools
        if tools is None:
            return []
        ends = () if tools.header is None else tools.header.close
        closes = (*tools.section.close, *tools.call.close)
        markers = (*tools.dropped, *tools.ignored_after_call, *self.reasoning.dropped)
        return [*markers, *closes, *ends, *ENDS_OF_TURN]

    def _list_bare_call_openers(self) -> list[tuple[str, MarkerMeaning]]:
        return [] if self.tools is None else [(marker, "call") for marker in self.tools.call.open]
