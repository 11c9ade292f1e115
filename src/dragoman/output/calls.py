"""Records the calls of one answer while they are read, and knows the declared tools.

A call is not emitted before it is certain: its name is held back until its arguments start, so
that text which only resembles a call for a while can still become text. From then on arguments are
emitted as they arrive.

The name of an undeclared tool is no evidence of a call: if the first argument is a string, it is
held back until it is closed, and if there are no arguments, the call is held back until what
follows is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dragoman.output.arguments.end_markers import NO_ENDS, EndMarkers
from dragoman.output.arguments.schemas.parameter_types import (
    ParameterSchema,
    Types,
    read_parameter_schema,
)
from dragoman.output.span import Span
from dragoman.output.text_buffer import ReadSteps, TextBuffer
from dragoman.types import Json

MAX_REJECTIONS, MAX_NAME = 16, 64  # possible calls that are noted, characters of their names
MAX_HELD = 512  # characters of arguments that are held back
NO_ARGUMENTS = "{}"
LAST_WORD = re.compile(r"\S+\Z")
STRAY = re.compile(r"[\s}\]),;]*")  # brackets and separators that close and separate nothing
NO_SCHEMA = read_parameter_schema(None)


class DeclaredTools:
    """The declared tools; `tools=None` accepts any name."""

    def __init__(self, tools: Mapping[str, Json] | None, accept: bool = False) -> None:
        self._tools = tools or {}
        self.names = tuple(self._tools)
        self._schemas: dict[str, ParameterSchema] = {}  # of tools that are called
        self._types: dict[str, dict[str, Types]] = {}
        self._accept = accept or tools is None

    def is_declared(self, name: str) -> bool:
        return name in self._tools

    def is_allowed(self, name: str) -> bool:
        return self._accept or name in self._tools

    def resolve_name(self, name: str) -> str:
        """Return the name of the tool, without space and quotes; some models repeat it (`f.f`)."""
        name = name.strip()
        if len(name) > 2 and name[0] in "\"'" and name[0] == name[-1]:
            name = name[1:-1]
        first, _, second = name.partition(".")
        is_repeated = first == second and first in self._tools and name not in self._tools
        return first if is_repeated else name

    def get_parameter_types(self, name: str) -> Mapping[str, Types]:
        """Return the types of each parameter of a tool, computed on first use."""
        types = self._types.get(name)
        if types is None:
            schema = self._find_schema(name)
            types = {key: schema.get_member(key).types for key in schema.list_names()}
            self._types[name] = types
        return types

    def get_parameter_schema(self, name: str, key: str) -> ParameterSchema:
        return self._find_schema(name).get_member(key)

    def _find_schema(self, name: str) -> ParameterSchema:
        """Return the parameters of a tool, read on first use."""
        if name not in self._tools:
            return NO_SCHEMA
        schema = self._schemas.get(name)
        if schema is None:
            schema = self._schemas[name] = read_parameter_schema(self._tools[name])
        return schema


class CallRecorder:
    """Records the calls that the readers find, and emits them as spans."""

    __slots__ = (
        "_became_text",
        "_buffer",
        "_count_before",
        "_draft",
        "_emit_held",
        "_emitted",
        "_held",
        "_held_size",
        "_id",
        "_is_emitting",
        "_is_in_string",
        "_is_marked",
        "_is_open",
        "_kept",
        "_spans",
        "_text",
        "_text_end",
        "count",
        "ends",
        "get_held_arguments",
        "get_missing_end",
        "has_call",
        "has_rejected_call",
        "is_leading",
        "is_undeclared",
        "make_list_ends",
        "name",
        "names_may_precede",
        "preceding_name",
        "rejections",
        "run_apart",
        "tools",
    )

    def __init__(
        self,
        buffer: TextBuffer,
        spans: list[Span],
        tools: DeclaredTools,
        emit_held: Callable[[], None],
        run_apart: Callable[[ReadSteps[None]], ReadSteps[None]],
    ) -> None:
        self.tools = tools
        self.run_apart = run_apart  # runs a reader that is resumed without its callers
        self.has_rejected_call = False  # whether a call of the draft was rejected
        self.is_leading = False  # whether the attempt is not a draft and has no text before it
        self.count = 0  # calls that were started
        self.has_call = False  # whether the current attempt has emitted a call
        self.is_undeclared = False  # whether the current call names an undeclared tool
        self.name = ""
        self.get_missing_end: Callable[[], str] = (
            str  # returns the text that completes the arguments
        )
        self.get_held_arguments: Callable[[], str] = str  # returns the arguments that are held back
        self.ends = NO_ENDS  # markers that end a call, whatever part of it is missing
        # returns the markers in a list of calls, where the next call ends one, too
        self.make_list_ends: Callable[[], EndMarkers] = EndMarkers
        self.names_may_precede = False  # whether a name may stand before the marker of its call
        self.preceding_name = ""  # a declared name directly before the current attempt
        self.rejections: list[str] = []  # why possible calls became text
        self._is_marked = False
        self._buffer = buffer
        self._spans = spans
        self._emit_held = emit_held
        self._became_text = False  # whether the last call became text
        self._count_before = 0  # `count` before this attempt
        self._draft: list[Span] | None = None
        self._emitted: list[str] = []  # names and arguments of the last attempt
        self._id = ""
        self._is_emitting = False
        self._is_open = False
        self._held: list[str] | None = None  # arguments that do not show yet that a call is meant
        self._held_size = 0  # in characters
        self._is_in_string: Callable[[], bool] = bool  # whether they end inside a string
        self._kept: list[tuple[str, int]] = []  # text inside the call, and where it starts
        self._text = ""  # the end of the text so far, if a name may precede a marker
        self._text_end = 0  # where it ends

    def add_text(self, text: str, start: int) -> None:
        """Note text that was emitted, whose last word may be the name of the next call."""
        text_before = self._text if start == self._text_end else ""
        self._text = (text_before + text)[-MAX_NAME - 1 :]
        self._text_end = start + len(text)

    def _find_preceding_name(self) -> str:
        """Return the declared name that the text before the current position ends with, or ""."""
        if self._text_end != self._buffer.base + self._buffer.pos:
            return ""
        word = LAST_WORD.search(self._text)
        return word[0] if word is not None and self.tools.is_declared(word[0]) else ""

    def start_attempt(self, *, draft: bool, marked: bool, leading: bool = False) -> None:
        """Start reading a possible call. A draft emits nothing until it is resolved.

        `marked`: a marker announces the call, so text that is not a call is a mistake of the model.
        `leading`: no text precedes it.
        """
        self._is_marked = marked
        self.is_leading = leading and not draft
        self._draft = [] if draft else None
        if not draft:
            self._emitted.clear()
        self._count_before = self.count
        self._became_text = False
        self.preceding_name = "" if draft else self._find_preceding_name()
        self.has_call = self.is_undeclared = self.has_rejected_call = self._is_emitting = (
            self._is_open
        ) = False
        self._held = None

    def open_call(self, name: str, call_id: str = "") -> None:
        """Start a call of this name, with the id that the model gave it."""
        self.name = name = self.tools.resolve_name(name)
        self._id = call_id
        self.is_undeclared = not self.tools.is_allowed(name)
        if self.is_undeclared:
            self._reject(f"`{name[:MAX_NAME]}` is not declared")
        if self._draft is None:
            self._emitted.append(f"\n{name}\n")
        self._is_emitting, self._is_open = False, True
        self.preceding_name = ""
        self._held = None
        self.get_missing_end = self.get_held_arguments = str

    def get_parameter_types(self, key: str) -> Types:
        types = self.tools.get_parameter_types(self.name)
        return types[key] if key in types else self.tools.get_parameter_schema(self.name, key).types

    def hold_arguments(self, is_in_string: Callable[[], bool] = bool) -> None:
        """Hold the arguments of a tool that is not declared until they show that a call is meant.

        `is_in_string`: whether they end inside a string so far.
        """
        if not self.tools.is_declared(self.name):
            self._held, self._held_size, self._is_in_string = [], 0, is_in_string

    def keep_text(self, text: str, start: int) -> None:
        """Keep text between the arguments of a call: it is emitted after the call."""
        if self._draft is not None:
            self.has_rejected_call = True
        elif not self.is_undeclared and STRAY.fullmatch(text) is None:
            self._kept.append((text, start))

    def _emit_kept(self) -> None:
        kept, self._kept = self._kept, []
        for text, start in kept:
            self._buffer.hold_again(text, start)
            self._emit_held()

    def _take_held(self) -> str:
        held, self._held = self._held, None
        return "".join(held or ())

    def write_arguments(self, text: str) -> None:
        if self.is_undeclared:
            return
        if self._held is not None:
            self._held.append(text)
            self._held_size += len(text)
            is_short = self._held_size <= MAX_HELD and self._is_in_string()
            if is_short or self.is_unconfirmed:
                return
            text = self._take_held()
        spans = self._draft
        if spans is None:
            spans = self._spans
            self._buffer.hold()  # what follows may turn out not to belong to the call
            self._emitted.append(text)
        if not self._is_emitting:
            self._is_emitting = self.has_call = True
            spans.append(Span("tool_name", self.name, 0, self.count, self._id))
        if text:
            spans.append(tuple.__new__(Span, ("tool_args", text, 0, self.count, "")))

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the call has no arguments, and counts only if it is confirmed."""
        return self._held == [NO_ARGUMENTS]

    def confirm_call(self) -> None:
        """Emit a complete call without arguments that was held back."""
        if self.is_unconfirmed:
            self.write_arguments(self._take_held())
            self.close_call()

    def drop_call(self) -> None:
        """Drop a call that was held back: it is text."""
        self._held, self._is_open = None, False

    def close_call(self) -> None:
        """Finish a complete call, unless it must be confirmed. Another one may follow."""
        if self.is_unconfirmed:
            return
        self.count += self._is_emitting
        self._became_text = self.is_undeclared
        if self.is_undeclared:
            self.emit_undeclared()
        elif self._is_emitting:
            if self._kept:
                self._emit_kept()
            self.commit()
        self._is_emitting = self._is_open = self.is_undeclared = False

    def complete_call(self) -> None:
        """Complete the arguments of a call that was emitted in part, and finish it."""
        if self._is_emitting:
            self.write_arguments(self.get_missing_end())
            self.close_call()

    def complete_damaged_call(self) -> None:
        """Complete a call; what was read and could not be emitted with it stays held."""
        self.confirm_call()
        if self._is_emitting and self._draft is None:
            rest = self._buffer.take_held()
            self.complete_call()
            self._buffer.hold_again(*rest)
        else:
            self.complete_call()

    def end_inside_call(self, *, truncated: bool) -> None:
        """Handle an answer that ends inside a call, or inside text that looked like one.

        The arguments of a truncated answer stay as they are; otherwise they are completed, unless
        they are held back and no marker announces the call.
        """
        if self._held and (truncated or self.is_unconfirmed or self.is_certain):
            self.write_arguments(self._take_held())
        if not truncated:
            self.complete_call()
        elif self._is_open and not self.is_undeclared:
            self.write_arguments("" if self._is_emitting else self.get_held_arguments())
            self._buffer.pos = len(self._buffer.text)
            self.commit()

    def emit_undeclared(self) -> None:
        """Emit a call of an undeclared tool as text."""
        self.has_rejected_call = True
        if self._draft is None:
            self._emit_held()
            self._buffer.hold()

    def commit(self) -> None:
        """Drop the text read so far, unless it belongs to a call that became text."""
        is_text = self._became_text or self.is_undeclared or self.is_unconfirmed
        if self._draft is None and not is_text:
            self._buffer.hold()

    def drop_brackets(self) -> None:
        """Drop what was read after a call if it is nothing but brackets and separators."""
        if self.has_call and STRAY.fullmatch(self._buffer.get_held_text()):
            self.commit()

    def start_next_call(self) -> None:
        """Start another call. The rest of a call that became text is text, too."""
        if (self._became_text or self.is_undeclared) and self._draft is None:
            self._emit_held()
            self._buffer.hold()
        self._became_text = self.is_undeclared = False

    def reject_text(self) -> None:
        """Emit what was read and belongs to no call as text."""
        self.has_rejected_call = True
        self._became_text = False
        if self._draft is None:
            self._emit_held()
            self._buffer.hold()

    def _reject(self, reason: str) -> None:
        if len(self.rejections) < MAX_REJECTIONS:
            self.rejections.append(reason)

    def end_attempt(self, *, mismatched: bool) -> None:
        """End the attempt; `mismatched`: what was read does not have the format of a call."""
        if mismatched and self._is_marked and not (self.has_call or self.has_rejected_call):
            self._reject("malformed")
        if self._kept:
            self._emit_kept()
        self.is_undeclared = self._became_text = False

    def detach(self) -> None:
        """Forget the parser and the readers of arguments, which refer to this."""
        self._emit_held = _do_nothing
        self.get_missing_end = self.get_held_arguments = str
        self._is_in_string = bool

    @property
    def is_certain(self) -> bool:
        """Whether calls are read for certain: a marker announces them, or there was one."""
        return self._is_marked or self.has_call

    @property
    def is_emitting(self) -> bool:
        """Whether a call has been emitted in part."""
        return self._is_emitting

    def resolve_draft(self, is_call: bool, *, drop_repeated: bool = False) -> None:
        """Emit the draft, or discard it. `drop_repeated`: unless it is the calls before, again."""
        draft, self._draft = self._draft or [], None
        repeated = drop_repeated and "".join(map(_describe, draft)) == "".join(self._emitted)
        if is_call and not repeated:
            self._spans.extend(draft)
            return
        self.count = self._count_before
        if self.has_call and not drop_repeated:
            self._reject("inside reasoning")


def _describe(span: Span) -> str:
    return f"\n{span.text}\n" if span.channel == "tool_name" else span.text


def _do_nothing() -> None:
    pass
