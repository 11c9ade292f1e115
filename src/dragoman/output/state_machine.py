"""What the parser does with its text; `parser` is how it is used.

It is always in one of two places, text or thoughts, and looks only for the marks that mean
something there. What comes before a mark is handed out at once; a tail that may still become a mark
is held back until it is one or not. A mark that may begin a call starts an attempt: what is read is
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
MAX_SKIPPED = 64  # letters of what is left out between marks


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
        self._sections = None if rules.tools is None else SectionReader(self._buffer, self._calls, rules.tools)
        self._starts_in_reasoning = rules.reasoning.starts_inside if inside is None else inside
        self._state = self._reasoning_state() if self._starts_in_reasoning else rules.in_text
        self._leading_space: list[Span] = []  # white space that is only worth telling if text follows
        self._is_leading = True  # whether nothing was said yet since the last thing that was not text
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
        src = self._buffer
        if self._starts_in_reasoning and self._rules.reasoning.keeps_markers:
            yield from self._emit_opening_marker()
        yield from self._read_start()
        while True:
            place = self._state
            start, end, number = place.markers.search(src)
            if start > src.pos:
                self._emit(src.text[src.pos : start], src.base + src.pos)
                src.pos = start
            if number >= 0:
                mark = place.markers.markers[number]
                yield from self._handle_marker(place.meanings[mark], mark, end)
            elif src.is_stopped:
                src.resume()
            elif src.ended:
                self._emit(src.text[src.pos :], src.base + src.pos)
                return
            else:
                yield

    def _emit_opening_marker(self) -> ReadSteps[None]:
        """Thoughts that stay in the answer get the mark back that the prompt opened them with."""
        reasoning = self._rules.reasoning
        if not (yield from is_at_marker(self._buffer, marker_set(*reasoning.open))):
            self._spans.append(Span("text", reasoning.open[0], -len(reasoning.open[0])))

    def _read_start(self) -> ReadSteps[None]:
        """Formats in which the beginning of an answer is a header or a call without a mark."""
        src, header = self._buffer, self._rules.header
        while not src.text and not src.ended:
            yield
        rules = self._rules
        if self._starts_in_reasoning:
            return
        if header is not None and self._starts_in_header:
            src.hold()
            yield from self._read_header()
        elif header is not None and header.answer_starts:
            src.hold()
            if (yield from self._starts_inside_header(header)):
                yield from self._read_header()
            else:
                self._emit_held()
        elif rules.reasoning.opens_at_start:
            if (yield from read_marker(src, marker_set(*rules.reasoning.opens_at_start))) >= 0:
                self._only_text = False
                self._enter(self._reasoning_state())
        else:
            yield from self._read_unmarked_call()

    def _read_unmarked_call(self) -> ReadSteps[None]:
        """A call that nothing marks: where an answer begins, or after thoughts it began with."""
        src, tools = self._buffer, self._rules.tools
        if tools is None or not tools.unmarked_at_start or not self._no_text:
            return
        src.hold()
        yield from skip_space(src)
        if (yield from is_at_marker(src, marker_set(*self._rules.reasoning.open))):
            self._emit_held()
        else:
            yield from self._attempt(SectionReader.read_call, src.pos)

    def _starts_inside_header(self, header: MessageHeader) -> ReadSteps[bool]:
        """Whether an answer begins in the middle of a header."""
        src = self._buffer
        if any(header.answer_starts):
            yield from skip_space(src)
            return (yield from is_at_marker(src, marker_set(*header.answer_starts)))
        yield from skip_space(src, WORD)
        return (yield from is_at_marker(src, marker_set(*header.end)))

    def _handle_marker(self, what: MarkerMeaning, mark: str, end: int) -> ReadSteps[None]:
        """Do what a mark means here."""
        src = self._buffer
        match what:
            case "section":
                refused = yield from self._attempt(SectionReader.read_section, end)
                if refused and self._state is self._rules.in_text:
                    self._state = self._rules.after_rejected_section  # its next call may be a good one
            case "call":
                yield from self._attempt(SectionReader.read_call, end)
            case "first":
                yield from self._attempt(SectionReader.read_call, src.pos)
            case "header":
                src.hold()
                src.pos = end
                yield from self._read_header()
            case "skip":
                yield from self._skip_pair(mark, end)
            case "over":
                self._enter(self._rules.in_text)
                self._emit(src.text[src.pos : end], src.base + src.pos)
                src.pos = end
            case "wrap" | "unwrap":
                self._handle_wrapper(what == "wrap", end)
            case "drop":
                src.drop_held()
                src.pos = end
            case _:
                src.drop_held()
                yield from self._switch_channel(what, end)

    def _handle_wrapper(self, opening: bool, end: int) -> None:
        """A mark around the answer: it counts only as the first and the last thing of it."""
        src = self._buffer
        open_now = self._in_wrapper or not (self._rules.reasoning.answer_wrapper.open or self._only_text)
        if self._is_leading and not self._in_wrapper if opening else open_now:
            self._in_wrapper = opening
        else:
            self._emit(src.text[src.pos : end], src.base + src.pos)
        src.pos = end

    def _switch_channel(self, what: MarkerMeaning, end: int) -> ReadSteps[None]:
        """Go from text to thoughts or back, unless the mark is only a word here."""
        src, reasoning = self._buffer, self._rules.reasoning
        thinking = self._state.channel == "reasoning"
        stray = not self._is_leading and (what == "open" if thinking else what == "close")
        stray = stray and not reasoning.special_token_markers and (thinking or self._only_text or reasoning.plain_word_markers)
        stray = stray or (reasoning.plain_word_markers and what == "open" and not self._only_text)
        if stray or reasoning.keeps_markers:
            self._emit(src.text[src.pos : end], src.base + src.pos)
        src.pos = end
        if stray:
            return
        self._only_text = False
        if what == "open":
            self._enter(self._reasoning_state())
            if reasoning.label:
                yield from read_marker(src, marker_set(*reasoning.label))
        else:
            self._enter(self._rules.in_text)
        match reasoning.trim:
            case "newline":
                yield from read_marker(src, marker_set("\n"))
            case "space":
                yield from skip_space(src)
        if thinking:
            yield from self._read_unmarked_call()

    def _skip_pair(self, mark: str, end: int) -> ReadSteps[None]:
        """Leave out marks inside text, with what stands between them."""
        src = self._buffer
        close = next(pair.close for pair in self._rules.skipped if mark in pair.open)
        src.hold()
        src.pos = end
        if close:
            every = marker_set(*close, *self._state.meanings)
            try:
                text, mark, end = yield from read_until(src, every, MAX_SKIPPED)
                words = mark not in close or any(map(str.isalpha, text))
                src.pos = end if mark in close else src.pos
            except (UnexpectedEnd, Mismatch):
                words = True
            if words:
                self._emit_held()
                return
        src.drop_held()

    # headers

    def _read_header(self) -> ReadSteps[None]:
        """Read a header and go where it says. One that never ends is text."""
        src, header = self._buffer, self._rules.header
        assert header is not None  # noqa: S101
        text, mark, end = "", "", 0
        try:
            text, mark, end = yield from read_until(src, marker_set(*header.end, *header.close))
        except Mismatch:
            pass
        except UnexpectedEnd:
            if self._truncated:
                src.drop_held()
        if mark not in header.end:
            src.pos = max(src.pos, end)
            self._emit_held()
            return
        self._only_text = False
        if header.routes:
            whole, src.pos = src.held_text(), end
            yield from self._route(header, whole)
        elif HEADER_WORDS.fullmatch(text) is None:
            self._emit_held()
        else:  # the mark itself says where to go
            what = self._state.meanings.get(mark)
            if what is None:
                src.drop_held()
            else:
                yield from self._handle_marker(what, mark, end)

    def _route(self, header: MessageHeader, text: str) -> ReadSteps[None]:
        """Go where a header says; one that says nothing is text."""
        for pattern, where in header.routes:
            found = re.search(pattern, text)
            if found is None:
                continue
            self._enter(self._reasoning_state() if where == "reasoning" else self._rules.in_routed_text)
            if where != "call" or self._sections is None:
                self._buffer.drop_held()
                return
            reading = partial(SectionReader.read_addressed_call, name=found["name"])
            yield from self._attempt(reading, self._buffer.pos)
            return
        self._emit_held()

    # calls

    def _attempt(self, reading: Callable[[SectionReader], ReadSteps[None]], end: int) -> ReadSteps[bool]:
        """Read what may be calls, from `end` on; give it back as text if it is none.

        Whether it was refused, in the middle or at once.
        """
        src, calls, frames = self._buffer, self._calls, self._sections
        assert frames is not None  # noqa: S101
        draft = self._state.channel == "reasoning" and self._policy.in_reasoning == "auto"
        calls.start_attempt(draft=draft)
        if not src.is_holding:
            src.hold()
        src.pos = end
        if draft and not src.is_stopped:
            src.stop_before(self._rules.reasoning_closers)
        refused, left = False, None
        try:
            yield from reading(frames)
            while draft and (yield from frames.has_more_calls()):
                yield from frames.read_section_or_call()
        except Mismatch:
            refused = True
            left = src.take_held() if calls.is_emitting and not draft else None
            self._complete_call()
        except UnexpectedEnd:
            self._handle_end_inside_call()
            src.pos = len(src.text)
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
        src, calls = self._buffer, self._calls
        if not src.is_stopped:
            yield from skip_space(src)
            while (yield from read_marker(src, self._rules.ignorable)) >= 0:
                yield from skip_space(src)
        meant = calls.has_call and not calls.has_rejected_call and src.ended and not src.has_more
        meant = meant and not src.is_stopped
        calls.resolve_draft(meant)
        if meant:
            src.drop_held()
        if not src.is_stopped:
            src.resume()

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
