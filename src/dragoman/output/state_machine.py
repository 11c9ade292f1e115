"""The parser's state machine; `parser` has its interface.

The machine is in one of a few states, each on the text or the reasoning channel, and looks only for
markers that have a meaning there. Text before a marker is emitted at once; a tail that may still
become a marker is held back until that is decided. A marker that may start a call starts an
attempt: the text is held until it is certainly a call, and emitted as text if it is not one.

A call inside reasoning is a draft while more text follows, because models quote calls while they
reason. It counts only if the reasoning is never closed and nothing follows the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from dragoman.events import Channel
from dragoman.output.arguments.call_body import get_markers
from dragoman.output.calls import CallRecorder, DeclaredTools
from dragoman.output.channels import read_channel
from dragoman.output.headers import HEADER_WORDS, is_header_start, starts_inside_header
from dragoman.output.marker_filter import MarkerFilter
from dragoman.output.reader_stack import ReaderStack
from dragoman.output.rules import (
    DEFAULT_POLICY,
    FormatRules,
    MarkerMeaning,
    ParserPolicy,
    ParserState,
    is_markup,
)
from dragoman.output.sections import SectionReader
from dragoman.output.span import Span
from dragoman.output.spec import MessageHeader
from dragoman.output.text_buffer import (
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    is_at_marker,
    read_enclosed,
    read_marker,
    read_until,
    skip_space,
)


class ParserMachine:
    """The state of reading one answer, and the transitions."""

    def __init__(
        self,
        rules: FormatRules,
        tools: DeclaredTools,
        inside: bool | None = None,
        policy: ParserPolicy = DEFAULT_POLICY,
        *,
        header: bool = False,
    ) -> None:
        """`inside`: the answer starts in reasoning. `header`: it starts inside a header."""
        self._rules = rules
        self._policy = policy
        self._starts_in_header = header
        self._buffer = buffer = TextBuffer()
        self._spans: list[Span] = []
        self._text: list[Span] = [] if policy.only_calls else self._spans  # where text is emitted
        self._readers = readers = ReaderStack()
        self._calls = CallRecorder(buffer, self._spans, tools, self._emit_held, readers.run_apart)
        self._sections = SectionReader(buffer, self._calls, rules.tools) if rules.tools else None
        self._starts_in_reasoning = rules.reasoning.starts_inside if inside is None else inside
        self._state = self._reasoning_state() if self._starts_in_reasoning else rules.in_text
        self._text_state = rules.in_text  # the state that reasoning returns to when it is closed
        self._leading_space: list[Span] = []  # white space to emit only if text follows
        self._is_leading = True  # whether only white space was read since the state was entered
        self._only_text = True  # whether the answer so far is only text
        self._no_text = True  # whether the answer so far has no text
        self._filter = MarkerFilter(policy.hidden) if policy.hidden else None
        self._emitted = list[Span]() if policy.unclosed_reasoning == "repeat" else None
        self._in_wrapper = self._truncated = self._closed = False
        readers.start(self._run())

    # states

    def _reasoning_state(self) -> ParserState:
        return self._rules.in_reasoning[self._policy.in_reasoning]

    def _enter(self, state: ParserState, *, leading: bool = True) -> None:
        self._state, self._is_leading = state, leading
        self._leading_space.clear()

    def _emit(self, text: str, start: int) -> None:
        """Emit text or reasoning. Leading white space is held until text follows it."""
        if not text:
            return
        if self._state.channel == "reasoning":
            self._only_text = False
            self._is_leading = self._is_leading and not text.strip()
            channel: Channel = "text" if self._rules.reasoning.keeps_markers else "reasoning"
            self._spans.append(tuple.__new__(Span, (channel, text, start, 0, "")))
            return
        span = tuple.__new__(Span, ("text", text, start, 0, ""))
        if self._is_leading:
            if not text.strip():
                self._leading_space.append(span)
                return
            if not (self._buffer.in_call and self._calls.has_call):  # else it is before a call
                self._text.extend(self._leading_space)
            self._is_leading = False
            self._leading_space.clear()
        self._no_text = False
        self._text.append(span)
        if self._calls.names_may_precede:
            self._calls.add_text(text, start)

    def _emit_up_to(self, end: int) -> None:
        """Emit and read the text up to a position."""
        buffer = self._buffer
        self._emit(buffer.text[buffer.pos : end], buffer.base + buffer.pos)
        buffer.pos = end

    def _emit_held(self) -> None:
        self._emit(*self._buffer.take_held())

    # the main loop: emit text up to each marker, and act on the marker

    def _run(self) -> ReadSteps[None]:
        buffer = self._buffer
        if self._starts_in_reasoning and self._rules.reasoning.keeps_markers:
            yield from self._emit_opening_marker()
        yield from self._read_start()
        while True:
            state = self._state
            start, end, index = state.markers.search(buffer)
            if self._truncated and index < 0:
                start = state.markers.find_cut_marker(buffer)
            if start > buffer.pos:
                self._emit_up_to(start)
            if index >= 0:
                marker = state.markers.markers[index]
                yield from self._handle_marker(state.meanings[marker], marker, end)
            elif buffer.is_stopped:
                buffer.resume()
            elif buffer.has_ended:
                if not self._truncated:
                    self._emit_up_to(len(buffer.text))
                return
            else:
                yield

    def _emit_opening_marker(self) -> ReadSteps[None]:
        """Emit the marker with which the prompt opened reasoning, in formats that keep markers."""
        reasoning = self._rules.reasoning
        if not (yield from is_at_marker(self._buffer, get_markers(*reasoning.open))):
            self._spans.append(Span("text", reasoning.open[0], -len(reasoning.open[0])))

    def _read_start(self) -> ReadSteps[None]:
        """Handle formats in which an answer may start with a header or a call without a marker."""
        buffer, rules, header = self._buffer, self._rules, self._rules.header
        while not buffer.text and not buffer.has_ended:
            yield
        if self._starts_in_reasoning:
            return
        if header is not None and self._starts_in_header:
            buffer.hold()
            yield from self._read_header()
        elif header is not None and header.answer_starts:
            buffer.hold()
            if (yield from starts_inside_header(buffer, header)):
                yield from self._read_header()
            else:
                self._emit_held()
        elif rules.reasoning.opens_at_start:
            if (yield from read_marker(buffer, get_markers(*rules.reasoning.opens_at_start))) >= 0:
                self._only_text = False
                self._enter(self._reasoning_state())
        else:
            yield from self._read_unmarked_call()

    def _read_unmarked_call(self) -> ReadSteps[None]:
        """Read a call without a marker, at the start of an answer or after leading reasoning."""
        buffer, tools = self._buffer, self._rules.tools
        if tools is None or not tools.unmarked_at_start or not self._no_text:
            return
        buffer.hold()
        yield from skip_space(buffer)
        if (yield from is_at_marker(buffer, get_markers(*self._rules.reasoning.open))):
            self._emit_held()
        else:
            yield from self._attempt(SectionReader.read_call, buffer.pos)

    def _handle_marker(self, meaning: MarkerMeaning, marker: str, end: int) -> ReadSteps[None]:
        """Act on a marker according to its meaning in the current state."""
        buffer = self._buffer
        if meaning == "open" and self._rules.reasoning.channels:
            meaning, end = yield from read_channel(buffer, end, self._rules.reasoning)
        match meaning:
            case "section":
                rejected = yield from self._attempt(SectionReader.read_section, end)
                if rejected and self._state is self._rules.in_text:
                    self._state = self._rules.after_rejected_section  # a later call may be valid
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
                self._emit_up_to(end)
            case "wrap" | "unwrap":
                self._handle_wrapper(meaning == "wrap", end)
            case "drop":
                buffer.drop_held()
                buffer.pos = end
            case _:
                buffer.drop_held()
                yield from self._switch_channel(meaning, end)

    def _handle_wrapper(self, opening: bool, end: int) -> None:
        """Handle a marker around the answer: it counts only as its first and last item."""
        buffer = self._buffer
        wrapper = self._rules.reasoning.answer_wrapper
        is_open = self._in_wrapper or not (wrapper.open or self._only_text)
        if self._is_leading and not self._in_wrapper if opening else is_open:
            self._in_wrapper = opening
        else:
            self._emit_up_to(end)
        buffer.pos = end

    def _switch_channel(self, meaning: MarkerMeaning, end: int) -> ReadSteps[None]:
        """Switch between text and reasoning, unless the marker is a plain word here."""
        buffer, reasoning = self._buffer, self._rules.reasoning
        in_reasoning = self._state.channel == "reasoning"
        is_word = meaning == "text" or self._is_plain_word(meaning)
        if is_word or reasoning.keeps_markers:
            self._emit_up_to(end)
        buffer.pos = end
        if is_word:
            return
        if reasoning.keeps_markers and self._policy.only_calls:
            self._spans += self._text  # the marker is part of the answer
            self._text.clear()
        self._only_text = False
        if not in_reasoning:
            self._text_state = self._state if meaning != "end" else self._rules.in_text
        self._enter(self._reasoning_state() if meaning == "open" else self._text_state)
        match reasoning.trim:
            case "newline":
                yield from read_marker(buffer, get_markers("\n"))
            case "space":
                yield from skip_space(buffer)
        if in_reasoning:
            yield from self._read_unmarked_call()

    def _is_plain_word(self, meaning: MarkerMeaning) -> bool:
        """Whether an opening or closing marker of reasoning is only a word in the text."""
        reasoning, in_reasoning = self._rules.reasoning, self._state.channel == "reasoning"
        if reasoning.plain_word_markers and meaning == "open" and not self._only_text:
            return True
        if self._is_leading or meaning != ("open" if in_reasoning else "close"):
            return False
        can_be_word = in_reasoning or self._only_text or reasoning.plain_word_markers
        return can_be_word and not reasoning.special_token_markers

    def _skip_pair(self, marker: str, end: int) -> ReadSteps[None]:
        """Skip a pair of markers inside text and the text that they enclose."""
        buffer = self._buffer
        close = next(pair.close for pair in self._rules.skipped if marker in pair.open)
        buffer.hold()
        buffer.pos = end
        others = self._state.markers
        if close and not (yield from read_enclosed(buffer, get_markers(*close), others)):
            self._emit_held()
        else:
            buffer.drop_held()

    # headers

    def _read_header(self) -> ReadSteps[None]:
        """Read a header and follow its route. A header without an end is text."""
        buffer, header = self._buffer, self._rules.header
        assert header is not None  # noqa: S101
        text, marker, end = "", "", 0
        try:
            ends = get_markers(*header.end, *header.close, *header.open[:1])
            text, marker, end = yield from read_until(buffer, ends)
        except Mismatch:
            pass
        except UnexpectedEnd:
            if self._truncated or is_header_start(header, buffer.get_held_text()):
                buffer.drop_held()
        if marker not in header.end:
            buffer.pos = buffer.pos if marker in header.open else max(buffer.pos, end)
            self._emit_held()
            return
        self._only_text = False
        if header.routes:
            header_text, buffer.pos = buffer.get_held_text(), end
            yield from self._route(header, header_text)
        elif HEADER_WORDS.fullmatch(text) is None:
            self._emit_held()
        else:  # the marker itself decides
            meaning = self._state.meanings.get(marker)
            if meaning is not None:
                yield from self._handle_marker(meaning, marker, end)
                return
            buffer.drop_held()

    def _route(self, header: MessageHeader, text: str) -> ReadSteps[None]:
        """Follow the route of a header; a header without a route is text."""
        for pattern, channel in header.routes:
            match = re.search(pattern, text)
            if match is None:
                continue
            is_reasoning = channel == "reasoning"
            self._enter(self._reasoning_state() if is_reasoning else self._rules.in_routed_text)
            if channel != "call" or self._sections is None:
                self._buffer.drop_held()
                return
            read = partial(SectionReader.read_addressed_call, name=match["name"])
            rejected = yield from self._attempt(read, self._buffer.pos, addressed=True)
            if rejected and self._rules.tools is not None and self._rules.tools.section.open:
                self._state = self._rules.after_rejected_section
            return
        self._emit_held()

    # calls

    def _attempt(
        self,
        read: Callable[[SectionReader], ReadSteps[None]],
        end: int,
        *,
        addressed: bool = False,
    ) -> ReadSteps[bool]:
        """Read possible calls from `end` on; emit the text if there are none.

        `addressed`: a header names the tool, so that the text is certainly a call.
        Return whether the text turned out not to contain a call.
        """
        buffer, calls, sections = self._buffer, self._calls, self._sections
        assert sections is not None  # noqa: S101
        draft = self._state.channel == "reasoning" and self._policy.in_reasoning == "auto"
        draft = draft and not self._rules.calls_end_reasoning
        marker = buffer.text[buffer.pos : end]
        calls.start_attempt(draft=draft, marked=addressed or bool(marker), leading=self._is_leading)
        if not buffer.is_holding:
            buffer.hold()
        buffer.pos = end
        if draft and not buffer.is_stopped:
            buffer.stop_before(self._rules.reasoning_closers)
        rejected = False
        buffer.in_call = True
        try:
            yield from read(sections)
            while draft and (yield from sections.has_more_calls()):
                yield from sections.read_section_or_call()
        except Mismatch:
            rejected = True
            calls.complete_damaged_call()
        except UnexpectedEnd:
            calls.end_inside_call(truncated=self._truncated)
            buffer.pos = len(buffer.text)
        buffer.in_call = False
        is_cut = self._truncated and not buffer.has_more and not draft
        if is_cut and (addressed or is_markup(marker)):
            buffer.drop_held()  # an incomplete call is neither a call nor text
        has_calls = calls.has_call
        if draft:
            yield from self._resolve_draft()
        elif has_calls:
            self._only_text = False
            self._enter(self._rules.after_call, leading=not calls.is_undeclared)
        self._emit_held()
        calls.end_attempt(mismatched=rejected)
        if has_calls and not draft and (not rejected or (yield from sections.skip_early_close())):
            while (yield from sections.read_unopened_calls(after_damage=rejected)):
                pass
            self._emit_held()
        return rejected and not has_calls

    def _resolve_draft(self) -> ReadSteps[None]:
        """Accept a call inside reasoning if nothing follows it."""
        buffer, calls = self._buffer, self._calls
        if not buffer.is_stopped:
            yield from skip_space(buffer)
            while (yield from read_marker(buffer, self._rules.ignorable)) >= 0:
                yield from skip_space(buffer)
        at_end = buffer.has_ended and not buffer.has_more and not buffer.is_stopped
        is_call = at_end and calls.has_call and not calls.has_rejected_call
        calls.resolve_draft(is_call)
        if is_call:
            buffer.drop_held()
        if not buffer.is_stopped:
            buffer.resume()
