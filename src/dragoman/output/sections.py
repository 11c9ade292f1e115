"""Reads calls between markers: sections, the calls in them, and the markers that close both.

Models omit wrappers and closing markers, so everything but the body of a call may be missing.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TypeGuard

from dragoman.output.arguments.bodies import can_start, read_body
from dragoman.output.arguments.call_body import get_markers, next_char, read_named_arguments
from dragoman.output.arguments.end_markers import make_end_markers
from dragoman.output.arguments.pythonic import OBJECTS
from dragoman.output.arguments.stray_markup import FENCES
from dragoman.output.arguments.tags import read_all_arguments
from dragoman.output.calls import STRAY, CallRecorder
from dragoman.output.rules import ENDS_OF_TURN
from dragoman.output.spec import (
    CallBody,
    JsonObjects,
    NamedObject,
    NestedElements,
    PythonCalls,
    TaggedArguments,
    ToolFormat,
)
from dragoman.output.text_buffer import (
    SPACE,
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    is_at_marker,
    peek_char,
    read_closing_marker,
    read_marker,
    read_until,
    skip_space,
)

OBJECT_LIST = re.compile(r"\[\s*\{")
FIRST_KEY = re.compile(r"\{\s{0,64}(?:([\"'])([^\"'\\]{0,64}))?")  # or its beginning
BRACKETS = frozenset("}]),;")
SPACES, TEXT = re.compile(r"\s{0,64}"), re.compile(r"[^\s<>{}\[\]()|\"'`,;:]")
WORDS, MARKUP = re.compile(r"\w"), re.compile(r"[<>{}\[\]|]")


class SectionReader:
    """Reads calls of one format."""

    def __init__(self, buffer: TextBuffer, calls: CallRecorder, tools: ToolFormat) -> None:
        self._buffer = buffer
        self._calls = calls
        self._tools = tools
        objects = next((body for body in tools.bodies if isinstance(body, JsonObjects)), OBJECTS)
        calls.names_may_precede = any(map(_may_follow_name, tools.bodies))
        names = calls.tools.names if objects.keyed else ()
        ends, opens = _find_end_markers(tools), get_markers(*tools.call.open)
        calls.make_list_ends = partial(make_end_markers, ends, opens, objects, names)
        is_list = bool(tools.unmarked_starts or OBJECT_LIST.search(tools.example))
        is_list &= objects in tools.bodies  # else every call has markers of its own
        calls.ends = calls.make_list_ends() if is_list else make_end_markers(ends, opens)

    def read_section(self) -> ReadSteps[None]:
        """Read the calls of a section whose opening marker was read."""
        tools, buffer, calls = self._tools, self._buffer, self._calls
        is_first = True
        while True:
            yield from skip_space(buffer)
            if (yield from read_closing_marker(buffer, get_markers(*tools.section.close))):
                calls.commit()
                return
            if (yield from read_marker(buffer, get_markers(*tools.section.open))) >= 0:
                is_first = True  # another section, or a doubled marker
                continue
            if not is_first and self._is_at_bracket():
                yield from skip_space(buffer, STRAY)
                if not (yield from self._is_before_call_or_end()):
                    return
                continue
            calls.start_next_call()
            has_marker = False
            while (yield from read_marker(buffer, get_markers(*tools.call.open))) >= 0:
                has_marker = True  # a doubled one counts once
                yield from skip_space(buffer)
            if has_marker and (yield from self._read_empty_call()):
                is_first = False
                continue
            if not has_marker and not (yield from self._skip_to_unmarked_call(not is_first)):
                if is_first or not calls.has_call:
                    yield from self._read_wrapped_text()
                return
            yield from self._read_body_and_close()
            is_first = False
            if not (tools.section.close or calls.has_call):
                calls.commit()  # an empty list

    def _read_empty_call(self) -> ReadSteps[bool]:
        """Read a closing marker right after the opening one, which is an empty call."""
        yield from skip_space(self._buffer)
        if (yield from read_marker(self._buffer, get_markers(*self._tools.call.close))) < 0:
            return False
        self._calls.commit()
        return True

    def _is_at_bracket(self) -> bool:
        """Whether a bracket or separator follows that closes or separates nothing."""
        buffer = self._buffer
        return buffer.text[buffer.pos : buffer.pos + 1] in BRACKETS and not isinstance(
            self._tools.bodies[0], TaggedArguments | NestedElements
        )

    def _is_before_call_or_end(self) -> ReadSteps[bool]:
        """Whether another call may follow, or the end, before which what was skipped is dropped."""
        tools, char = self._tools, (yield from peek_char(self._buffer))
        if char in ("{", "["):
            return True
        markers = (*tools.section.close, *tools.section.open, *tools.call.open, *ENDS_OF_TURN)
        is_end = not char or (yield from is_at_marker(self._buffer, get_markers(*markers)))
        if is_end:
            self._calls.commit()
        return is_end

    def _read_wrapped_text(self) -> ReadSteps[None]:
        """Read text between the markers of a section: it is text, and the markers are dropped.

        Raises `Mismatch` if the markers may be quoted: text stands before them, the calls have no
        markers of their own, or the section continues.
        """
        tools, buffer, calls = self._tools, self._buffer, self._calls
        if not tools.call.open or not calls.is_leading:
            raise Mismatch
        markers = get_markers(*tools.section.close, *tools.call.open, *tools.section.open)
        text, marker, end = yield from read_until(buffer, markers)
        if marker not in tools.section.close or not WORDS.search(text) or MARKUP.search(text):
            raise Mismatch
        buffer.hold_again(text, buffer.base + buffer.pos - len(text))
        calls.reject_text()
        buffer.pos = end
        calls.commit()

    def skip_early_close(self) -> ReadSteps[bool]:
        """Skip the closing marker of a section in whose list it stands too early."""
        return (yield from read_marker(self._buffer, get_markers(*self._tools.section.close))) >= 0

    def read_unopened_calls(self, *, after_damage: bool) -> ReadSteps[bool]:
        """Read calls after others whose opening marker is missing; the closing one must follow.

        `after_damage`: brackets and separators that the calls before them left may come first.
        Calls that repeat the ones before are dropped. Return whether there were calls.
        """
        tools, buffer, calls = self._tools, self._buffer, self._calls
        yield from peek_char(buffer)
        buffer.hold()
        yield from skip_space(buffer, STRAY if after_damage else SPACE)
        char = yield from peek_char(buffer)
        if not (char and tools.section.close and self._starts_with_bracket(char)):
            return False
        others = get_markers(*tools.section.open, *tools.ignored_after_call)
        if (yield from is_at_marker(buffer, others)):  # which may start with a bracket, too
            return False
        calls.start_attempt(draft=True, marked=False)
        is_closed = False
        try:
            yield from self._read_body_and_close()
            yield from skip_space(buffer, STRAY)
            while after_damage and self._starts_with_bracket((yield from peek_char(buffer))):
                yield from self._read_body_and_close()  # the rest of the list
                yield from skip_space(buffer, STRAY)
            buffer.in_call = True
            is_closed = (yield from read_marker(buffer, get_markers(*tools.section.close))) >= 0
        except Mismatch:
            pass
        except UnexpectedEnd:
            if buffer.in_call:
                buffer.drop_held()  # the token limit cut the closing marker
            buffer.pos = len(buffer.text)
        buffer.in_call = False
        is_call = is_closed and calls.has_call and not calls.has_rejected_call
        calls.resolve_draft(is_call, drop_repeated=True)
        calls.end_attempt(mismatched=False)
        if is_call:
            buffer.drop_held()
        return is_call

    def _starts_with_bracket(self, char: str) -> bool:
        """Whether calls are lists or objects, and one starts with this character."""
        return char in ("{", "[") and any(
            isinstance(body, JsonObjects | PythonCalls) and can_start(body, char)
            for body in self._tools.bodies
        )

    def read_call(self) -> ReadSteps[None]:
        """Read a call without a section; several, if only a comma or semicolon separates them."""
        if self._tools.call.open and (yield from self._read_empty_call()):
            return
        yield from self._read_body_and_close()
        while self._tools.unmarked_starts and (yield from self._skip_to_joined_call()):
            yield from self._read_body_and_close()

    def read_addressed_call(self, name: str) -> ReadSteps[None]:
        """Read the call of a message that is addressed to a tool."""
        tools, buffer, calls = self._tools, self._buffer, self._calls
        body = tools.bodies[0]
        yield from skip_space(buffer)
        if (yield from is_at_marker(buffer, get_markers(*tools.call.close))):
            calls.open_call(name)
            calls.write_arguments("{}")
            calls.close_call()
        elif isinstance(body, NamedObject):
            yield from read_named_arguments(buffer, body, calls, name)
        elif isinstance(body, TaggedArguments) and not tools.call.open:
            is_fenced = (yield from read_marker(buffer, get_markers(*FENCES))) >= 0
            calls.open_call(name)
            yield from read_all_arguments(buffer, body, calls, tools.call.close)
            if is_fenced:
                yield from skip_space(buffer)
                yield from read_marker(buffer, get_markers(*FENCES))
        else:
            yield from self.read_section_or_call()
        calls.confirm_call()
        yield from self._read_call_close()

    def read_section_or_call(self) -> ReadSteps[None]:
        """Read a section or a call, whichever opening marker follows."""
        yield from skip_space(self._buffer)
        buffer, tools = self._buffer, self._tools
        if (yield from read_marker(buffer, get_markers(*tools.section.open))) >= 0:
            yield from self.read_section()
        elif (yield from read_marker(buffer, get_markers(*tools.call.open))) >= 0 or (
            yield from is_at_marker(buffer, get_markers(*tools.unmarked_starts))
        ):
            yield from self.read_call()
        else:
            raise Mismatch

    def has_more_calls(self) -> ReadSteps[bool]:
        """Whether more calls follow, with or without a section of their own."""
        tools = self._tools
        markers = (*tools.section.open, *tools.unmarked_starts)
        markers += tools.call.open if tools.section_optional else ()
        yield from skip_space(self._buffer)
        return (yield from is_at_marker(self._buffer, get_markers(*markers)))

    def _skip_to_joined_call(self) -> ReadSteps[bool]:
        """Skip a comma or semicolon; return whether a call without a marker follows it."""
        buffer = self._buffer
        char = yield from next_char(buffer)
        if char in ("}", "]") and self._calls.is_leading:  # else they may close a part of the text
            yield from skip_space(buffer, STRAY)
            if not (yield from peek_char(buffer)):
                self._calls.commit()
        if char not in (",", ";"):
            return False
        buffer.pos += 1
        yield from skip_space(buffer)
        return (yield from is_at_marker(buffer, get_markers(*self._tools.unmarked_starts)))

    def _skip_to_unmarked_call(self, after_call: bool) -> ReadSteps[bool]:
        """Skip a separator after a call; return whether a call without its own marker follows."""
        buffer, tools = self._buffer, self._tools
        if tools.call.open and len(tools.bodies) == 1:
            return False
        char = yield from peek_char(buffer)
        if after_call and char in (",", ";"):
            buffer.pos += 1
            char = yield from next_char(buffer)
        if tools.call.open or after_call:
            return char in ("{", "[")
        return True

    def _read_body_and_close(self) -> ReadSteps[None]:
        """Read a call from its body to its closing marker."""
        char = yield from next_char(self._buffer)
        is_fenced = (
            char == "`" and (yield from read_marker(self._buffer, get_markers(*FENCES))) >= 0
        )
        if is_fenced:
            char = yield from next_char(self._buffer)
        body = yield from self._choose_body(char)
        after = (*self._tools.call.close, *self._tools.section.close)
        yield from self._calls.run_apart(read_body(self._buffer, body, self._calls, after))
        if is_fenced:
            yield from skip_space(self._buffer)
            yield from read_marker(self._buffer, get_markers(*FENCES))
        yield from self._confirm_call()
        if self._calls.has_call:
            self._calls.commit()
        yield from self._read_call_close()

    def _choose_body(self, char: str) -> ReadSteps[CallBody]:
        """Return the body that starts with this character; raise `Mismatch` if none does."""
        bodies = self._tools.bodies
        named = bodies if self._calls.preceding_name else ()
        for candidate in filter(_may_follow_name, named):
            if (yield from self._is_at_arguments(candidate)):
                return candidate
        for body in bodies:
            if len(bodies) == 1 or can_start(body, char):
                return body
        raise Mismatch

    def _is_at_arguments(self, body: NamedObject) -> ReadSteps[bool]:
        """Whether arguments of the tool that is named before the marker follow."""
        buffer, calls = self._buffer, self._calls
        if (yield from is_at_marker(buffer, get_markers(*body.name_ends))):
            return True
        while True:
            match = FIRST_KEY.match(buffer.text, buffer.pos)
            if match is None or match.end() < len(buffer.text) or buffer.has_ended:
                break
            yield
        if match is None or buffer.text[match.end() : match.end() + 1] != match[1]:
            return False
        names = calls.tools.get_parameter_types(calls.preceding_name)
        return match[2] in names and match[2] not in self._tools.list_call_keys()

    def _confirm_call(self) -> ReadSteps[None]:
        """Confirm a call without arguments, unless its closing marker is missing before text."""
        calls = self._calls
        if calls.is_unconfirmed and (yield from self._is_before_text()):
            calls.drop_call()
            raise Mismatch
        calls.confirm_call()

    def _is_before_text(self) -> ReadSteps[bool]:
        """Whether text follows where a marker must end the call, and not just damaged markup."""
        buffer, tools = self._buffer, self._tools
        closes = (*tools.call.close, *tools.section.close)
        markers = get_markers(*closes, *tools.call.open, *tools.section.open)
        while closes:
            match = SPACES.match(buffer.text, buffer.pos)
            end = buffer.pos if match is None else match.end()
            if end < len(buffer.text):
                start, _, index = markers.match_from(buffer, end)
                is_cut = buffer.has_ended and markers.is_cut_at(buffer, end)
                if start < 0 and not is_cut:
                    return TEXT.match(buffer.text, end) is not None
                if index >= 0:
                    return False
            if buffer.has_ended:
                return False
            yield
        return False

    def _read_call_close(self) -> ReadSteps[None]:
        """Read the closing marker of a call, if it follows, and brackets before it."""
        buffer, closes = self._buffer, self._tools.call.close
        if not closes:
            return
        yield from skip_space(buffer)
        if is_stray := self._is_at_bracket():
            yield from skip_space(buffer, STRAY)
        if (yield from read_closing_marker(buffer, get_markers(*closes))) or (
            is_stray and not (yield from peek_char(buffer))
        ):
            self._calls.commit()


def _may_follow_name(body: CallBody) -> TypeGuard[NamedObject]:
    return isinstance(body, NamedObject) and body.name_may_precede


def _find_end_markers(tools: ToolFormat) -> MarkerSet | None:
    """Return the markers that end a call, whatever part of the call is missing."""
    markers = (*tools.call.close, *tools.section.close, *tools.call.open, *tools.section.open)
    # words may stand in any argument
    markers = tuple(marker for marker in markers if len(marker) >= 3 and not marker[0].isalnum())
    if tools.header is not None:
        markers += (*tools.header.open, *tools.header.close)
    return get_markers(*markers) if markers else None
