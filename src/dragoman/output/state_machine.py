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
from dragoman.output.arguments.call_body import marks
from dragoman.output.calls import Calls, Toolbox
from dragoman.output.rules import DEFAULT_POLICY, ParserState, ParserPolicy, FormatRules, MarkerMeaning
from dragoman.output.sections import Frames
from dragoman.output.span import Span
from dragoman.output.spec import MessageHeader
from dragoman.output.text_buffer import (
    UnexpectedEnd,
    ReadSteps,
    Mismatch,
    MarkerFilter,
    TextBuffer,
    read_marker,
    is_at_marker,
    skip_space,
    read_until,
)

WORD = re.compile(r"[\w.\-]*")
WORDS = re.compile(r"[\w.\-\s]{0,128}")  # what a header may hold that is not read
SHORT = 64  # letters of what is left out between marks


class Machine:
    """Where the reading of one answer stands, and how it goes on."""

    def __init__(
        self,
        rules: FormatRules,
        tools: Toolbox,
        inside: bool | None = None,
        policy: ParserPolicy = DEFAULT_POLICY,
        *,
        header: bool = False,
    ) -> None:
        """`inside` says that the answer begins in thoughts, `header` that it begins in a header."""
        self._rules = rules
        self._policy = policy
        self._begins = header
        self._src = TextBuffer()
        self._spans: list[Span] = []
        self._calls = Calls(self._src, self._spans, tools, self._give_back)
        self._frames = None if rules.tools is None else Frames(self._src, self._calls, rules.tools)
        self._inside = rules.reasoning.starts_inside if inside is None else inside
        self._place = self._thoughts() if self._inside else rules.in_text
        self._blank: list[Span] = []  # white space that is only worth telling if text follows
        self._lead = True  # whether nothing was said yet since the last thing that was not text
        self._pure = True  # whether nothing but text was seen
        self._silent = True  # whether no text was
        self._wrapped = False
        self._sieve = MarkerFilter(policy.hidden) if policy.hidden else None
        self._thoughts_said: list[Span] = []  # all there was, where it may be wanted again
        self._cut = False
        self._closed = False
        self._going = self._run()
        next(self._going)

    # places

    def _thoughts(self) -> ParserState:
        rules = self._rules
        match self._policy.in_reasoning:
            case "ignore":
                return rules.in_reasoning_without_calls
            case "accept":
                return rules.in_reasoning_with_calls
        return rules.in_reasoning

    def _go(self, place: ParserState) -> None:
        self._place = place
        self._lead = True
        self._blank.clear()

    def _say(self, text: str, start: int) -> None:
        """Hand out text or thoughts. White space at the beginning waits for what follows it."""
        if not text:
            return
        if self._place.channel == "reasoning":
            self._pure = False
            self._lead = self._lead and not text.strip()
            channel: Channel = "text" if self._rules.reasoning.keeps_markers else "reasoning"
            self._spans.append(Span(channel, text, start))
            return
        span = Span("text", text, start)
        if self._lead:
            if not text.strip():
                self._blank.append(span)
                return
            self._lead = False
            self._spans.extend(self._blank)
            self._blank.clear()
        self._silent = False
        self._spans.append(span)

    def _give_back(self) -> None:
        text, start = self._src.take_held()
        self._say(text, start)

    # the loop

    def _run(self) -> ReadSteps[None]:
        src = self._src
        if self._inside and self._rules.reasoning.keeps_markers:
            yield from self._show()
        yield from self._beginning()
        while True:
            place = self._place
            start, end, number = place.markers.search(src)
            if start > src.pos:
                self._say(src.text[src.pos : start], src.base + src.pos)
                src.pos = start
            if number >= 0:
                mark = place.markers.markers[number]
                yield from self._met(place.meanings[mark], mark, end)
            elif src.is_stopped:
                src.resume()
            elif src.ended:
                self._say(src.text[src.pos :], src.base + src.pos)
                return
            else:
                yield

    def _show(self) -> ReadSteps[None]:
        """Thoughts that stay in the answer get the mark back that the prompt opened them with."""
        reasoning = self._rules.reasoning
        if not (yield from is_at_marker(self._src, marks(*reasoning.open))):
            self._spans.append(Span("text", reasoning.open[0], -len(reasoning.open[0])))

    def _beginning(self) -> ReadSteps[None]:
        """Formats in which the beginning of an answer is a header or a call without a mark."""
        src, header = self._src, self._rules.header
        while not src.text and not src.ended:
            yield
        rules = self._rules
        if self._inside:
            return
        if header is not None and self._begins:
            src.hold()
            yield from self._header()
        elif header is not None and header.answer_starts:
            src.hold()
            if (yield from self._inside_header(header)):
                yield from self._header()
            else:
                self._give_back()
        elif rules.reasoning.opens_at_start:
            if (yield from read_marker(src, marks(*rules.reasoning.opens_at_start))) >= 0:
                self._pure = False
                self._go(self._thoughts())
        else:
            yield from self._unmarked()

    def _unmarked(self) -> ReadSteps[None]:
        """A call that nothing marks: where an answer begins, or after thoughts it began with."""
        src, tools = self._src, self._rules.tools
        if tools is None or not tools.unmarked_at_start or not self._silent:
            return
        src.hold()
        yield from skip_space(src)
        if (yield from is_at_marker(src, marks(*self._rules.reasoning.open))):
            self._give_back()
        else:
            yield from self._attempt(Frames.call, src.pos)

    def _inside_header(self, header: MessageHeader) -> ReadSteps[bool]:
        """Whether an answer begins in the middle of a header."""
        src = self._src
        if any(header.answer_starts):
            yield from skip_space(src)
            return (yield from is_at_marker(src, marks(*header.answer_starts)))
        yield from skip_space(src, WORD)
        return (yield from is_at_marker(src, marks(*header.end)))

    def _met(self, what: MarkerMeaning, mark: str, end: int) -> ReadSteps[None]:
        """Do what a mark means here."""
        src = self._src
        match what:
            case "section":
                refused = yield from self._attempt(Frames.section, end)
                if refused and self._place is self._rules.in_text:
                    self._place = self._rules.after_rejected_section  # its next call may be a good one
            case "call":
                yield from self._attempt(Frames.call, end)
            case "first":
                yield from self._attempt(Frames.call, src.pos)
            case "header":
                src.hold()
                src.pos = end
                yield from self._header()
            case "skip":
                yield from self._skip(mark, end)
            case "over":
                self._go(self._rules.in_text)
                self._say(src.text[src.pos : end], src.base + src.pos)
                src.pos = end
            case "wrap" | "unwrap":
                self._wrap(what == "wrap", end)
            case "drop":
                src.drop_held()
                src.pos = end
            case _:
                src.drop_held()
                yield from self._turn(what, end)

    def _wrap(self, opening: bool, end: int) -> None:
        """A mark around the answer: it counts only as the first and the last thing of it."""
        src = self._src
        open_now = self._wrapped or not (self._rules.reasoning.answer_wrapper.open or self._pure)
        if self._lead and not self._wrapped if opening else open_now:
            self._wrapped = opening
        else:
            self._say(src.text[src.pos : end], src.base + src.pos)
        src.pos = end

    def _turn(self, what: MarkerMeaning, end: int) -> ReadSteps[None]:
        """Go from text to thoughts or back, unless the mark is only a word here."""
        src, reasoning = self._src, self._rules.reasoning
        thinking = self._place.channel == "reasoning"
        stray = not self._lead and (what == "open" if thinking else what == "close")
        stray = stray and not reasoning.special_token_markers and (thinking or self._pure or reasoning.plain_word_markers)
        stray = stray or (reasoning.plain_word_markers and what == "open" and not self._pure)
        if stray or reasoning.keeps_markers:
            self._say(src.text[src.pos : end], src.base + src.pos)
        src.pos = end
        if stray:
            return
        self._pure = False
        if what == "open":
            self._go(self._thoughts())
            if reasoning.label:
                yield from read_marker(src, marks(*reasoning.label))
        else:
            self._go(self._rules.in_text)
        match reasoning.trim:
            case "newline":
                yield from read_marker(src, marks("\n"))
            case "space":
                yield from skip_space(src)
        if thinking:
            yield from self._unmarked()

    def _skip(self, mark: str, end: int) -> ReadSteps[None]:
        """Leave out marks inside text, with what stands between them."""
        src = self._src
        close = next(pair.close for pair in self._rules.skipped if mark in pair.open)
        src.hold()
        src.pos = end
        if close:
            every = marks(*close, *self._place.meanings)
            try:
                text, mark, end = yield from read_until(src, every, SHORT)
                words = mark not in close or any(map(str.isalpha, text))
                src.pos = end if mark in close else src.pos
            except (UnexpectedEnd, Mismatch):
                words = True
            if words:
                self._give_back()
                return
        src.drop_held()

    # headers

    def _header(self) -> ReadSteps[None]:
        """Read a header and go where it says. One that never ends is text."""
        src, header = self._src, self._rules.header
        assert header is not None  # noqa: S101
        text, mark, end = "", "", 0
        try:
            text, mark, end = yield from read_until(src, marks(*header.end, *header.close))
        except Mismatch:
            pass
        except UnexpectedEnd:
            if self._cut:
                src.drop_held()
        if mark not in header.end:
            src.pos = max(src.pos, end)
            self._give_back()
            return
        self._pure = False
        if header.routes:
            whole, src.pos = src.held_text(), end
            yield from self._route(header, whole)
        elif WORDS.fullmatch(text) is None:
            self._give_back()
        else:  # the mark itself says where to go
            what = self._place.meanings.get(mark)
            if what is None:
                src.drop_held()
            else:
                yield from self._met(what, mark, end)

    def _route(self, header: MessageHeader, text: str) -> ReadSteps[None]:
        """Go where a header says; one that says nothing is text."""
        for pattern, where in header.routes:
            found = re.search(pattern, text)
            if found is None:
                continue
            self._go(self._thoughts() if where == "reasoning" else self._rules.in_routed_text)
            if where != "call" or self._frames is None:
                self._src.drop_held()
                return
            reading = partial(Frames.addressed, name=found["name"])
            yield from self._attempt(reading, self._src.pos)
            return
        self._give_back()

    # calls

    def _attempt(self, reading: Callable[[Frames], ReadSteps[None]], end: int) -> ReadSteps[bool]:
        """Read what may be calls, from `end` on; give it back as text if it is none.

        Whether it was refused, in the middle or at once.
        """
        src, calls, frames = self._src, self._calls, self._frames
        assert frames is not None  # noqa: S101
        draft = self._place.channel == "reasoning" and self._policy.in_reasoning == "auto"
        calls.attempt(draft=draft)
        if not src.is_holding:
            src.hold()
        src.pos = end
        if draft and not src.is_stopped:
            src.stop_before(self._rules.reasoning_closers)
        refused, left = False, None
        try:
            yield from reading(frames)
            while draft and (yield from frames.follows()):
                yield from frames.section_or_call()
        except Mismatch:
            refused = True
            left = src.take_held() if calls.begun and not draft else None
            self._complete()
        except UnexpectedEnd:
            self._ended()
            src.pos = len(src.text)
        if draft:
            yield from self._judge()
        elif calls.found:
            self._pure = False
            self._go(self._rules.after_call)
        if left is not None:
            self._say(*left)
        self._give_back()
        calls.end()
        return refused and not calls.found

    def _judge(self) -> ReadSteps[None]:
        """A call among thoughts counts if nothing follows it."""
        src, calls = self._src, self._calls
        if not src.is_stopped:
            yield from skip_space(src)
            while (yield from read_marker(src, self._rules.ignorable)) >= 0:
                yield from skip_space(src)
        meant = calls.found and not calls.spoiled and src.ended and not src.has_more
        meant = meant and not src.is_stopped
        calls.judge(meant)
        if meant:
            src.drop_held()
        if not src.is_stopped:
            src.resume()

    def _complete(self) -> None:
        if self._calls.begun:
            self._calls.args(self._calls.closing())
            self._calls.close()

    def _ended(self) -> None:
        """The answer ended inside a call, or what looked like one."""
        calls = self._calls
        if not self._cut:
            self._complete()
        elif calls.opened and not calls.muted:
            calls.args("" if calls.begun else calls.held())
            self._src.pos = len(self._src.text)
            calls.settle()
