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
from dragoman.output.rules import DEFAULT, Place, Policy, Rules, What
from dragoman.output.sections import Frames
from dragoman.output.span import Span
from dragoman.output.spec import Header
from dragoman.output.text_buffer import (
    Cut,
    Reading,
    Refused,
    Sieve,
    Source,
    here,
    peek,
    skip,
    until,
)

WORD = re.compile(r"[\w.\-]*")
WORDS = re.compile(r"[\w.\-\s]{0,128}")  # what a header may hold that is not read
SHORT = 64  # letters of what is left out between marks


class Machine:
    """Where the reading of one answer stands, and how it goes on."""

    def __init__(
        self,
        rules: Rules,
        tools: Toolbox,
        inside: bool | None = None,
        policy: Policy = DEFAULT,
        *,
        header: bool = False,
    ) -> None:
        """`inside` says that the answer begins in thoughts, `header` that it begins in a header."""
        self._rules = rules
        self._policy = policy
        self._begins = header
        self._src = Source()
        self._spans: list[Span] = []
        self._calls = Calls(self._src, self._spans, tools, self._give_back)
        self._frames = None if rules.tools is None else Frames(self._src, self._calls, rules.tools)
        self._inside = rules.reasoning.inside if inside is None else inside
        self._place = self._thoughts() if self._inside else rules.text
        self._blank: list[Span] = []  # white space that is only worth telling if text follows
        self._lead = True  # whether nothing was said yet since the last thing that was not text
        self._pure = True  # whether nothing but text was seen
        self._silent = True  # whether no text was
        self._wrapped = False
        self._sieve = Sieve(policy.hidden) if policy.hidden else None
        self._thoughts_said: list[Span] = []  # all there was, where it may be wanted again
        self._cut = False
        self._closed = False
        self._going = self._run()
        next(self._going)

    # places

    def _thoughts(self) -> Place:
        rules = self._rules
        match self._policy.in_reasoning:
            case "ignore":
                return rules.alone
            case "accept":
                return rules.leaving
        return rules.thoughts

    def _go(self, place: Place) -> None:
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
            channel: Channel = "text" if self._rules.reasoning.shown else "reasoning"
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
        text, start = self._src.kept()
        self._say(text, start)

    # the loop

    def _run(self) -> Reading[None]:
        src = self._src
        if self._inside and self._rules.reasoning.shown:
            yield from self._show()
        yield from self._beginning()
        while True:
            place = self._place
            start, end, number = place.marks.search(src)
            if start > src.at:
                self._say(src.text[src.at : start], src.base + src.at)
                src.at = start
            if number >= 0:
                mark = place.marks.marks[number]
                yield from self._met(place.meanings[mark], mark, end)
            elif src.walled:
                src.lift()
            elif src.ended:
                self._say(src.text[src.at :], src.base + src.at)
                return
            else:
                yield

    def _show(self) -> Reading[None]:
        """Thoughts that stay in the answer get the mark back that the prompt opened them with."""
        reasoning = self._rules.reasoning
        if not (yield from peek(self._src, marks(*reasoning.open))):
            self._spans.append(Span("text", reasoning.open[0], -len(reasoning.open[0])))

    def _beginning(self) -> Reading[None]:
        """Formats in which the beginning of an answer is a header or a call without a mark."""
        src, header = self._src, self._rules.header
        while not src.text and not src.ended:
            yield
        rules = self._rules
        if self._inside:
            return
        if header is not None and self._begins:
            src.keep()
            yield from self._header()
        elif header is not None and header.begins:
            src.keep()
            if (yield from self._inside_header(header)):
                yield from self._header()
            else:
                self._give_back()
        elif rules.reasoning.begins:
            if (yield from here(src, marks(*rules.reasoning.begins))) >= 0:
                self._pure = False
                self._go(self._thoughts())
        else:
            yield from self._unmarked()

    def _unmarked(self) -> Reading[None]:
        """A call that nothing marks: where an answer begins, or after thoughts it began with."""
        src, tools = self._src, self._rules.tools
        if tools is None or not tools.start or not self._silent:
            return
        src.keep()
        yield from skip(src)
        if (yield from peek(src, marks(*self._rules.reasoning.open))):
            self._give_back()
        else:
            yield from self._attempt(Frames.call, src.at)

    def _inside_header(self, header: Header) -> Reading[bool]:
        """Whether an answer begins in the middle of a header."""
        src = self._src
        if any(header.begins):
            yield from skip(src)
            return (yield from peek(src, marks(*header.begins)))
        yield from skip(src, WORD)
        return (yield from peek(src, marks(*header.end)))

    def _met(self, what: What, mark: str, end: int) -> Reading[None]:
        """Do what a mark means here."""
        src = self._src
        match what:
            case "section":
                refused = yield from self._attempt(Frames.section, end)
                if refused and self._place is self._rules.text:
                    self._place = self._rules.opened  # its next call may be a good one
            case "call":
                yield from self._attempt(Frames.call, end)
            case "first":
                yield from self._attempt(Frames.call, src.at)
            case "header":
                src.keep()
                src.at = end
                yield from self._header()
            case "skip":
                yield from self._skip(mark, end)
            case "over":
                self._go(self._rules.text)
                self._say(src.text[src.at : end], src.base + src.at)
                src.at = end
            case "wrap" | "unwrap":
                self._wrap(what == "wrap", end)
            case "drop":
                src.forget()
                src.at = end
            case _:
                src.forget()
                yield from self._turn(what, end)

    def _wrap(self, opening: bool, end: int) -> None:
        """A mark around the answer: it counts only as the first and the last thing of it."""
        src = self._src
        open_now = self._wrapped or not (self._rules.reasoning.wrap.open or self._pure)
        if self._lead and not self._wrapped if opening else open_now:
            self._wrapped = opening
        else:
            self._say(src.text[src.at : end], src.base + src.at)
        src.at = end

    def _turn(self, what: What, end: int) -> Reading[None]:
        """Go from text to thoughts or back, unless the mark is only a word here."""
        src, reasoning = self._src, self._rules.reasoning
        thinking = self._place.channel == "reasoning"
        stray = not self._lead and (what == "open" if thinking else what == "close")
        stray = stray and not reasoning.control and (thinking or self._pure or reasoning.words)
        stray = stray or (reasoning.words and what == "open" and not self._pure)
        if stray or reasoning.shown:
            self._say(src.text[src.at : end], src.base + src.at)
        src.at = end
        if stray:
            return
        self._pure = False
        if what == "open":
            self._go(self._thoughts())
            if reasoning.label:
                yield from here(src, marks(*reasoning.label))
        else:
            self._go(self._rules.text)
        match reasoning.trim:
            case "newline":
                yield from here(src, marks("\n"))
            case "space":
                yield from skip(src)
        if thinking:
            yield from self._unmarked()

    def _skip(self, mark: str, end: int) -> Reading[None]:
        """Leave out marks inside text, with what stands between them."""
        src = self._src
        close = next(pair.close for pair in self._rules.skip if mark in pair.open)
        src.keep()
        src.at = end
        if close:
            every = marks(*close, *self._place.meanings)
            try:
                text, mark, end = yield from until(src, every, SHORT)
                words = mark not in close or any(map(str.isalpha, text))
                src.at = end if mark in close else src.at
            except (Cut, Refused):
                words = True
            if words:
                self._give_back()
                return
        src.forget()

    # headers

    def _header(self) -> Reading[None]:
        """Read a header and go where it says. One that never ends is text."""
        src, header = self._src, self._rules.header
        assert header is not None  # noqa: S101
        text, mark, end = "", "", 0
        try:
            text, mark, end = yield from until(src, marks(*header.end, *header.close))
        except Refused:
            pass
        except Cut:
            if self._cut:
                src.forget()
        if mark not in header.end:
            src.at = max(src.at, end)
            self._give_back()
            return
        self._pure = False
        if header.routes:
            whole, src.at = src.so_far(), end
            yield from self._route(header, whole)
        elif WORDS.fullmatch(text) is None:
            self._give_back()
        else:  # the mark itself says where to go
            what = self._place.meanings.get(mark)
            if what is None:
                src.forget()
            else:
                yield from self._met(what, mark, end)

    def _route(self, header: Header, text: str) -> Reading[None]:
        """Go where a header says; one that says nothing is text."""
        for pattern, where in header.routes:
            found = re.search(pattern, text)
            if found is None:
                continue
            self._go(self._thoughts() if where == "reasoning" else self._rules.said)
            if where != "call" or self._frames is None:
                self._src.forget()
                return
            reading = partial(Frames.addressed, name=found["name"])
            yield from self._attempt(reading, self._src.at)
            return
        self._give_back()

    # calls

    def _attempt(self, reading: Callable[[Frames], Reading[None]], end: int) -> Reading[bool]:
        """Read what may be calls, from `end` on; give it back as text if it is none.

        Whether it was refused, in the middle or at once.
        """
        src, calls, frames = self._src, self._calls, self._frames
        assert frames is not None  # noqa: S101
        draft = self._place.channel == "reasoning" and self._policy.in_reasoning == "auto"
        calls.attempt(draft=draft)
        if not src.keeping:
            src.keep()
        src.at = end
        if draft and not src.walled:
            src.fence(self._rules.closers)
        refused, left = False, None
        try:
            yield from reading(frames)
            while draft and (yield from frames.follows()):
                yield from frames.section_or_call()
        except Refused:
            refused = True
            left = src.kept() if calls.begun and not draft else None
            self._complete()
        except Cut:
            self._ended()
            src.at = len(src.text)
        if draft:
            yield from self._judge()
        elif calls.found:
            self._pure = False
            self._go(self._rules.after)
        if left is not None:
            self._say(*left)
        self._give_back()
        calls.end()
        return refused and not calls.found

    def _judge(self) -> Reading[None]:
        """A call among thoughts counts if nothing follows it."""
        src, calls = self._src, self._calls
        if not src.walled:
            yield from skip(src)
            while (yield from here(src, self._rules.nothing)) >= 0:
                yield from skip(src)
        meant = calls.found and not calls.spoiled and src.ended and not src.more
        meant = meant and not src.walled
        calls.judge(meant)
        if meant:
            src.forget()
        if not src.walled:
            src.lift()

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
            self._src.at = len(self._src.text)
            calls.settle()
