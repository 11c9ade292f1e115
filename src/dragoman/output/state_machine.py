"""What the parser does with its text; `parser` is how it is used.

It is always in one of two places, text or thoughts, and looks only for the markers that mean
something there. What comes before a marker is handed out at once; a tail that may still become a marker
is held back until it is one or not. A marker that may begin a call starts an attempt: what is read is
kept until it is certain that it is a call, and given back as text when it is not.

A call inside thoughts is a draft while more follows: models quote calls while they think. It counts
only if the thoughts were never closed and nothing comes after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from dragoman.events import Channel
from dragoman.output.arguments.call_body import marker_set
from dragoman.output.calls import CallRecorder, DeclaredTools
from dragoman.output.rules import (
    DEFAULT_POLICY,
    FormatRules,
    MarkerMeaning,
    ParserPolicy,
    ParserState,
)
from dragoman.output.sections import SectionReader
from dragoman.output.span import Span
from dragoman.output.spec import MessageHeader
from dragoman.output.text_buffer import (
    MarkerFilter,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    is_at_marker,
    read_marker,
    read_until,
    skip_space,
)

WORD = re.compile(r"[\w.\-]*")
HEADER_WORDS = re.compile(r"[\w.\-\s]{0,128}")  # what a header may hold that is not read
MAX_SKIPPED = 64  # characters of what is left out between markers


class ParserMachine:
    """Where the reading of one answer stands, and how it goes on."""

    def __init__(
        self,
        rules: FormatRules,
        tools: DeclaredTools,
        inside: bool | None = None,
        policy: ParserPolicy = DEFAULT_POLICY,
        *,
        header: bool = False,
    ) -> None:
        """`inside` says that the answer begins in thoughts, `header` that it begins in a header."""
        self._rules = rules
        self._policy = policy
        self._starts_in_header = header
        self._buffer = TextBuffer()
        self._spans: list[Span] = []
        self._calls = CallRecorder(self._buffer, self._spans, tools, self._emit_held)
        self._sections = (
            None if rules.tools is None else SectionReader(self._buffer, self._calls, rules.tools)
        )
        self._starts_in_reasoning = rules.reasoning.starts_inside if inside is None else inside
        self._state = self._reasoning_state() if self._starts_in_reasoning else rules.in_text
        self._leading_space: list[
            Span
        ] = []  # white space that is only worth telling if text follows
        self._is_leading = (
            True  # whether nothing was said yet since the last thing that was not text
        )
        self._only_text = True  # whether nothing but text was seen
        self._no_text = True  # whether no text was
        self._in_wrapper = False
        self._filter = MarkerFilter(policy.hidden) if policy.hidden else None
        self._emitted: list[Span] = []  # all there was, where it may be wanted again
        self._truncated = False
        self._closed = False
        self._loop = self._run()
        next(self._loop)

    # places

    def _reasoning_state(self) -> ParserState:
        rules = self._rules
        match self._policy.in_reasoning:
            case "ignore":
                return rules.in_reasoning_without_calls
            case "accept":
                return rules.in_reasoning_with_calls
        return rules.in_reasoning

    def _enter(self, place: ParserState) -> None:
        self._state = place
        self._is_leading = True
        self._leading_space.clear()

    def _emit(self, text: str, start: int) -> None:
        """Hand out text or thoughts. White space at the beginning waits for what follows it."""
        if not text:
            return
        if self._state.channel == "reasoning":
            self._only_text = False
            self._is_leading = self._is_leading and not text.strip()
            channel: Channel = "text" if self._rules.reasoning.keeps_markers else "reasoning"
            self._spans.append(Span(channel, text, start))
            return
        span = Span("text", text, start)
        if self._is_leading:
            if not text.strip():
                self._leading_space.append(span)
                return
            self._is_leading = False
            self._spans.extend(self._leading_space)
            self._leading_space.clear()
        self._no_text = False
        self._spans.append(span)

    def _emit_held(self) -> None:
        text, start = self._buffer.take_held()
        self._emit(text, start)

    # the loop

    def _run(self) -> ReadSteps[None]:
        buffer = self._buffer
        if self._starts_in_reasoning and self._rules.reasoning.keeps_markers:
            yield from self._emit_opening_marker()
        yield from self._read_start()
        while True:
            place = self._state
            start, end, number = place.markers.search(buffer)
            if start > buffer.pos:
                self._emit(buffer.text[buffer.pos : start], buffer.base + buffer.pos)
                buffer.pos = start
            if number >= 0:
                marker = place.markers.markers[number]
                yield from self._handle_marker(place.meanings[marker], marker, end)
            elif buffer.is_stopped:
                buffer.resume()
            elif buffer.ended:
                self._emit(buffer.text[buffer.pos :], buffer.base + buffer.pos)
                return
            else:
                yield

    def _emit_opening_marker(self) -> ReadSteps[None]:
        """Thoughts that stay in the answer get the marker back that the prompt opened them with."""
        reasoning = self._rules.reasoning
        if not (yield from is_at_marker(self._buffer, marker_set(*reasoning.open))):
            self._spans.append(Span("text", reasoning.open[0], -len(reasoning.open[0])))

    def _read_start(self) -> ReadSteps[None]:
        """Formats in which the beginning of an answer is a header or a call without a marker."""
        buffer, header = self._buffer, self._rules.header
        while not buffer.text and not buffer.ended:
            yield
        rules = self._rules
        if self._starts_in_reasoning:
            return
        if header is not None and self._starts_in_header:
            buffer.hold()
            yield from self._read_header()
        elif header is not None and header.answer_starts:
            buffer.hold()
            if (yield from self._starts_inside_header(header)):
                yield from self._read_header()
            else:
                self._emit_held()
        elif rules.reasoning.opens_at_start:
            if (yield from read_marker(buffer, marker_set(*rules.reasoning.opens_at_start))) >= 0:
                self._only_text = False
                self._enter(self._reasoning_state())
        else:
            yield from self._read_unmarked_call()

    def _read_unmarked_call(self) -> ReadSteps[None]:
        """A call that nothing markers: where an answer begins, or after thoughts it began with."""
        buffer, tools = self._buffer, self._rules.tools
        if tools is None or not tools.unmarked_at_start or not self._no_text:
            return
        buffer.hold()
        yield from skip_space(buffer)
        if (yield from is_at_marker(buffer, marker_set(*self._rules.reasoning.open))):
            self._emit_held()
        else:
            yield from self._attempt(SectionReader.read_call, buffer.pos)

    def _starts_inside_header(self, header: MessageHeader) -> ReadSteps[bool]:
        """Whether an answer begins in the middle of a header."""
        buffer = self._buffer
        if any(header.answer_starts):
            yield from skip_space(buffer)
            return (yield from is_at_marker(buffer, marker_set(*header.answer_starts)))
        yield from skip_space(buffer, WORD)
        return (yield from is_at_marker(buffer, marker_set(*header.end)))

    def _handle_marker(self, what: MarkerMeaning, marker: str, end: int) -> ReadSteps[None]:
        """Do what a marker means here."""
        buffer = self._buffer
        match what:
            case "section":
                refused = yield from self._attempt(SectionReader.read_section, end)
                if refused and self._state is self._rules.in_text:
                    self._state = (
                        self._rules.after_rejected_section
                    )  # its next call may be a good one
            case "call":
                yield from self._attempt(SectionReader.read_call, end)
            case "first":
                yield from self._attempt(SectionReader.read_call, buffer.pos)
            case "header":
                buffer.hold()
                buffer.pos = end
                yield from self._read_header()
            case "skip":
                yield from self._skip_pair(marker, end)
            case "ended_by":
                self._enter(self._rules.in_text)
                self._emit(buffer.text[buffer.pos : end], buffer.base + buffer.pos)
                buffer.pos = end
            case "wrap" | "unwrap":
                self._handle_wrapper(what == "wrap", end)
            case "drop":
                buffer.drop_held()
                buffer.pos = end
            case _:
                buffer.drop_held()
                yield from self._switch_channel(what, end)

    def _handle_wrapper(self, opening: bool, end: int) -> None:
        """A marker around the answer: it counts only as the first and the last thing of it."""
        buffer = self._buffer
        open_now = self._in_wrapper or not (
            self._rules.reasoning.answer_wrapper.open or self._only_text
        )
        if self._is_leading and not self._in_wrapper if opening else open_now:
            self._in_wrapper = opening
        else:
            self._emit(buffer.text[buffer.pos : end], buffer.base + buffer.pos)
        buffer.pos = end

    def _switch_channel(self, what: MarkerMeaning, end: int) -> ReadSteps[None]:
        """Go from text to thoughts or back, unless the marker is only a word here."""
        buffer, reasoning = self._buffer, self._rules.reasoning
        thinking = self._state.channel == "reasoning"
        stray = not self._is_leading and (what == "open" if thinking else what == "close")
        stray = (
            stray
            and not reasoning.special_token_markers
            and (thinking or self._only_text or reasoning.plain_word_markers)
        )
        stray = stray or (reasoning.plain_word_markers and what == "open" and not self._only_text)
        if stray or reasoning.keeps_markers:
            self._emit(buffer.text[buffer.pos : end], buffer.base + buffer.pos)
        buffer.pos = end
        if stray:
            return
        self._only_text = False
        if what == "open":
            self._enter(self._reasoning_state())
            if reasoning.label:
                yield from read_marker(buffer, marker_set(*reasoning.label))
        else:
            self._enter(self._rules.in_text)
        match reasoning.trim:
            case "newline":
                yield from read_marker(buffer, marker_set("\n"))
            case "space":
                yield from skip_space(buffer)
        if thinking:
            yield from self._read_unmarked_call()

    def _skip_pair(self, marker: str, end: int) -> ReadSteps[None]:
        """Leave out markers inside text, with what stands between them."""
        buffer = self._buffer
        close = next(pair.close for pair in self._rules.skipped if marker in pair.open)
        buffer.hold()
        buffer.pos = end
        if close:
            every = marker_set(*close, *self._state.meanings)
            try:
                text, marker, end = yield from read_until(buffer, every, MAX_SKIPPED)
                words = marker not in close or any(map(str.isalpha, text))
                buffer.pos = end if marker in close else buffer.pos
            except (UnexpectedEnd, Mismatch):
                words = True
            if words:
                self._emit_held()
                return
        buffer.drop_held()

    # headers

    def _read_header(self) -> ReadSteps[None]:
        """Read a header and go where it says. One that never ends is text."""
        buffer, header = self._buffer, self._rules.header
        assert header is not None  # noqa: S101
        text, marker, end = "", "", 0
        try:
            text, marker, end = yield from read_until(
                buffer, marker_set(*header.end, *header.close)
            )
        except Mismatch:
            pass
        except UnexpectedEnd:
            if self._truncated:
                buffer.drop_held()
        if marker not in header.end:
            buffer.pos = max(buffer.pos, end)
            self._emit_held()
            return
        self._only_text = False
        if header.routes:
            whole, buffer.pos = buffer.held_text(), end
            yield from self._route(header, whole)
        elif HEADER_WORDS.fullmatch(text) is None:
            self._emit_held()
        else:  # the marker itself says where to go
            what = self._state.meanings.get(marker)
            if what is None:
                buffer.drop_held()
            else:
                yield from self._handle_marker(what, marker, end)

    def _route(self, header: MessageHeader, text: str) -> ReadSteps[None]:
        """Go where a header says; one that says nothing is text."""
        for pattern, where in header.routes:
            found = re.search(pattern, text)
            if found is None:
                continue
            self._enter(
                self._reasoning_state() if where == "reasoning" else self._rules.in_routed_text
            )
            if where != "call" or self._sections is None:
                self._buffer.drop_held()
                return
            reading = partial(SectionReader.read_addressed_call, name=found["name"])
            yield from self._attempt(reading, self._buffer.pos)
            return
        self._emit_held()

    # calls

    def _attempt(
        self, reading: Callable[[SectionReader], ReadSteps[None]], end: int
    ) -> ReadSteps[bool]:
        """Read what may be calls, from `end` on; give it back as text if it is none.

        Whether it was refused, in the middle or at once.
        """
        buffer, calls, frames = self._buffer, self._calls, self._sections
        assert frames is not None  # noqa: S101
        draft = self._state.channel == "reasoning" and self._policy.in_reasoning == "auto"
        calls.start_attempt(draft=draft)
        if not buffer.is_holding:
            buffer.hold()
        buffer.pos = end
        if draft and not buffer.is_stopped:
            buffer.stop_before(self._rules.reasoning_closers)
        refused, left = False, None
        try:
            yield from reading(frames)
            while draft and (yield from frames.has_more_calls()):
                yield from frames.read_section_or_call()
        except Mismatch:
            refused = True
            left = buffer.take_held() if calls.is_emitting and not draft else None
            self._complete_call()
        except UnexpectedEnd:
            self._handle_end_inside_call()
            buffer.pos = len(buffer.text)
        if draft:
            yield from self._resolve_draft()
        elif calls.has_call:
            self._only_text = False
            self._enter(self._rules.after_call)
        if left is not None:
            self._emit(*left)
        self._emit_held()
        calls.end_attempt()
        return refused and not calls.has_call

    def _resolve_draft(self) -> ReadSteps[None]:
        """A call among thoughts counts if nothing follows it."""
        buffer, calls = self._buffer, self._calls
        if not buffer.is_stopped:
            yield from skip_space(buffer)
            while (yield from read_marker(buffer, self._rules.ignorable)) >= 0:
                yield from skip_space(buffer)
        meant = (
            calls.has_call and not calls.has_rejected_call and buffer.ended and not buffer.has_more
        )
        meant = meant and not buffer.is_stopped
        calls.resolve_draft(meant)
        if meant:
            buffer.drop_held()
        if not buffer.is_stopped:
            buffer.resume()

    def _complete_call(self) -> None:
        if self._calls.is_emitting:
            self._calls.write_arguments(self._calls.missing_end())
            self._calls.close_call()

    def _handle_end_inside_call(self) -> None:
        """The answer ended inside a call, or what looked like one."""
        calls = self._calls
        if not self._truncated:
            self._complete_call()
        elif calls.is_open and not calls.is_undeclared:
            calls.write_arguments("" if calls.is_emitting else calls.held_arguments())
            self._buffer.pos = len(self._buffer.text)
            calls.commit()
